"""Covers bench/structure.py: lines of code, imports and circles are counted correctly."""

from pathlib import Path

import pytest

from bench import structure


def test_lines_are_counted_by_kind(tmp_path: Path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""Doc.\n\nMore.\n"""\n\nimport os\nfrom sys import (\n    path,\n)\n\nA = 1\n"""A."""\n'
        '# Why.\nB = """text\n# text"""  # C\n\n\ndef f():\n    """Doc."""\n    return os, path\n'
    )
    assert structure.count_lines(file) == structure.Lines(5, 6, 1, 4, 4)


def test_packages_import_in_one_direction():
    assert not structure.package_cycles()


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
