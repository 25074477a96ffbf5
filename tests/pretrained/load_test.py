"""Covers bert_jax/pretrained/load.py: models from runs and Hugging Face folders."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.apps.testing.models import WORDS, small_model, word_tokenizer, write_run
from bert_jax.config.objectives import CausalLM, FineTuning
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.interop import huggingface
from bert_jax.models.heads.config import (
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from bert_jax.params import paths
from bert_jax.pretrained.load import (
    LoadedCausalLM,
    LoadedModel,
    load_encoder,
    load_model,
    require_encoder,
)


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return small_model(tmp_path / "made")


@pytest.fixture
def exported(model: LoadedModel, tmp_path: Path) -> Path:
    export(model, tmp_path / "exported")
    return tmp_path / "exported"


def assert_same_parameters(a: LoadedModel, b: LoadedModel, times: float = 1.0) -> None:
    found, expected = paths.flatten(a.params), paths.flatten(b.params)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf * np.float32(times), err_msg=path)


def test_run_loads_the_newest_or_the_named_step(model, tmp_path):
    run = write_run(tmp_path / "run", model, steps=(10, 20))
    newest = load_encoder(run)
    assert newest.run is not None and newest.run.step == 20
    assert newest.config == model.config and newest.missing == ()
    assert newest.tokenizer and model.tokenizer
    assert newest.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert_same_parameters(newest, model, times=2.0)
    assert_same_parameters(load_encoder(run / "checkpoints" / "10"), model)
    with pytest.raises(UserError, match=r"has no step 30; steps there: \[10, 20\]"):
        load_encoder(run / "checkpoints" / "30")


def test_run_with_a_best_step_loads_it(model, tmp_path):
    run = write_run(tmp_path / "run", model, steps=(10, 20), best_step=10)
    best = load_encoder(run)
    assert best.run is not None and best.run.step == 10
    assert_same_parameters(best, model)
    named = load_encoder(run / "checkpoints" / "20")
    assert named.run is not None and named.run.step == 20
    shutil.rmtree(run / "checkpoints" / "10")
    with pytest.raises(UserError, match=r"has no step 10; steps there: \[20\]"):
        load_encoder(run)


def test_damaged_checkpoint_falls_back_to_the_previous_step(model, tmp_path, caplog):
    run = write_run(tmp_path / "run", model, steps=(10, 20))
    files = (run / "checkpoints" / "20" / "params").rglob("*")
    largest = max((f for f in files if f.is_file()), key=lambda f: f.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert_same_parameters(load_encoder(run), model)
    assert largest.name in caplog.text


def test_left_to_right_run_is_no_encoder(model, tmp_path):
    run = write_run(tmp_path / "run", model, objective=CausalLM(model=model.config))
    with pytest.raises(UserError, match="objective is 'CausalLM', which trains no encoder"):
        load_encoder(run)
    loaded = load_model(run)
    assert isinstance(loaded, LoadedCausalLM)
    assert_same_parameters(loaded.network, model)
    with pytest.raises(UserError, match=r"left to right \(CausalLM\), so it cannot fill masks"):
        require_encoder(loaded, "fill masks")
    with pytest.raises(ConfigError, match="so there is none to choose"):
        load_model(run, "cola")


def test_fine_tuning_run_has_its_head(tmp_path):
    head = TokenClassificationHead(labels=("O", "B-PER", "I-PER"))
    model = small_model(tmp_path / "made", head=head)
    run = write_run(
        tmp_path / "run",
        model,
        objective=FineTuning(model=model.config, head=head, classifier_dropout=0.3),
    )
    loaded = load_encoder(run)
    assert loaded.head == head and loaded.config == model.config
    assert_same_parameters(loaded, model)
    export(loaded, tmp_path / "exported")
    assert load_encoder(tmp_path / "exported").head == head
    card = (tmp_path / "exported" / "README.md").read_text()
    assert '"classifier_dropout": 0.3' in card and "It has no" not in card


def test_head_with_another_number_of_labels_is_refused(tmp_path):
    export(
        small_model(
            tmp_path / "made", head=SequenceClassificationHead(labels=("no", "yes", "perhaps"))
        ),
        tmp_path / "exported",
    )
    file = tmp_path / "exported" / "config.json"
    described = json.loads(file.read_text())
    file.write_text(json.dumps({**described, "id2label": {"0": "no", "1": "yes"}}))
    with pytest.raises(
        UserError, match=r"the head has 3 outputs, .* 2, for the labels no, yes; use"
    ):
        load_encoder(tmp_path / "exported")
    file.write_text(json.dumps({**described, "architectures": ["BertForQuestionAnswering"]}))
    with pytest.raises(
        UserError, match="id2label has 3 labels, but the architecture is question answering"
    ):
        load_encoder(tmp_path / "exported")
    file.write_text(json.dumps({**described, "architectures": ["BertModel"]}))
    with pytest.raises(UserError, match=r"classifier/bias is not expected \(and 1 more\)"):
        load_encoder(tmp_path / "exported")


def test_head_without_its_pooler_is_refused(tmp_path):
    export(small_model(tmp_path / "made", head=RegressionHead()), tmp_path / "exported")
    file = tmp_path / "exported" / "model.safetensors"
    tensors = {name: t for name, t in load_file(file).items() if "pooler" not in name}
    save_file(tensors, file)
    with pytest.raises(UserError, match=r"pooler/dense/bias is missing \(and 1 more\)"):
        load_encoder(tmp_path / "exported")


def test_bare_encoder_lists_its_missing_heads(exported):
    tensors = load_file(exported / "model.safetensors")
    file = exported / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["BertModel"]}))
    bare = {n.removeprefix("bert."): t for n, t in tensors.items() if not n.startswith("cls.")}
    save_file(bare, exported / "model.safetensors")
    model = load_encoder(exported)
    assert model.missing == ("masked_lm", "next_sentence")
    assert model.params.keys() == {"encoder", "pooler"}


def test_weights_of_another_model_are_refused(exported):
    file = exported / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"encoder/layers/2/.* is missing \(and \d+ more\)"):
        load_encoder(exported)


def test_weights_that_are_not_finite_are_refused(model, exported):
    flat = paths.flatten(model.params)
    flat["pooler/dense/bias"] = np.full_like(flat["pooler/dense/bias"], np.nan)
    huggingface.write_weights(exported, flat, model.config)
    with pytest.raises(UserError, match="pooler/dense/bias has values that are not finite"):
        load_encoder(exported)


@pytest.mark.parametrize("words", [WORDS[:-1], (*WORDS, "more")])
def test_tokenizer_of_another_size_is_refused(exported, tmp_path, words):
    for file in ("tokenizer.json", "vocabulary.json", "vocab.txt"):
        (exported / file).unlink()
    word_tokenizer(exported, words)
    message = f"vocabulary has {5 + len(words)} tokens, but the word-embedding table.* 18 rows"
    with pytest.raises(UserError, match=message):
        load_encoder(exported)


@pytest.mark.parametrize(
    "lines, message",
    [
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, "x"], r"no \[MASK\] among its 18 tokens"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[:-1], "the"], "the"),
    ],
    ids=["no mask", "a duplicate"],
)
def test_damaged_tokenizer_is_refused(exported, lines, message):
    for file in ("tokenizer.json", "vocabulary.json"):
        (exported / file).unlink()
    (exported / "vocab.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=message) as error:
        load_encoder(exported)
    assert "vocab.txt" in str(error.value)


def test_padded_embedding_table_is_accepted(model, tmp_path):
    padded = small_model(tmp_path / "padded", vocab_size=24)
    export(padded, tmp_path / "exported")
    loaded = load_encoder(tmp_path / "exported")
    assert loaded.tokenizer
    assert (loaded.config.vocab_size, loaded.tokenizer.vocab_size) == (24, 18)
    with pytest.raises(UserError, match=r"18 tokens, but .* has 25 rows"):
        small_model(tmp_path / "odd", vocab_size=25)


def test_path_without_a_model_is_described(tmp_path):
    with pytest.raises(UserError, match="no such folder; expected a run folder with checkpoints/"):
        load_encoder(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="a file, not a folder; expected"):
        load_encoder(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="the folder has nothing; expected"):
        load_encoder(tmp_path / "empty")


def test_model_without_tokenizer_files_has_no_tokenizer(model, tmp_path):
    export(dataclasses.replace(model, tokenizer=None), tmp_path / "bare")
    assert load_encoder(tmp_path / "bare").tokenizer is None
