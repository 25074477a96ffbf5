"""Settings for every test: 8 fake CPU devices, strict dtype promotion, the shared data."""

import os
from collections.abc import Callable
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


@pytest.fixture(scope="session")
def task_experiment(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Kind of task -> a small run of it, yet to be made."""
    from tests.helpers import task_runs  # it imports all of training

    return task_runs.small_experiments(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def task_run(task_experiment: Callable) -> Callable[[str], Path]:
    """Kind of task -> the folder of a run beside its files, made when first asked for."""
    from tests.helpers import task_runs

    return task_runs.finished_runs(task_experiment)
