#!/usr/bin/env bash
# Fine-tunes one encoder for all nine tasks of GLUE, with each batch spread over all 16 chips.
#   BUCKET=gs://my-bucket tpu/finetune_glue_multi_task_16.sh [--dry-run] [--max-usd 20] ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # `tpu/tpuctl prices` lists all types
RUN_ID="${RUN_ID:-glue-multi-task}"
MODEL="${MODEL:-$BUCKET/models/bert}"   # from `bert-jax export`, or a Hugging Face BERT
GLUE="${GLUE:-$BUCKET/data/glue}"       # contains CoLA/train.tsv and so on
TASKS="${TASKS:-all}"                   # or a list: rte,mrpc,stsb
BATCH="${BATCH:-128}"                   # a multiple of 32
MAX_HOURS="${MAX_HOURS:-3}"             # slice hours of all attempts together

exec tpu/tpuctl "${BERT_TPU_VERB:-launch}" --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" \
  --max-hours "$MAX_HOURS" --data "model=$MODEL" --data "glue=$GLUE" "$@" -- \
  finetune --config configs/finetune/glue_mixture.py --arg model=@data/model glue_dir=@data/glue \
  "tasks=$TASKS" "batch_size=$BATCH"
