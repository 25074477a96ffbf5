"""Sets up a persistent compilation cache in the run folder, so that resuming does not recompile.

    <run folder>/compiled/    one file for each program that took more than 0.5 s to compile

The environment variable BERT_JAX_COMPILATION_CACHE names another folder, for example one shared by
many runs, or is "off". The runs of a study share <output>/compiled. If JAX's own
JAX_COMPILATION_CACHE_DIR is set, nothing is changed.

Process 0 writes the cache and all processes read it. Hosts without a shared file system read the
copy that the launch scripts make of the run folder. JAX's cache key includes the program, devices,
compiler flags and versions.

The cache holds machine code that is executed, so it must be in a folder that only you can write.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

ENVIRONMENT_VARIABLE, OFF, FOLDER = "BERT_JAX_COMPILATION_CACHE", "off", "compiled"
_CACHE_DIR_OPTION = "jax_compilation_cache_dir"
_MIN_COMPILE_TIME_OPTION = "jax_persistent_cache_min_compile_time_secs"
_MIN_COMPILE_SECONDS = 0.5


@contextlib.contextmanager
def persistent_compilation_cache(run_folder: Path) -> Generator[None]:
    """Enables the compilation cache inside the `with` block; restores JAX's settings afterwards."""
    cache_folder = os.environ.get(ENVIRONMENT_VARIABLE) or str(run_folder / FOLDER)
    # On CPU the cache key of a multi-process program differs by process. Only process 0 writes, so
    # only process 0 would find its programs, and collectives would time out waiting for the others.
    is_useless = jax.process_count() > 1 and jax.default_backend() == "cpu"
    if cache_folder == OFF or is_useless or getattr(jax.config, _CACHE_DIR_OPTION) is not None:
        yield
        return
    settings: dict[str, object] = {
        _CACHE_DIR_OPTION: os.path.abspath(cache_folder),
        _MIN_COMPILE_TIME_OPTION: _MIN_COMPILE_SECONDS,
    }
    previous_settings = {name: getattr(jax.config, name) for name in settings}
    _apply_settings(settings)
    try:
        yield
    finally:
        _apply_settings(previous_settings)


def environment_with_cache(folder: Path) -> dict[str, str]:
    """Returns the environment of a process whose programs are in the cache FOLDER/compiled.

    The variables are JAX's own, which work in verbs that train nothing and set up no cache, too. A
    cache that the environment of this process names, or "off", stays.
    """
    environment, cache_dir = dict(os.environ), _CACHE_DIR_OPTION.upper()
    cache_folder = environment.get(ENVIRONMENT_VARIABLE) or str((folder / FOLDER).resolve())
    if cache_folder != OFF and cache_dir not in environment:
        environment[cache_dir] = cache_folder
        environment.setdefault(_MIN_COMPILE_TIME_OPTION.upper(), str(_MIN_COMPILE_SECONDS))
    return environment


def _apply_settings(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # the cache reads its settings only once
