"""Rents TPU slices with gcloud, trains on them, and restarts what was preempted."""

import os

TPUCTL = os.environ.get("BERT_TPU_COMMAND_NAME", "tpu/tpuctl")
"""The launcher's name in messages: `bert-jax tpu` if it was installed from a wheel."""
