#!/usr/bin/env bash
# Run this first: it trains a tiny BERT for a few minutes on all 16 chips. If it exits with code 0,
# permissions, quota, network, code, data, checkpoints and the deletion of the slice work.
#   BUCKET=gs://my-bucket tpu/smoke_16.sh [--dry-run] [--yes] ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # `tpu/tpuctl prices` lists all types
RUN_ID="${RUN_ID:-smoke}"
CORPUS="${CORPUS:-$BUCKET/data/corpus}" # contains train/, from `bert-jax prepare`
STEPS="${STEPS:-500}"
BATCH="${BATCH:-256}"                   # a multiple of 32
MAX_HOURS="${MAX_HOURS:-1}"             # slice hours of all attempts together

exec tpu/tpuctl "${BERT_TPU_VERB:-launch}" --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" \
  --max-hours "$MAX_HOURS" --data "corpus=$CORPUS" "$@" -- \
  pretrain configs/pretrain/bert.py --arg size=tiny "steps=$STEPS" "batch_size=$BATCH" \
  corpus=@data/corpus/train
