#!/usr/bin/env bash
# Fine-tunes nine tasks of GLUE x five seeds, sixteen runs at a time on one chip each, and writes a
# table with the median over the seeds. Finished runs are not repeated after a restart.
#   BUCKET=gs://my-bucket tpu/finetune_glue_sharded_16.sh [--dry-run] [--max-usd 20] ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # `tpu/tpuctl prices` lists all types
RUN_ID="${RUN_ID:-glue-sharded}"
MODEL="${MODEL:-$BUCKET/models/bert}"   # from `bert-jax export`, or a Hugging Face BERT
GLUE="${GLUE:-$BUCKET/data/glue}"       # contains CoLA/train.tsv and so on
MAX_HOURS="${MAX_HOURS:-3}"             # slice hours of all attempts together

exec tpu/tpuctl "${BERT_TPU_VERB:-launch}" --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" \
  --max-hours "$MAX_HOURS" --data "model=$MODEL" --data "glue=$GLUE" "$@" -- \
  glue --glue-dir @data/glue --model @data/model --num-seeds 5 --zip
