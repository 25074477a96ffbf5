"""Covers bert_jax/pretrained/folder.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bert_jax
from bert_jax.__main__ import main
from bert_jax.apps.curate.encoder_score import EncoderScore
from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.run import load_models
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export.adapter import export_adapter
from bert_jax.export.export import export
from bert_jax.predict.static_embedder import StaticEmbedder
from bert_jax.pretrained.adapter_folder import read_peft_adapter
from bert_jax.pretrained.base_model import read_adapter
from bert_jax.pretrained.embedding_model import load_sentence_model
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.initial import load_generator, load_model_or_tf1, tokenizer_folder
from bert_jax.pretrained.seq2seq import load_seq2seq


def test_paths_of_models_are_returned_as_given(tmp_path, monkeypatch):
    (tmp_path / "exported").mkdir()
    (tmp_path / "bert_model.ckpt.index").touch()
    # A run that saves its checkpoints in a bucket.
    (tmp_path / "run").mkdir()
    config = {"config": {}, "checkpoints": "gs://bucket/run/checkpoints"}
    (tmp_path / "run/config.json").write_text(json.dumps(config), "utf-8")
    monkeypatch.chdir(tmp_path)
    for name in (".", "exported", "./bert_model.ckpt", "run", "run/checkpoints/100"):
        assert resolve_model_folder(name) == Path(name)
        assert resolve_model_folder(Path(name)) == Path(name)


def test_a_path_without_a_model_names_the_nearest_one(tmp_path):
    (tmp_path / "exported").mkdir()
    for name in ("exportd", "checkpoints/100"):
        with pytest.raises(UserError, match=f"{name}: no such folder; .*expected a run folder"):
            resolve_model_folder(tmp_path / name)
    with pytest.raises(UserError, match="did you mean 'exported'"):
        resolve_model_folder(tmp_path / "exportd")


NAME = "models/org/absent"  # no name of a model of the hub
READERS = {
    "load_model": bert_jax.load_model,
    "load_model_or_tf1": load_model_or_tf1,
    "load_generator": load_generator,
    "load_sentence_model": load_sentence_model,
    "load_seq2seq": load_seq2seq,
    "tokenizer_folder": tokenizer_folder,
    "read_adapter": read_adapter,
    "read_peft_adapter": lambda name: read_peft_adapter(name, None),
    "StaticEmbedder": StaticEmbedder,
    "EncoderScore": lambda name: EncoderScore(model=name),
    "serve": lambda name: load_models([name], (), ServerConfig()),
    "export_adapter": lambda name: export_adapter(name, Path("output")),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_readers_find_models_by_the_same_function(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{NAME}: no such folder"):
        reader(NAME)


VERBS = {
    "predict": f"predict {NAME} text",
    "evaluate": f"evaluate {NAME} columns --dev reviews.csv --text text --label label",
    "embed": f"embed {NAME} text",
    "embed-evaluate": f"embed-evaluate {NAME} --train reviews.csv --file reviews.csv --text text "
    "--label label",
    "embed-train": f"embed-train columns --train reviews.csv --texts text --model {NAME} --run run",
    "fill-mask": f"fill-mask {NAME} [MASK]",
    "generate": f"generate {NAME} text",
    "export": f"export {NAME} --output output",
    "export --adapter": f"export {NAME} --adapter --output output",
    "convert": f"convert {NAME} --output output",
    "finetune": f"finetune columns --train reviews.csv --text text --label label --model {NAME} "
    "--run run",
    "finetune text2text": f"finetune text2text --train reviews.csv --dev reviews.csv --source text "
    f"--target label --model {NAME} --run run",
    "setfit": f"setfit columns --train reviews.csv --text text --label label --model {NAME} "
    "--run run",
    "serve": f"serve {NAME} --port 0",
    "search index": f"search index {NAME} --file texts.jsonl --output index",
    "distill-static": f"distill-static {NAME} --output output",
}


@pytest.mark.parametrize("command", VERBS.values(), ids=VERBS)
def test_verbs_find_models_by_the_same_function(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(8))
    Path("reviews.csv").write_text(f"text,label\n{rows}", "utf-8")
    Path("texts.jsonl").write_text('{"id": "1", "text": "a text"}\n', "utf-8")
    assert main(command.split()) == 1
    assert f"error: {NAME}: no such folder; expected a run folder" in capsys.readouterr().err


def test_a_model_in_the_working_directory_is_loaded(tmp_path, monkeypatch):
    export(small_model(tmp_path / "vocabulary"), tmp_path / "exported")
    monkeypatch.chdir(tmp_path / "exported")
    assert load_model_or_tf1(".").tokenizer is not None


def test_the_module_imports_neither_jax_nor_tensorflow():
    code = "import sys, bert_jax.pretrained.folder; print({'jax', 'tensorflow'} & {*sys.modules})"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ
    )
    assert output.stdout.strip() == "set()"
