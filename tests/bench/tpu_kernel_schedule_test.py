"""Compiles the attention kernel for every TPU generation at every supported length."""

import importlib.util
import json

import pytest

from bert_jax.apps.plan.compile import run_worker_module
from bert_jax.models.layers.pallas_attention import is_supported, operand_dtype
from bert_jax.parallel.tpu_slices import find_slice

SLICES = ("v2-32", "v3-32", "v4-32", "v5e-16", "v5p-32", "v6e-16", "tpu7x-32")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: bert_jax[tpu]"
    ),
]


@pytest.mark.parametrize("slice_name", SLICES)
@pytest.mark.parametrize("dtype, rate", [("bfloat16", 0.1), ("float32", 0.0)])
def test_attention_kernel_compiles_at_every_length(slice_name, dtype, rate):
    dtype = operand_dtype(dtype, find_slice(slice_name).generation.device_kind)
    for length in (128, 256, 384, 512):
        assert is_supported(length, 256, 4)
        request = {"slice": slice_name, "seq_length": length, "hidden_size": 256}
        request |= {"num_heads": 4, "dropout_rate": rate}
        found = json.loads(
            run_worker_module("bench.tpu_kernel_schedule", {**request, "dtype": dtype})
        )
        assert found["forward"] > 0 and found["backward"] > 0
