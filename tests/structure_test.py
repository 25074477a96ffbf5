"""Covers bench/structure.py: the measures of the source code stay within their goals."""

from pathlib import Path

import pytest

from bench import structure


def test_measures_stay_within_their_goals():
    missed = [
        "\n".join([f"{measure.name}: {measure.value}, goal {measure.goal}", *measure.details])
        for measure in structure.measure()
        if measure.value > measure.goal
    ]
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("run", structure.READING_LISTS)
def test_reading_lists_name_modules_that_the_run_imports(run: str):
    assert not structure.unreachable_reading(run), "edit READING_LISTS in bench/structure.py"


def test_import_graph_follows_packages_modules_and_functions():
    graph = structure.import_graph()
    package = structure.ROOT / "bert_jax"
    assert package / "train/step.py" in graph[package / "train/run.py"]
    # cli/pretrain.py imports it inside a function, to keep --help fast.
    assert package / "train/run.py" in structure.reachable(package / "cli/pretrain.py", graph)
    assert structure.module_file("jax.numpy") is None


def test_import_cycles_are_found(monkeypatch: pytest.MonkeyPatch):
    a, b, c = (structure.ROOT / f"{name}.py" for name in "abc")
    graph: dict[Path, set[Path]] = {a: {b}, b: {a, c}, c: set()}
    monkeypatch.setattr(structure, "import_graph", lambda: graph)
    assert structure.import_cycles() == [["a.py", "b.py"]]
