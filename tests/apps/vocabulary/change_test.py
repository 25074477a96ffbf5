"""Covers the verbs of `bert-jax vocabulary`: folders, reports, mistakes, further training."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.sentence_scores.scorer import SentenceScorer
from bert_jax.apps.testing.models import WORDS, small_model, word_tokenizer
from bert_jax.apps.testing.text_corpus import topic_words
from bert_jax.apps.vocabulary import change
from bert_jax.apps.vocabulary.change import add_words_to_model, replace_tokenizer
from bert_jax.apps.vocabulary.compare import compare_models
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.export.sentence_encoder import export_sentence_encoder
from bert_jax.export.seq2seq import export_seq2seq
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.t5.config import T5Config
from bert_jax.params import paths
from bert_jax.pretrained.embedding_model import load_sentence_model
from bert_jax.pretrained.load import load_encoder
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq
from bert_jax.text.learn import train_tokenizer

TEXT = "The old man mends a net by the sea. The men mend nets and sings. A net by the old sea.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds model/, which reads 20 tokens, text.txt and words.txt."""
    folder = tmp_path_factory.mktemp("vocabulary")
    export(small_model(folder / "tokenizer"), folder / "model")
    (folder / "text.txt").write_text(TEXT)
    (folder / "words.txt").write_text("mends\nnets\n")
    return folder


def run(*words: object) -> int:
    return main([str(word) for word in ("vocabulary", *words)])


def error_of(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert run(*words) != 0
    return capsys.readouterr().err


def test_add_writes_a_folder_and_a_report(folder, tmp_path, capsys):
    output = tmp_path / "new"
    words = ("--text", folder / "text.txt", "--output", output)
    assert run("add", folder / "model", folder / "words.txt", *words) == 0
    old, new = load_encoder(folder / "model"), load_encoder(output)
    assert new.tokenizer is not None and old.tokenizer is not None
    assert new.config.vocab_size == new.tokenizer.vocab_size == 20
    old_flat, new_flat = paths.flatten(old.params), paths.flatten(new.params)
    assert old_flat.keys() == new_flat.keys()
    for path, leaf in old_flat.items():
        rows = new_flat[path]
        if path in ("encoder/embeddings/word_embeddings/embedding", "masked_lm/bias"):
            assert len(rows) == 20
            ids = old.tokenizer.encode("mends")
            np.testing.assert_allclose(rows[18], leaf[ids].mean(axis=0), rtol=1e-6)
            rows = rows[:18]
        np.testing.assert_array_equal(rows, leaf, err_msg=path)
    report = json.loads((output / "vocabulary_change.json").read_text())
    assert report["rows"] == {"copied": 18, "old_tokens": 2} and not report["random_rows"]
    # "men" is unknown before and after.
    before, after = report["models"]["before"], report["models"]["after"]
    assert (before["tokens"], after["tokens"]) == (26, 24)
    assert before["unknown_tokens"] == after["unknown_tokens"] == 1
    assert report["text"] == {"sentences": 3, "words": 21, "bytes": len(TEXT) - 3}
    assert report["scored"]["sentences"] == 2  # not the one with "men"
    printed = capsys.readouterr()
    assert "before" in printed.out and f"{after['nats_per_word']:.3f}" in printed.out
    assert "20 tokens (rows: 18 copied, 2 old_tokens)" in printed.err
    # A second `add` finds the words in the vocabulary.
    error = error_of(capsys, "add", output, folder / "words.txt", "--output", tmp_path / "b")
    assert "2 of 2 words cannot be added: line 1: 'mends' is in the vocabulary already" in error
    assert not (tmp_path / "b").exists()


def test_losses_are_those_of_all_tokens_per_word_and_byte(folder, capsys):
    model = load_encoder(folder / "model")
    changed = add_words_to_model(model, {1: "mends"}, "words.txt").after
    sentences = ["The old man mends a net.", "men", "by the sea."]
    comparison = compare_models({"a": model, "b": changed}, sentences, 10)
    numbers = comparison.as_json()["models"]
    for name, each in (("a", model), ("b", changed)):
        score = SentenceScorer(each, masking="within_word_l2r")
        loss = -sum(score(sentences[i]).log_probability for i in (0, 2))
        assert numbers[name]["nats_per_word"] == pytest.approx(loss / 9)
        size = len("The old man mends a net.by the sea.")
        assert numbers[name]["bits_per_byte"] == pytest.approx(loss / size / np.log(2))
    # Words without a new token have the same probability up to the size of the softmax.
    assert numbers["a"]["tokens"] == numbers["b"]["tokens"] + 1
    with pytest.raises(UserError, match="no sentences"):
        compare_models({"a": model}, [], 10)
    with pytest.raises(UserError, match="no sentence of the text has only known tokens"):
        compare_models({"a": model}, ["men"], 10)
    # One scored sentence of three: the first of those that can be scored.
    assert len(compare_models({"a": model}, sentences, 1).scored_words) == 1


def test_random_rows_are_a_baseline(folder):
    model = load_encoder(folder / "model")
    means = add_words_to_model(model, {1: "mends"}, "f").after
    random = add_words_to_model(model, {1: "mends"}, "f", random_rows=True).after
    again = add_words_to_model(model, {1: "mends"}, "f", random_rows=True).after
    tables = [
        m.params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
        for m in (means, random, again)
    ]
    np.testing.assert_array_equal(tables[1], tables[2])
    np.testing.assert_array_equal(tables[0][:18], tables[1][:18])
    assert np.abs(tables[0][18] - tables[1][18]).max() > 0.01


def test_replace_keeps_common_rows_and_compare_reads_both(folder, tmp_path, capsys):
    word_tokenizer(tmp_path / "tokenizer", (*WORDS[::-1], "mends", "nets", "ocean"))
    words = ("--tokenizer", tmp_path / "tokenizer", "--text", folder / "text.txt")
    output = tmp_path / "new"
    assert run("replace", folder / "model", *words, "--sentences", 2, "--output", output) == 0
    report = json.loads((output / "vocabulary_change.json").read_text())
    assert report["rows"] == {"copied": 18, "old_tokens": 2, "average": 1}
    old, new = load_encoder(folder / "model"), load_encoder(output)
    assert old.tokenizer is not None and new.tokenizer is not None
    for word in WORDS:
        old_bias = old.params["masked_lm"]["bias"][old.tokenizer.token_to_id(word)]
        assert new.params["masked_lm"]["bias"][new.tokenizer.token_to_id(word)] == old_bias
    capsys.readouterr()
    result = tmp_path / "result.json"
    text = ("--text", folder / "text.txt", "--output", result)
    assert run("compare", folder / "model", output, *text) == 0
    compared = json.loads(result.read_text())["models"]
    assert compared[str(folder / "model")]["tokens"] == report["models"]["before"]["tokens"]
    assert compared[str(output)]["nats_per_word"] == report["models"]["after"]["nats_per_word"]


def test_focus_trains_static_vectors_of_the_new_tokens(folder, tmp_path, capsys):
    pytest.importorskip("gensim")
    (tmp_path / "domain.txt").write_text(
        "The old man mends an ocean. A net by the ocean sings. " * 40
    )
    word_tokenizer(tmp_path / "tokenizer", (*WORDS, "ocean"))
    words = ("--tokenizer", tmp_path / "tokenizer", "--focus", tmp_path / "domain.txt")
    assert run("replace", folder / "model", *words, "--output", tmp_path / "new") == 0
    report = json.loads((tmp_path / "new" / "vocabulary_change.json").read_text())
    assert report["rows"] == {"copied": 18, "nearest": 1}
    old, new = load_encoder(folder / "model"), load_encoder(tmp_path / "new")
    old_table, new_table = (
        m.params["encoder"]["embeddings"]["word_embeddings"]["embedding"] for m in (old, new)
    )
    words = ("--tokenizer", tmp_path / "tokenizer", "--focus", folder / "text.txt")
    error = error_of(capsys, "replace", folder / "model", *words, "--output", tmp_path / "b")
    assert "no token occurs 10 times in the text for FOCUS" in error
    # A mean with positive weights, which is not the row of any single token.
    assert new_table[18].min() >= old_table.min() and new_table[18].max() <= old_table.max()
    assert not (old_table == new_table[18]).all(axis=1).any()


def test_sentence_encoders_remain_sentence_encoders(folder, tmp_path):
    model = load_sentence_model(folder / "model")
    export_sentence_encoder(model, tmp_path / "sentences")
    words = (tmp_path / "sentences", folder / "words.txt", "--output", tmp_path / "new")
    assert run("add", *words) == 0
    reloaded = load_sentence_model(tmp_path / "new")
    assert reloaded.is_trained and reloaded.model.config.vocab_size == 20
    assert reloaded.config == load_sentence_model(tmp_path / "sentences").config


def test_sparse_models_are_refused(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(change, "embedding_kind", lambda model: "sparse")
    words = (folder / "model", folder / "words.txt", "--output", tmp_path / "new")
    assert "is a sparse model, whose vocabulary cannot be changed" in error_of(
        capsys, "add", *words
    )
    assert not (tmp_path / "new").exists()


def test_models_that_cannot_be_changed(folder, tmp_path, capsys):
    output = ("--output", tmp_path / "new")
    bare = tmp_path / "bare"
    shutil.copytree(folder / "model", bare)
    for name in ("vocab.txt", "tokenizer.json", "vocabulary.json"):
        (bare / name).unlink()
    assert "has no tokenizer files" in error_of(capsys, "add", bare, folder / "words.txt", *output)
    config = T5Config(
        vocab_size=20, hidden_size=8, d_kv=4, intermediate_size=8, num_encoder_layers=1,
        num_decoder_layers=1, num_attention_heads=2,
    )  # fmt: skip
    abstract = paths.flatten(build_encoder_decoder_network(config).abstract())
    params = {path: np.ones(leaf.shape, np.float32) for path, leaf in abstract.items()}
    t5 = LoadedSeq2Seq(params=paths.unflatten(params), config=config, tokenizer=None, path="t5")
    export_seq2seq(t5, tmp_path / "t5")
    error = error_of(capsys, "add", tmp_path / "t5", folder / "words.txt", *output)
    assert "is an encoder-decoder, whose vocabulary cannot be changed" in error
    error = error_of(capsys, "add", tmp_path / "absent", folder / "words.txt", *output)
    assert "no such folder" in error
    (tmp_path / "empty.txt").write_text("\n")
    error = error_of(capsys, "add", folder / "model", tmp_path / "empty.txt", *output)
    assert "no words; expected a word on each line" in error
    assert not (tmp_path / "new").exists()


def test_tokenizers_that_cannot_replace_that_of_a_model(folder, tmp_path, capsys):
    model = load_encoder(folder / "model")
    assert model.tokenizer is not None
    with pytest.raises(UserError, match="is the one that the model has"):
        replace_tokenizer(model, model.tokenizer)
    bpe, _ = train_tokenizer([TEXT], TokenizerTrainingConfig(kind="bpe", vocab_size=280))
    bpe.save(tmp_path / "bpe")
    words = ("--tokenizer", tmp_path / "bpe", "--output", tmp_path / "new")
    error = error_of(capsys, "replace", folder / "model", *words)
    assert "has the special tokens <pad> <unk> <s> </s> <mask> in the template 'roberta'" in error
    assert "was trained with [PAD] [UNK] [CLS] [SEP] [MASK] in the template 'bert'" in error
    assert not (tmp_path / "new").exists()
    words = ("--tokenizer", tmp_path / "absent", "--output", tmp_path / "new")
    assert "no such file or folder" in error_of(capsys, "replace", folder / "model", *words)


def test_flags_that_do_not_go_together(folder, tmp_path, capsys):
    words = ("--output", tmp_path / "new", "--sentences", 5)
    error = error_of(capsys, "add", folder / "model", folder / "words.txt", *words)
    assert "--sentences needs --text" in error
    text = ("--text", folder / "text.txt")
    error = error_of(capsys, "compare", folder / "model", folder / "model", *text)
    assert "a model is given twice" in error
    error = error_of(capsys, "compare", folder / "model", *text, "--sentences", 0)
    assert "--sentences" in error


def test_pretraining_continues_from_the_folder(folder, tmp_path, capsys):
    words = topic_words(0)[:6]
    (tmp_path / "words.txt").write_text("\n".join(words))
    sentence = f"the old man mends {' '.join(words)} by the sea. "
    (tmp_path / "domain.txt").write_text("\n\n".join([sentence * 20] * 10))
    extended = tmp_path / "extended"
    assert run("add", folder / "model", tmp_path / "words.txt", "--output", extended) == 0
    prepared = ("--tokenizer", str(extended), "--output", str(tmp_path / "prepared"))
    assert main(["prepare", "--files", str(tmp_path / "domain.txt"), *prepared]) == 0
    arguments = (
        f"corpus={tmp_path / 'prepared'} model={extended} steps=2 batch_size=8 seq_length=16"
    )
    run_folder = tmp_path / "run"
    pretrain = ["pretrain", "adapt", "--run", str(run_folder), "--arg", *arguments.split()]
    assert main(pretrain) == 0
    trained = load_encoder(run_folder)
    assert trained.config.vocab_size == 18 + len(words)
    assert trained.tokenizer is not None and len(trained.tokenizer.encode(words[0])) == 1
    # The corpus of the old tokenizer is refused.
    prepared = ("--tokenizer", str(folder / "model"), "--output", str(tmp_path / "other"))
    assert main(["prepare", "--files", str(tmp_path / "domain.txt"), *prepared]) == 0
    capsys.readouterr()
    arguments = f"corpus={tmp_path / 'other'} model={extended} steps=2 batch_size=8 seq_length=16"
    assert main(["pretrain", "adapt", "--run", str(tmp_path / "b"), "--arg", *arguments.split()])
    assert "vocabular" in capsys.readouterr().err
