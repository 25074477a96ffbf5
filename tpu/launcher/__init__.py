"""Rents TPU slices, starts trainers on them and restarts them; `tpu/tpuctl` is its command."""

import os

TPUCTL = os.environ.get("BERT_TPU_COMMAND_NAME", "tpu/tpuctl")
"""The command as the user types it; `bert-jax tpu` of an installed wheel sets the variable."""
