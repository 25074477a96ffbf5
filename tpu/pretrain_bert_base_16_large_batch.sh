#!/usr/bin/env bash
# Pretrains BERT-base with batches of 4096 and LAMB (You et al. 2020): the same number of sequences in
# fewer updates, so 16 chips communicate less than with the paper's batches of 256.
#   BUCKET=gs://my-bucket tpu/pretrain_bert_base_16_large_batch.sh [--dry-run] [--max-usd 150] ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # `tpu/tpuctl prices` lists all types
RUN_ID="${RUN_ID:-bert-base-large-batch}"
CORPUS="${CORPUS:-$BUCKET/data/corpus}" # contains train/ and heldout/, from `bert-jax prepare`
BATCH="${BATCH:-4096}"
MAX_HOURS="${MAX_HOURS:-12}"            # slice hours of all attempts together

exec tpu/tpuctl "${BERT_TPU_VERB:-launch}" --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" \
  --max-hours "$MAX_HOURS" --data "corpus=$CORPUS" "$@" -- \
  pretrain configs/pretrain/bert_large_batch.py --arg size=base "batch_size=$BATCH" \
  tpu=true parallelism=fsdp gradient_accumulation_steps=1 gradient_accumulation_steps_long=4 \
  corpus=@data/corpus/train heldout=@data/corpus/heldout
