#!/usr/bin/env bash
# BERT-base as in the paper, 1,000,000 updates of 256 sequences, on 16 TPU chips.
#   BUCKET=gs://my-bucket tpu/pretrain_bert_base_16.sh [--dry-run] [--max-usd 150] ...
# More flags go to `tpu/pod launch`; tpu/README.md says how the corpus comes into the bucket.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUCKET="${BUCKET:?set BUCKET=gs://...}"
SLICE="${SLICE:-v6e-16}"                # all of them: tpu/pod prices
RUN_ID="${RUN_ID:-bert-base}"
CORPUS="${CORPUS:-$BUCKET/data/corpus}" # holds train/ and heldout/, from `bert-jax prepare`
MAX_HOURS="${MAX_HOURS:-12}"            # of slices, all restarts together

tpu/pod launch --slice "$SLICE" --bucket "$BUCKET" --run-id "$RUN_ID" --max-hours "$MAX_HOURS" \
  --data "corpus=$CORPUS" "$@" -- \
  pretrain configs/pretrain/bert.py --with size=base tpu=true parallelism=fsdp \
  corpus=@data/corpus/train heldout=@data/corpus/heldout
