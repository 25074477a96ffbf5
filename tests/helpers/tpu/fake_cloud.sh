# shellcheck shell=bash
# Sets up a fake cloud on this machine, to try tpu/tpuctl for free:   source tests/helpers/tpu/fake_cloud.sh
# `gcloud` is then tests/helpers/tpu/bin/gcloud; buckets, hosts and all that happens lie below $FAKE_CLOUD,
# and what shall go wrong is written into $FAKE_CLOUD/script.json (tests/helpers/tpu/fake_gcloud/script.py).
_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
export FAKE_CLOUD="${FAKE_CLOUD:-$PWD/fake-cloud}"
export PATH="$_root/tests/helpers/tpu/bin:$PATH"
# Hosts use the environment that is installed here, four CPU devices each, and report often.
export BERT_TPU_PYTHON="${BERT_TPU_PYTHON:-$_root/.venv/bin/python}"
export JAX_PLATFORMS=cpu BERT_JAX_LOCAL_DEVICES="${BERT_JAX_LOCAL_DEVICES:-4}"
export BERT_TPU_MIRROR_SECONDS=5 BERT_TPU_TURN_SECONDS=5
# A port that nobody else on this machine uses.
export BERT_TPU_COORDINATOR_PORT="${BERT_TPU_COORDINATOR_PORT:-$((20000 + $$ % 20000))}"
unset _root
