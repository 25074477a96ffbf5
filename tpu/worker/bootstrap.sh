#!/usr/bin/env bash
# The trainer's Python environment on a host, with the versions of constraints.txt; safe to run twice.
#   bootstrap.sh SHA        SHA: of the bundle that this file lies in
# Environments are kept by what is asked for, so that new code alone installs nothing.
# BERT_TPU_PYTHON names a Python that has everything: then nothing is installed.
set -euo pipefail

code="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if [ "$(basename "$code")" != "${1:?usage: bootstrap.sh SHA}" ]; then
  echo "error: this is $code, not bundle $1; run tpu/pod sync again" >&2
  exit 64
fi

# Transfers between host and chips are slower without.
pages=/sys/kernel/mm/transparent_hugepage/enabled
if [ -e "$pages" ] && ! grep -q '\[always\]' "$pages"; then
  echo always | sudo -n tee "$pages" > /dev/null || echo "warning: $pages was not changed" >&2
fi

if [ -n "${BERT_TPU_PYTHON:-}" ]; then
  echo "ready: $BERT_TPU_PYTHON, as BERT_TPU_PYTHON says"
  exit 0
fi

root="$(dirname "$code")"
asked="$(cat "$code/setup.py" "$code/constraints.txt" | sha256sum | cut -c1-16)"
environment="$root/venv-$asked"
mkdir -p "$root"
exec 9> "$root/bootstrap.lock"
flock 9

if [ ! -e "$environment/complete" ]; then
  export PATH="$HOME/.local/bin:$PATH"
  # The systems of TPU VMs have Python 3.10; uv brings another without touching it.
  command -v uv > /dev/null || python3 -m pip install --quiet --user 'uv>=0.5,<1'
  rm -rf "$environment"
  uv venv --quiet --python 3.11 "$environment"
  uv pip install --quiet --python "$environment/bin/python" \
    --constraint "$code/constraints.txt" "${code}[tpu]"
  touch "$environment/complete"
fi
ln -sfn "$environment" "$code/.venv"
echo "ready: $environment"
