"""What XLA has compiled, kept in the run's folder: a run that goes on compiles nothing again.

    <run folder>/compiled/    one file for each program that took more than half a second

BERT_JAX_COMPILATION_CACHE names another folder, to be shared by many runs, or is "off". A user who
has set JAX's own JAX_COMPILATION_CACHE_DIR is left alone. Process 0 writes, all processes read: on
hosts without a common file system the others find what was copied there (the launch scripts copy
the run's folder). JAX's key for a program has its code, its devices, flags and versions in it.
Several processes on CPUs keep nothing: there the key has the process in it, so that process 0 alone
would find its programs, and be ready long before the others.

What lies there is machine code that will be run: a folder for oneself, as the run's is.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

ENVIRONMENT_VARIABLE, OFF, FOLDER = "BERT_JAX_COMPILATION_CACHE", "off", "compiled"
_CACHE_DIR_OPTION, _MIN_COMPILE_SECONDS = "jax_compilation_cache_dir", 0.5


@contextlib.contextmanager
def persistent_compilation_cache(run_folder: Path) -> Iterator[None]:
    """Programs compiled inside are kept, and found again; JAX's settings come back afterwards."""
    cache_folder = os.environ.get(ENVIRONMENT_VARIABLE) or str(run_folder / FOLDER)
    is_useless = jax.process_count() > 1 and jax.default_backend() == "cpu"
    if cache_folder == OFF or is_useless or getattr(jax.config, _CACHE_DIR_OPTION) is not None:
        yield
        return
    settings = {
        _CACHE_DIR_OPTION: os.path.abspath(cache_folder),
        "jax_persistent_cache_min_compile_time_secs": _MIN_COMPILE_SECONDS,
    }
    previous_settings = {name: getattr(jax.config, name) for name in settings}
    _apply_settings(settings)
    try:
        yield
    finally:
        _apply_settings(previous_settings)


def _apply_settings(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it looks at its settings once
