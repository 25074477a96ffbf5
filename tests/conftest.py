"""Configures all tests: 8 fake CPU devices, strict dtype promotion, less memory, shared data."""

import ctypes
import gc
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Compiling is most of the tests' time. Unoptimized code, XLA's older emitters and one LLVM module
# for each program make it four times as fast (a train step: 2.5 s to 0.6 s of CPU). Later versions
# have no older emitters, and end a process with a flag that they do not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false" * metadata.version("jaxlib").startswith("0.10."),
)

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compiled programs are kept, since many test files compile the same small ones, and since freeing
# them takes seconds. They are freed after a test file if the process has this much resident memory
# and has grown by this much since the last time.
CLEAR_ABOVE_BYTES = 1_000_000_000
CLEAR_AFTER_GROWTH_BYTES = 200_000_000
# `make test` should stay below 2.5 GB a process. Above HIGH_MEMORY_BYTES, programs are freed after
# less growth, and after a single test if the growth is CLEAR_AFTER_GROWTH_BYTES.
# Without growth there is nothing to free: the rest is imported libraries.
HIGH_MEMORY_BYTES = 1_300_000_000
GROWTH_IN_HIGH_MEMORY_BYTES = 50_000_000
_bytes_after_clearing = 0


def _resident_bytes() -> int:
    """Returns the memory that this process occupies now (0 where Linux's /proc is absent)."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def _peak_resident_gb() -> float:
    """Returns the largest resident memory of this process so far, in gigabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, kilobytes on Linux


def pytest_collection_finish() -> None:
    """Makes garbage collection rare: its full passes were 6 % of the tests' time.

    The millions of objects of the libraries that are imported by now live until the end.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiles equal programs once in all test processes, also after their memory was cleared."""
    folder = common_folder(tmp_path_factory) / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the temporary folder that all processes of pytest-xdist have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="module", autouse=True)
def bounded_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frees compiled programs after a test file: over a run they pile up to several gigabytes.

    Values that functions of the file have cached, such as models, are freed as well.
    """
    yield
    for value in vars(request.module).values():
        if getattr(value, "__module__", "") == request.module.__name__:
            getattr(value, "cache_clear", lambda: None)()
    if _has_grown(CLEAR_ABOVE_BYTES, CLEAR_AFTER_GROWTH_BYTES) or _has_grown(
        HIGH_MEMORY_BYTES, GROWTH_IN_HIGH_MEMORY_BYTES
    ):
        _free_compiled_programs()
        gc.freeze()  # libraries that were imported since the collection live until the end, too


@pytest.fixture(autouse=True)
def bounded_memory_in_a_file() -> Iterator[None]:
    """Frees compiled programs after a test if the file has compiled very many."""
    yield
    if _has_grown(HIGH_MEMORY_BYTES, CLEAR_AFTER_GROWTH_BYTES):
        _free_compiled_programs()  # no gc.freeze: the file's fixtures must be freed later


def _has_grown(above_bytes: int, growth_bytes: int) -> bool:
    """Tells whether this process has this much memory, and this much more than after clearing."""
    resident = _resident_bytes()
    return resident >= above_bytes and resident - _bytes_after_clearing >= growth_bytes


def _free_compiled_programs() -> None:
    global _bytes_after_clearing
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # glibc otherwise keeps the freed pages in the process
    _bytes_after_clearing = _resident_bytes()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the peak memory of a pytest-xdist worker to the main process."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["peak_gb"] = _peak_resident_gb()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collects the peak memory of a pytest-xdist worker that has finished."""
    peak = getattr(node, "workeroutput", {}).get("peak_gb")
    if peak is not None:
        node.config.stash.setdefault(WORKER_PEAKS, {})[node.gateway.id] = peak


WORKER_PEAKS = pytest.StashKey[dict[str, float]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints the peak memory of every test process; `make test` is meant to stay below 2.5 GB."""
    peaks = config.stash.get(WORKER_PEAKS, {}) or {"this process": _peak_resident_gb()}
    text = ", ".join(f"{name} {peak:.1f} GB" for name, peak in sorted(peaks.items()))
    terminalreporter.write_line(f"peak resident memory: {text}")


@pytest.fixture(autouse=True)
def log_to_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the log handlers of the command lines, so that `caplog` captures all messages."""
    for package in ("bert_jax", "tpu"):
        package_logger = logging.getLogger(package)
        monkeypatch.setattr(package_logger, "propagate", True)
        monkeypatch.setattr(package_logger, "handlers", [])


@pytest.fixture(scope="session")
def shared() -> Path:
    """Returns the folder of real data and golden outputs; skips the test if it is absent."""
    root = os.environ.get("BERT_JAX_SHARED")
    if not root or not (Path(root) / "data").is_dir():
        pytest.skip("BERT_JAX_SHARED does not point at a folder with data/ in it")
    return Path(root) / "data"


@pytest.fixture
def one_device() -> Iterator[None]:
    """Trains on one device in the test (module fixtures use `one_device_mesh` themselves)."""
    from tests.helpers.one_device import one_device_mesh  # it imports bert_jax and flax

    with one_device_mesh():
        yield


@pytest.fixture(scope="session")
def task_experiment(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Returns a function from a kind of task to the config of a small run that is not started."""
    from tests.helpers import task_runs  # it imports all of training

    # The processes of pytest-xdist have this folder in common, so each run is trained once.
    return task_runs.small_experiments(common_folder(tmp_path_factory) / "tasks")


@pytest.fixture(scope="session")
def task_run(task_experiment: Callable) -> Callable[[str], Path]:
    """Returns a function from a kind of task to a finished run's folder, trained on first use."""
    from tests.helpers import task_runs

    return task_runs.finished_runs(task_experiment)
