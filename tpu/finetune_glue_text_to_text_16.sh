#!/usr/bin/env bash
# Fine-tunes T5 on eight tasks of GLUE as text, with each batch spread over all 16 chips.
# Evaluation generates a text for each dev example (69,000 in all eight tasks), also spread over all
# chips. It takes place twice; choose TASKS to shorten it.
#   BUCKET=gs://my-bucket tpu/finetune_glue_text_to_text_16.sh [--dry-run] [--max-usd 20] ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # `tpu/tpuctl prices` lists all types
RUN_ID="${RUN_ID:-glue-text-to-text}"
MODEL="${MODEL:-$BUCKET/models/t5}"     # from `bert-jax export`, or a Hugging Face T5
GLUE="${GLUE:-$BUCKET/data/glue}"       # contains CoLA/train.tsv and so on
TASKS="${TASKS:-all}"                   # or a list: rte,mrpc,stsb
STEPS="${STEPS:-20000}"
EVAL_EVERY="${EVAL_EVERY:-10000}"       # updates
BATCH="${BATCH:-128}"                   # a multiple of 16
MAX_HOURS="${MAX_HOURS:-6}"             # slice hours of all attempts together

exec tpu/tpuctl "${BERT_TPU_VERB:-launch}" --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" \
  --max-hours "$MAX_HOURS" --data "model=$MODEL" --data "glue=$GLUE" "$@" -- \
  finetune --config configs/finetune/text_to_text.py --arg model=@data/model glue_dir=@data/glue \
  "tasks=$TASKS" "steps=$STEPS" "eval_every=$EVAL_EVERY" "batch_size=$BATCH" bfloat16=true \
  --set train.checkpoints.save_every=1000
