#!/usr/bin/env bash
# Starts the job of a run on this host as a systemd unit, which survives the ssh connection. A second
# start does nothing: gcloud runs a remote command again if its connection breaks.
#   start.sh UNIT SECONDS FLAGS...      SECONDS: systemd stops the unit after this time, which limits
#                                       the cost even if the launcher is gone; FLAGS: of `tpuctl work`
set -euo pipefail
unit="$1" seconds="$2"
shift 2
code="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
mkdir -p "$HOME/bert_jax/units"
if ! mkdir "$HOME/bert_jax/units/$unit" 2> /dev/null; then
  echo "$unit was started before"
  exit 0
fi

# Variables that configure JAX and the trainer. Secrets never pass through systemd's command line.
variables=()
for name in $(compgen -e | grep -E '^(HOME|PATH|LANG|USER)$|^(BERT|JAX|XLA|TPU|LIBTPU|CLOUDSDK)_' |
  grep -vE 'TOKEN|SECRET|PASSWORD|CREDENTIAL'); do
  variables+=("--setenv=$name=${!name}")
done
# KillMode=mixed: SIGTERM goes to the worker, which forwards it to the trainers; SIGKILL goes to all.
sudo -n systemd-run --quiet --collect "--unit=$unit" "--uid=$(id -un)" "--gid=$(id -gn)" \
  --property=KillMode=mixed --property=TimeoutStopSec=600 "--property=RuntimeMaxSec=$seconds" \
  --property=LimitNOFILE=65536 --property=After=network-online.target "${variables[@]}" \
  -- "$code/tpu/tpuctl" work "$@" || { rmdir "$HOME/bert_jax/units/$unit"; exit 1; }
echo "$unit was started"
