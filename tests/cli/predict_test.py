"""Tests `fill-mask`, `embed`, `export` and `convert` on the command line."""

import io
import json
import sys
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.pretrained.load import LoadedModel, load_model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    export(small_model(folder / "vocabulary"), folder / "exported")
    return str(folder / "exported")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_texts_are_read_from_arguments_files_or_stdin(exported, tmp_path, capsys, monkeypatch):
    assert main(["fill-mask", exported, "a [MASK]", "the [MASK] sea", "--top-k", "2"]) == 0
    expected = lines(capsys)
    assert [len(row["masks"][0]["candidates"]) for row in expected] == [2, 2]

    expected.insert(1, {"text": "", "masks": []})
    (tmp_path / "texts.txt").write_text("a [MASK]\n\nthe [MASK] sea\n")
    assert main(["fill-mask", exported, "--top-k", "2", "--file", str(tmp_path / "texts.txt")]) == 0
    assert lines(capsys) == expected

    stream = io.TextIOWrapper(io.BytesIO(b"a [MASK]\n\nthe [MASK] sea"))
    monkeypatch.setattr(sys, "stdin", stream)
    assert main(["fill-mask", exported, "--top-k", "2"]) == 0
    assert lines(capsys) == expected


def test_embed_writes_one_vector_per_text(exported, capsys):
    flags = ["--pooling", "cls", "--layers=-1,0"]
    assert main(["embed", exported, *flags, "a net", "the sea"]) == 0
    rows = lines(capsys)
    assert [row["text"] for row in rows] == ["a net", "the sea"]
    assert [len(row["embedding"]) for row in rows] == [32, 32]
    assert not any(row["truncated"] for row in rows)
    flags = ["--pooling", "cls", "--dimensions", "4", "--normalize", "--prompt", "the "]
    assert main(["embed", exported, *flags, "sea"]) == 0
    (row,) = lines(capsys)
    assert row["text"] == "sea" and sum(x * x for x in row["embedding"]) == pytest.approx(1.0)
    assert len(row["embedding"]) == 4


def test_errors_are_one_line_with_an_exit_code(exported, tmp_path, capsys, monkeypatch):
    assert main(["fill-mask", exported, "no mask"]) == 1
    assert capsys.readouterr().err.startswith("error: no [MASK] in the text 'no mask'")
    assert main(["fill-mask", str(tmp_path / "none"), "a [MASK]"]) == 1
    assert "none: no such folder; expected a run folder" in capsys.readouterr().err
    assert main(["embed", exported, "a net", "--layers=9"]) == 1
    assert "there is no layer 9" in capsys.readouterr().err
    assert main(["embed", exported, "a net", "--prompt-name", "query"]) == 1
    assert "there is no prompt 'query'; the prompts of the model are: none" in (
        capsys.readouterr().err
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a net\n\xff\n")))
    assert main(["embed", exported]) == 1
    assert "standard input: not utf-8 text at byte 6: 0xff" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["embed", exported, "a net", "--layers=last"])
    assert stop.value.code == 2


def test_conversion_leaves_tensors_out(exported, tmp_path, capsys):
    output = ["--output", str(tmp_path / "pruned")]
    assert main(["convert", exported, *output, "--generator", "--ignore", "cls.*"]) == 2
    assert "tensors to ignore are cls.*, but the generator of" in capsys.readouterr().err
    assert main(["convert", exported, *output, "--ignore", "cls.*"]) == 0
    model = load_model(tmp_path / "pruned")
    assert isinstance(model, LoadedModel) and "masked_lm" in model.missing


def test_converted_export_is_the_same_model(exported, tmp_path, capsys):
    assert main(["convert", exported, "--output", str(tmp_path / "again")]) == 0
    again = tmp_path / "again" / "model.safetensors"
    assert again.read_bytes() == (Path(exported) / "model.safetensors").read_bytes()
    assert main(["convert", exported, "--output", str(tmp_path / "again")]) == 1
    assert "exists and is not an empty folder" in capsys.readouterr().err
