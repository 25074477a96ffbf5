#!/usr/bin/env bash
# One encoder for all nine tasks of GLUE, each batch spread over all 16 chips.
#   BUCKET=gs://my-bucket tpu/finetune_glue_mixture_16.sh [--dry-run] [--max-usd 20] ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # all of them: tpu/pod prices
RUN_ID="${RUN_ID:-glue-mixture}"
MODEL="${MODEL:-$BUCKET/models/bert}"   # from `bert-jax export`, or any BERT of Hugging Face
GLUE="${GLUE:-$BUCKET/data/glue}"       # holds CoLA/train.tsv and so on
TASKS="${TASKS:-all}"                   # or some, with commas: rte,mrpc,stsb
BATCH="${BATCH:-128}"                   # a multiple of 32
MAX_HOURS="${MAX_HOURS:-3}"             # of slices, all restarts together

tpu/pod launch --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" --max-hours "$MAX_HOURS" \
  --data "model=$MODEL" --data "glue=$GLUE" "$@" -- \
  finetune configs/finetune/glue_mixture.py --with model=@data/model glue_dir=@data/glue \
  "tasks=$TASKS" "batch_size=$BATCH"
