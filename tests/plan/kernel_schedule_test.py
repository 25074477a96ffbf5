"""The attention kernel compiles for TPUs: every length that it says it fits."""

import importlib.util
import json

import pytest

from bert_jax.models.attention_kernel import fits, operand_dtype
from bert_jax.plan.compile import ask
from bert_jax.plan.slices import find_slice

SLICES = ("v2-32", "v3-32", "v4-32", "v5e-16", "v5p-32", "v6e-16", "tpu7x-32")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: bert_jax[tpu]"
    ),
]


@pytest.mark.parametrize("where", SLICES)
@pytest.mark.parametrize("dtype, rate", [("bfloat16", 0.1), ("float32", 0.0)])
def test_every_length_compiles(where, dtype, rate):
    dtype = operand_dtype(dtype, find_slice(where).generation.device_kind)
    for length in (128, 256, 384, 512):
        assert fits(length, 256, 4)
        request = {"slice": where, "length": length, "width": 256, "heads": 4, "rate": rate}
        found = json.loads(ask("bert_jax.plan.kernel_schedule", {**request, "dtype": dtype}))
        assert found["forward"] > 0 and found["backward"] > 0
