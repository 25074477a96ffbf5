"""Compares the ways to compute attention that bench/tpu_attention.py compiles, on a CPU."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import tpu_attention
from bench.tpu_attention import WIDTH, attention_of, row, with_backward

LENGTH = 128


def test_all_ways_compute_the_same_attention(monkeypatch):
    make_splash = tpu_attention.splash.make_splash_mha_single_device
    monkeypatch.setattr(
        tpu_attention.splash,
        "make_splash_mha_single_device",
        functools.partial(make_splash, interpret=True),
    )
    keys = jax.random.split(jax.random.key(0), 5)
    q, k, v, grad = (jax.random.normal(key, (1, LENGTH, WIDTH)) for key in keys[:4])
    ids = jnp.sort(jax.random.randint(keys[4], (1, LENGTH), 0, 4), axis=1)
    inputs = (q, k, v, ids, ids, jnp.zeros(2, jnp.uint32), grad)
    expected = with_backward(attention_of("xla", LENGTH))(*inputs)
    for way in ("ours", "splash", "jax.nn"):
        found = with_backward(attention_of(way, LENGTH))(*inputs)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-4, err_msg=way)
    dropped = attention_of("xla, dropout", LENGTH)(*inputs[:-1])
    assert not np.allclose(dropped, expected[0], atol=1e-2)
    np.testing.assert_allclose(attention_of("ours, dropout", LENGTH)(*inputs[:-1]), dropped, 1e-5)


def test_kernel_is_not_compiled_above_its_length():
    assert row("v5e-16", 2048, "ours")[0] == "not supported"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: bert_jax[tpu]"
)
def test_row_of_kernel():
    forward, _, both, memory = row("v5e-16", LENGTH, "ours")
    # The scores of 8,192 tokens alone would need 24 MiB in bfloat16.
    assert 0.01 < float(forward) < float(both) < 1 and float(memory) < 12
