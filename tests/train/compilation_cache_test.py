"""What is compiled once is found again by a run that goes on."""

import os
from pathlib import Path

import jax
import pytest

from bert_jax.train import compilation_cache


def count(name: str, where: list[str]) -> int:
    return sum(event == f"/jax/compilation_cache/{name}" for event in where)


@pytest.fixture
def events(monkeypatch):
    """Names of what JAX reports, while every program is worth keeping."""
    monkeypatch.setattr(compilation_cache, "_MIN_COMPILE_SECONDS", 0.0)
    monkeypatch.delenv(compilation_cache.ENVIRONMENT_VARIABLE, raising=False)
    seen: list[str] = []
    here = [True]
    jax.monitoring.register_event_listener(
        lambda event, **_: seen.append(event) if here[0] else None
    )
    yield seen
    here[0] = False


def compile_anew(factor: float) -> jax.stages.Compiled:
    """As in a process of its own: nothing that was traced or compiled before is remembered."""
    jax.clear_caches()
    return jax.jit(lambda x: x * factor).lower(jax.ShapeDtypeStruct((4,), "float32")).compile()


def test_a_second_start_compiles_nothing(tmp_path, events):
    with compilation_cache.persistent_compilation_cache(tmp_path):
        compile_anew(3.0)
    files = sorted((tmp_path / "compiled").iterdir())
    assert files and count("cache_misses", events) >= 1 and count("cache_hits", events) == 0
    events.clear()
    with compilation_cache.persistent_compilation_cache(tmp_path):
        again = compile_anew(3.0)
    assert count("cache_hits", events) == 1 and count("cache_misses", events) == 0
    assert sorted((tmp_path / "compiled").iterdir()) == files
    assert again(jax.numpy.ones(4, "float32")).tolist() == [3.0] * 4


def test_another_program_is_compiled(tmp_path, events):
    with compilation_cache.persistent_compilation_cache(tmp_path):
        compile_anew(3.0)
        events.clear()
        compile_anew(5.0)
    assert count("cache_hits", events) == 0


def test_a_file_that_a_kill_cut_short_is_compiled_again(tmp_path, events):
    with compilation_cache.persistent_compilation_cache(tmp_path):
        compile_anew(3.0)
    for file in (tmp_path / "compiled").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with compilation_cache.persistent_compilation_cache(tmp_path):
        with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
            again = compile_anew(3.0)
    assert again(jax.numpy.ones(4, "float32")).tolist() == [3.0] * 4


def test_another_folder_and_none(tmp_path, events, monkeypatch):
    monkeypatch.setenv(compilation_cache.ENVIRONMENT_VARIABLE, str(tmp_path / "shared"))
    with compilation_cache.persistent_compilation_cache(tmp_path / "run"):
        compile_anew(7.0)
    assert os.listdir(tmp_path) == ["shared"]
    monkeypatch.setenv(compilation_cache.ENVIRONMENT_VARIABLE, "off")
    with compilation_cache.persistent_compilation_cache(tmp_path / "run"):
        compile_anew(9.0)
    assert os.listdir(tmp_path) == ["shared"]


def test_jaxs_own_setting_wins_and_comes_back(tmp_path, events):
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    with compilation_cache.persistent_compilation_cache(tmp_path / "first"):
        with compilation_cache.persistent_compilation_cache(tmp_path / "second"):
            compile_anew(11.0)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["first"]
    after = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    assert after == before
