#!/usr/bin/env bash
# Pretrains BERT-large as in the paper: 1,000,000 updates of 256 sequences, on 16 TPU chips.
#   BUCKET=gs://my-bucket tpu/pretrain_bert_large_16.sh [--dry-run] [--max-usd 500] ...
# It does not fit into the memory of v2: bert-jax plan configs/pretrain/bert.py --arg size=large --slice all16
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # `tpu/tpuctl prices` lists all types
RUN_ID="${RUN_ID:-bert-large}"
CORPUS="${CORPUS:-$BUCKET/data/corpus}" # contains train/ and heldout/, from `bert-jax prepare`
MAX_HOURS="${MAX_HOURS:-24}"            # slice hours of all attempts together

exec tpu/tpuctl "${BERT_TPU_VERB:-launch}" --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" \
  --max-hours "$MAX_HOURS" --data "corpus=$CORPUS" "$@" -- \
  pretrain configs/pretrain/bert.py --arg size=large tpu=true parallelism=fsdp \
  corpus=@data/corpus/train heldout=@data/corpus/heldout
