#!/usr/bin/env bash
# Nine tasks of GLUE x five seeds as runs of their own, sixteen at a time, each on one chip; at the
# end one table with the median over the seeds. A run that is finished is not run again.
#   BUCKET=gs://my-bucket tpu/finetune_glue_lanes_16.sh [--dry-run] [--max-usd 20] ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # all of them: tpu/pod prices
RUN_ID="${RUN_ID:-glue-lanes}"
MODEL="${MODEL:-$BUCKET/models/bert}"   # from `bert-jax export`, or any BERT of Hugging Face
GLUE="${GLUE:-$BUCKET/data/glue}"       # holds CoLA/train.tsv and so on
MAX_HOURS="${MAX_HOURS:-3}"             # of slices, all restarts together

tpu/pod launch --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" --max-hours "$MAX_HOURS" \
  --data "model=$MODEL" --data "glue=$GLUE" "$@" -- \
  glue --glue-dir @data/glue --model @data/model --seeds 0 1 2 3 4 --zip
