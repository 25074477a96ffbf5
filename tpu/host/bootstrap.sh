#!/usr/bin/env bash
# Installs the trainer's Python environment on a host, with the versions of constraints.txt; idempotent.
# An environment is named by a hash of its requirements, so that new code alone installs nothing.
# BERT_TPU_PYTHON names a Python that already has all packages: then nothing is installed.
set -euo pipefail

code="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

# Transfers between host and chips are slower without huge pages.
thp_setting=/sys/kernel/mm/transparent_hugepage/enabled
if [ -e "$thp_setting" ] && ! grep -q '\[always\]' "$thp_setting"; then
  echo always | sudo -n tee "$thp_setting" > /dev/null || echo "warning: $thp_setting was not changed" >&2
fi

if [ -n "${BERT_TPU_PYTHON:-}" ]; then
  echo "ready: using BERT_TPU_PYTHON=$BERT_TPU_PYTHON"
  exit 0
fi

root="$HOME/bert_jax"
requirements_hash="$(cat "$code/setup.py" "$code/constraints.txt" | sha256sum | cut -c1-16)"
venv="$root/venv-$requirements_hash"
mkdir -p "$root"
exec 9> "$root/bootstrap.lock"
flock 9

if [ ! -e "$venv/complete" ]; then
  export PATH="$HOME/.local/bin:$PATH"
  # TPU VM images have Python 3.10; uv installs another one next to it.
  command -v uv > /dev/null || python3 -m pip install --quiet --user 'uv>=0.5,<1'
  rm -rf "$venv"
  uv venv --quiet --python 3.11 "$venv"
  uv pip install --quiet --python "$venv/bin/python" \
    --constraint "$code/constraints.txt" "${code}[tpu]"
  touch "$venv/complete"
fi
ln -sfn "$venv" "$code/.venv"
echo "ready: $venv"
