"""Tests that an export is complete and verified, or not written at all."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_config, small_model, write_run
from bert_jax.config.objectives import Pretraining
from bert_jax.data.corpus.manifest import CorpusCounts, Manifest, write_manifest
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import UserError
from bert_jax.export.export import export, sample_batch
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import to_hf_config
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import run_forward
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.tasks.classification import SequenceClassification
from tests.helpers.contamination import write_item_rows


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return small_model(tmp_path / "made")


def test_export_and_import_are_bit_identical(model, tmp_path):
    assert export(model, tmp_path / "exported") == 0.0
    again = load_encoder(tmp_path / "exported")
    assert again.config == model.config
    assert again.tokenizer and model.tokenizer
    assert again.tokenizer.fingerprint == model.tokenizer.fingerprint
    expected = paths.flatten(model.params)
    found = paths.flatten(again.params)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        assert found[path].dtype == leaf.dtype
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
    rights = {f.stat().st_mode for f in (tmp_path / "exported").iterdir()}
    assert len(rights) == 1


def test_sinusoidally_initialized_positions_are_exported(tmp_path):
    positions = LearnedPositions(max_position_embeddings=20, init="sinusoidal")
    assert export(small_model(tmp_path / "made", positions=positions), tmp_path / "exported") == 0.0


def test_heads_that_hugging_face_does_not_have_are_left_out(model, tmp_path, caplog):
    objective = PretrainingObjective(
        Pretraining(model=model.config, mask_token_id=4, sop_weight=1.0, sbo_weight=1.0)
    )
    params = jax.device_get(objective.init(jax.random.key(0)))
    assert export(dataclasses.replace(model, params=params), tmp_path / "exported") == 0.0
    assert "Hugging Face's BERT has no such head: sentence_order, span_boundary" in caplog.text
    again = load_encoder(tmp_path / "exported")
    assert set(again.params) == {"encoder", "pooler", "masked_lm", "next_sentence"}


@pytest.mark.parametrize(
    "missing, expected",
    [
        ((), "BertForPreTraining"),
        (("masked_lm", "next_sentence"), "BertModel"),
        (("pooler", "masked_lm", "next_sentence"), "BertModel"),
        (("pooler", "next_sentence"), "BertForMaskedLM"),
        (("masked_lm",), "BertForNextSentencePrediction"),
    ],
)
def test_architecture_is_the_smallest_class_with_the_parts(missing, expected):
    parts = {"encoder", "pooler", "masked_lm", "next_sentence"} - set(missing)
    written = to_hf_config(small_config(), parts, pad_token_id=0)
    assert written["architectures"] == [expected]


def test_model_without_heads_is_exported_as_encoder(model, tmp_path):
    missing = ("pooler", "next_sentence")
    params = {part: tree for part, tree in model.params.items() if part not in missing}
    export(dataclasses.replace(model, params=params, missing=missing), tmp_path / "exported")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert load_encoder(tmp_path / "exported").missing == missing


@pytest.mark.parametrize(
    "head, card",
    [
        (
            SequenceClassificationHead(labels=("no", "yes|no")),
            ["text-classification", "| 1 | `yes\\|no` |"],
        ),
        (RegressionHead(), ["text-classification", "one number for a text"]),
        (
            TokenClassificationHead(labels=("O", "B-PER", "I-PER")),
            ["token-classification", "| 1 | `B-PER` |"],
        ),
        (QuestionAnsweringHead(), ["question-answering", "AutoModelForQuestionAnswering"]),
        (MultipleChoiceHead(), ["multiple-choice", "AutoModelForMultipleChoice"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_task_head_is_read_back_bit_identical(tmp_path, head, card):
    model = small_model(tmp_path / "made", head=head)
    assert export(model, tmp_path / "exported") == 0.0
    again = load_encoder(tmp_path / "exported")
    assert again.head == head and again.config == model.config
    expected, found = paths.flatten(model.params), paths.flatten(again.params)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
    text = (tmp_path / "exported" / "README.md").read_text()
    for words in [*card, "hidden states and outputs of the head differ by at most 0.0e+00"]:
        assert words in text, words


@pytest.mark.parametrize("damage", ["classifier", "labels"])
def test_export_with_another_head_is_rejected(tmp_path, monkeypatch, damage):
    model = small_model(tmp_path / "made", head=SequenceClassificationHead(labels=("no", "yes")))
    if damage == "classifier":
        write = huggingface.write_weights

        def turned(folder, flat, config, head):
            path = "classifier/kernel"
            write(folder, {**flat, path: flat[path][:, ::-1]}, config, head)

        monkeypatch.setattr(huggingface, "write_weights", turned)
        message = "not written: its outputs of the head differ by"
    else:
        monkeypatch.setattr(SequenceClassification, "head_to_hugging_face", lambda self, head: {})
        message = "describes another head: .*LABEL_0"
    with pytest.raises(UserError, match=message):
        export(model, tmp_path / "exported")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made"]


@pytest.mark.parametrize("damage", ["transposed", "noise"])
def test_export_with_different_outputs_is_rejected(model, tmp_path, monkeypatch, damage):
    write = huggingface.write_weights

    def wrong(folder, flat, config, head):
        path = "encoder/layers/0/attention/value/kernel"
        new = flat[path].T if damage == "transposed" else flat[path] * np.float32(1.01)
        write(folder, {**flat, path: new}, config, head)

    monkeypatch.setattr(huggingface, "write_weights", wrong)
    with pytest.raises(
        UserError, match="export was not written: its hidden states of layer 1 differ"
    ):
        export(model, tmp_path / "exported")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made"]


def test_head_that_is_not_read_back_is_rejected(model, tmp_path, monkeypatch):
    write = huggingface.write_weights

    def wrong(folder, flat, config, head):
        write(folder, {**flat, "masked_lm/bias": flat["masked_lm/bias"] + 1}, config, head)

    monkeypatch.setattr(huggingface, "write_weights", wrong)
    with pytest.raises(UserError, match="masked_lm/bias is not the same when read back"):
        export(model, tmp_path / "exported")


def test_parameters_that_are_not_written_are_rejected(model, tmp_path, monkeypatch):
    write = huggingface.write_weights

    def without_head(folder, flat, config, head):
        heads = ("next_sentence/", "masked_lm/")
        without = {p: leaf for p, leaf in flat.items() if not p.startswith(heads)}
        write(folder, without, config, head)

    monkeypatch.setattr(huggingface, "write_weights", without_head)
    with pytest.raises(UserError, match="masked_lm/bias is not the same when read back"):
        export(model, tmp_path / "exported")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made"]


def test_model_with_nan_is_rejected(model, tmp_path):
    flat = paths.flatten(model.params)
    flat["encoder/layers/1/attention/key/kernel"] = flat[
        "encoder/layers/1/attention/key/kernel"
    ] * np.float32(np.nan)
    broken = dataclasses.replace(model, params=paths.unflatten(flat))
    with pytest.raises(
        UserError, match="layers/1/attention/key/kernel has values that are not finite"
    ):
        export(broken, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_full_disk_leaves_no_files(model, tmp_path, monkeypatch):
    def full(folder, flat, config, head):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface, "write_weights", full)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        export(model, tmp_path / "exported")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made"]


def test_existing_folder_is_not_changed(model, tmp_path):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        export(model, tmp_path / "exported")
    assert (tmp_path / "exported" / "mine.txt").read_text() == "x"


def test_sample_batch_has_text_padding_and_all_positions(model):
    batch = sample_batch(model.config, model.tokenizer)
    assert {a.shape for a in batch.values()} == {(2, 20)}
    assert 0 < batch["attention_mask"][0].sum() < 20 and batch["attention_mask"][1].all()
    assert all(row.any() and not row.all() for row in batch["token_type_ids"])
    assert batch["input_ids"].max() < model.config.vocab_size
    states = run_forward({"encoder": model.params["encoder"]}, model.config, batch)["hidden_states"]
    assert len(states) == 3


def test_model_card_describes_the_run(model, tmp_path):
    run = write_run(tmp_path / "run", model)
    assert model.tokenizer
    manifest = Manifest(
        source={
            "kind": "text files",
            "patterns": ["books/*.txt"],
            "curation": {"documents read": 2000, "documents removed: too short": 766},
        },
        task=None,
        settings={},
        counts=CorpusCounts(documents=1234, tokens=5_000_000),
        dropped={"too short": 7},
        tokenizer_fingerprint=model.tokenizer.fingerprint,
        vocab_size=18,
        dtype="uint16",
        max_part_tokens=8192,
        shards=(),
        fingerprint="f" * 64,
    )
    (run / "prepared").mkdir()
    write_manifest(run / "prepared", manifest)
    questions = tuple(TextExample(id=each, text=f"question {each}") for each in "01")
    task = Task(name="t", kind="classification", labels=(), metrics=(), splits={"dev": questions})
    write_item_rows(run, task, "dev", {"0"})
    rows = [
        {"split": "train", "step": 10, "phase": "length-16", "seconds": 1.5, "loss": 6.125},
        {"split": "train", "step": 15, "phase": "length-16", "seconds": 2.5, "loss": 1.5},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"split"')
    export(load_encoder(run), tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for expected in [
        "10 of 20 steps, seed 0",
        "20 steps, each with 4 sequences of length 16 and at most 3 predictions in each",
        "AdamW, weight decay 0.01",
        "| source: patterns | books/*.txt |",
        "| documents | 1,234 |",
        "| tokens | 5,000,000 |",
        "| dropped: too short | 7 |",
        "| curation: documents removed: too short | 766 |",
        "| t dev | 2 | 2 | 1 | 0 |",
        "| mlm_loss | 5.25 |",
        "| loss | 6.125 |",
        "| bert_jax | 0.1.0 |",
        '"name": "test"',
        "hidden states differ by at most 0.0e+00",
    ]:
        assert expected in card, expected
    assert "| loss | 1.5 |" not in card  # metrics of a step after this checkpoint
