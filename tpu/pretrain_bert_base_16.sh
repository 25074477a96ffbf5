#!/usr/bin/env bash
# Pretrains BERT-base as in the paper: 1,000,000 updates of 256 sequences, on 16 TPU chips.
#   BUCKET=gs://my-bucket tpu/pretrain_bert_base_16.sh [--dry-run] [--max-usd 150] ...
# More flags are passed to `tpu/tpuctl launch`; tpu/README.md explains how to upload the corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # `tpu/tpuctl prices` lists all types
RUN_ID="${RUN_ID:-bert-base}"
CORPUS="${CORPUS:-$BUCKET/data/corpus}" # contains train/ and heldout/, from `bert-jax prepare`
MAX_HOURS="${MAX_HOURS:-12}"            # slice hours of all attempts together

exec tpu/tpuctl "${BERT_TPU_VERB:-launch}" --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" \
  --max-hours "$MAX_HOURS" --data "corpus=$CORPUS" "$@" -- \
  pretrain configs/pretrain/bert.py --arg size=base tpu=true parallelism=fsdp \
  corpus=@data/corpus/train heldout=@data/corpus/heldout
