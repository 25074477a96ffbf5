"""Settings for every test: 8 fake CPU devices, strict dtype promotion, the shared data."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Compiling is most of the tests' time; unoptimised machine code halves it and computes the same.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and golden outputs; tests that need it skip where it is absent."""
    root = os.environ.get("BERT_JAX_SHARED")
    if not root or not (Path(root) / "data").is_dir():
        pytest.skip("BERT_JAX_SHARED does not point at a folder with data/ in it")
    return Path(root) / "data"
