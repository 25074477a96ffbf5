"""Tests that a resumed run finds its compiled programs in the cache."""

import os
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from bert_jax.train import compilation_cache


def count(name: str, events: list[str]) -> int:
    return sum(event == f"/jax/compilation_cache/{name}" for event in events)


@pytest.fixture
def events(monkeypatch):
    """Returns the names of JAX's events; all programs are cached, even if fast to compile."""
    cache_of_tests = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(compilation_cache, "_MIN_COMPILE_SECONDS", 0.0)
    monkeypatch.delenv(compilation_cache.ENVIRONMENT_VARIABLE, raising=False)
    seen: list[str] = []
    here = [True]
    jax.monitoring.register_event_listener(
        lambda event, **_: seen.append(event) if here[0] else None
    )
    yield seen
    here[0] = False
    jax.config.update("jax_compilation_cache_dir", cache_of_tests)
    jax_cache.reset_cache()


def compile_again(factor: float) -> jax.stages.Compiled:
    """Compiles as in a new process, without programs traced or compiled before."""
    jax.clear_caches()
    return jax.jit(lambda x: x * factor).lower(jax.ShapeDtypeStruct((4,), "float32")).compile()


def test_second_start_compiles_nothing(tmp_path, events):
    with compilation_cache.persistent_compilation_cache(tmp_path):
        compile_again(3.0)
    files = sorted((tmp_path / "compiled").iterdir())
    assert files and count("cache_misses", events) >= 1 and count("cache_hits", events) == 0
    events.clear()
    with compilation_cache.persistent_compilation_cache(tmp_path):
        again = compile_again(3.0)
    assert count("cache_hits", events) == 1 and count("cache_misses", events) == 0
    assert sorted((tmp_path / "compiled").iterdir()) == files
    assert again(jax.numpy.ones(4, "float32")).tolist() == [3.0] * 4


def test_different_program_is_compiled(tmp_path, events):
    with compilation_cache.persistent_compilation_cache(tmp_path):
        compile_again(3.0)
        events.clear()
        compile_again(5.0)
    assert count("cache_hits", events) == 0


def test_truncated_cache_file_is_compiled_again(tmp_path, events):
    with compilation_cache.persistent_compilation_cache(tmp_path):
        compile_again(3.0)
    for file in (tmp_path / "compiled").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with compilation_cache.persistent_compilation_cache(tmp_path):
        with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
            again = compile_again(3.0)
    assert again(jax.numpy.ones(4, "float32")).tolist() == [3.0] * 4


def test_cache_folder_and_off_in_the_environment(tmp_path, events, monkeypatch):
    monkeypatch.setenv(compilation_cache.ENVIRONMENT_VARIABLE, str(tmp_path / "shared"))
    with compilation_cache.persistent_compilation_cache(tmp_path / "run"):
        compile_again(7.0)
    assert os.listdir(tmp_path) == ["shared"]
    monkeypatch.setenv(compilation_cache.ENVIRONMENT_VARIABLE, "off")
    with compilation_cache.persistent_compilation_cache(tmp_path / "run"):
        compile_again(9.0)
    assert os.listdir(tmp_path) == ["shared"]


def test_setting_of_jax_takes_precedence_and_is_restored(tmp_path, events):
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    with compilation_cache.persistent_compilation_cache(tmp_path / "first"):
        with compilation_cache.persistent_compilation_cache(tmp_path / "second"):
            compile_again(11.0)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["first"]
    after = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    assert after == before
