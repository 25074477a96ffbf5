"""Tests the quality classifier and the signals that need a file.

Covers bert_jax/apps/curate/{classifier,model_signals}.py and
bert_jax/apps/curate/cli/curate_classifier.py.
"""

import dataclasses
import hashlib
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.curate.classifier import (
    ClassifierTraining,
    QualityClassifier,
    hash_features,
    train_classifier,
)
from bert_jax.apps.curate.model_signals import BadWords, QualityScore, TokensPerWord, UnknownTokens
from bert_jax.apps.curate.plan import CurationConfig, Rule, RuleSet, Source, make_plan, make_units
from bert_jax.apps.curate.sample import measure
from bert_jax.apps.curate.signals import SIGNALS, TextView
from bert_jax.apps.curate.units import filter_document
from bert_jax.data.corpus.sources import RawDocument, TextFiles
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.load_tokenizer import load_tokenizer


def _paragraphs(folder: Path, pattern: str, limit: int) -> list[str]:
    source = TextFiles(str(folder / pattern), document_unit="blank-line", errors="replace")
    texts = source.read_texts(source.list_files())
    return list(itertools.islice((text for text in texts if len(text.split()) >= 20), limit))


@pytest.fixture(scope="module")
def texts(shared: Path) -> tuple[list[str], list[str]]:
    """Returns paragraphs of speeches and of novels."""
    return (
        _paragraphs(shared / "text/inaugural", "19*.txt", 300),
        _paragraphs(shared / "text/novels", "*", 500),
    )


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory: pytest.TempPathFactory):
    model, evaluation = train_classifier(
        texts[0], texts[1], ClassifierTraining(num_features=1 << 16)
    )
    path = tmp_path_factory.mktemp("model") / "quality.safetensors"
    model.save(path)
    return model, evaluation, path


def test_classifier_distinguishes_held_out_speeches_from_novels(texts, trained) -> None:
    model, evaluation, _ = trained
    assert evaluation.auc > 0.97
    assert sum(count for count, _, _ in evaluation.calibration) == (
        evaluation.num_positives + evaluation.num_negatives
    )
    assert evaluation.num_positives + model.info["positives"] == len(texts[0])
    # High scores are positives more often than low ones.
    assert evaluation.calibration[-1][2] > 0.8 > 0.2 > evaluation.calibration[0][2]


def test_auc_is_the_fraction_of_ordered_pairs() -> None:
    positives = [f"good word{i % 3} common" for i in range(12)]
    negatives = [f"bad word{i % 4} common" for i in range(12)]
    config = ClassifierTraining(num_features=1 << 10, epochs=1, learning_rate=0.1)
    model, evaluation = train_classifier(positives, negatives, config)
    again, _ = train_classifier(positives, negatives, config)
    np.testing.assert_array_equal(model.weights, again.weights)  # the same bytes every time

    def is_held_out(text: str) -> bool:
        return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 2 == 1

    scores = [
        [model.score(TextView(text).tokens) for text in group if is_held_out(text)]
        for group in (positives, negatives)
    ]
    pairs = [(p > n) + (p == n) / 2 for p in scores[0] for n in scores[1]]
    assert evaluation.auc == pytest.approx(np.mean(pairs), abs=0.02)


def test_few_positives_against_many_negatives_are_calibrated(texts) -> None:
    positives, negatives = texts
    evaluation = train_classifier(
        positives[:30], negatives, ClassifierTraining(num_features=1 << 16, epochs=2)
    )[1]
    assert evaluation.num_negatives > 10 * evaluation.num_positives
    assert evaluation.auc > 0.9
    # Both classes weigh the same, so the fractions of all tenths have the mean 1/2.
    labels = [1 / 2 / evaluation.num_positives, 1 / 2 / evaluation.num_negatives]
    total = 0.0
    for count, _, fraction in evaluation.calibration:
        weight = count / (fraction / labels[0] + (1 - fraction) / labels[1])
        total += weight * fraction
    assert total == pytest.approx(0.5)


def test_saved_classifier_gives_the_same_scores(texts, trained) -> None:
    model, _, path = trained
    loaded = QualityClassifier.load(path)
    for text in texts[0][:20]:
        tokens = TextView(text).tokens
        assert loaded.score(tokens) == model.score(tokens)
    assert loaded.info == model.info | {"held_out": loaded.info["held_out"]}


def test_features_are_words_and_bigrams_in_lower_case() -> None:
    features = hash_features(["The", "cat", "sat"], 1 << 20)
    assert len(features) == 5
    np.testing.assert_array_equal(features, hash_features(["the", "CAT", "sat"], 1 << 20))
    assert set(features) != set(hash_features(["cat", "the", "sat"], 1 << 20))


def test_rule_with_a_classifier_drops_novels_and_is_part_of_the_plan(
    texts, trained, tmp_path
) -> None:
    model, _, path = trained
    copy = tmp_path / "low.safetensors"
    QualityClassifier(model.weights, -1000.0, model.info).save(copy)
    (tmp_path / "a.txt").write_text(texts[0][0])
    signal = QualityScore(model=str(path))
    rule = Rule(signal=signal, at_least=0.5)
    config = CurationConfig(
        sources=(Source(name="a", files=TextFiles(str(tmp_path / "a.txt"))),),
        rule_sets=(RuleSet(name="mine", rules=(rule,)),),
    )
    results = [[filter_document(t, config, Counter()) for t in group[:150]] for group in texts]
    retained = [np.mean([not each.reason for each in group]) for group in results]
    assert retained[0] > 0.9 > 0.1 > retained[1]
    assert {each.reason for each in results[1] if each.reason} == {"mine: quality"}
    # A second model has its own scores, and its own reason in the ledger.
    other = Rule(signal=QualityScore(model=str(copy)), at_least=0.5)
    pair = (RuleSet(name="mine", rules=(rule,)), RuleSet(name="other", rules=(other,)))
    document = RawDocument(key="1", text=texts[0][0])
    measured = measure(document, dataclasses.replace(config, rule_sets=pair))
    assert measured is not None and measured.broken == ("other: quality",)
    assert measured.signals[rule.signal] > 0.5 > measured.signals[other.signal] == 0
    with pytest.raises(ConfigError, match="two different signals have the reason 'mine: quality'"):
        dataclasses.replace(config, rule_sets=(RuleSet(name="mine", rules=(rule, other)),))
    plan = make_plan(config, make_units(config))
    assert list(plan["models"].values()) == [signal.fingerprint()]


def test_token_signals_count_tokens_of_the_tokenizer(shared: Path) -> None:
    path = str(shared / "vocab/bert-base-uncased")
    tokenizer, view = load_tokenizer(path), TextView("Unbelievable \u16a0\u16a1 weather, today.")
    ids = tokenizer.encode(view.text)
    unknown = ids.count(tokenizer.unk_id)
    assert unknown > 0
    assert TokensPerWord(tokenizer=path).compute(view) == len(ids) / len(view.words)
    assert UnknownTokens(tokenizer=path).compute(view) == unknown / len(ids)
    assert SIGNALS["sentences"](TextView("One. Two? Three!")) == 3


def test_bad_words_are_whole_words_and_phrases(tmp_path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("darn\nholy  cow\n\n\u99ac\u9e7f\nC++\n")
    signal = BadWords(words=str(path))
    view = TextView("Darn! Holy cow, darned cows: \u4f60\u99ac\u9e7f\u5440. C++ and c+ darn")
    assert signal.compute(view) == 1000 * 5 / len(view.words)
    assert signal.compute(TextView("...")) == 0
    path.write_text("other\n")
    assert signal.fingerprint() == hashlib.sha256(b"other\n").hexdigest()
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=r"empty.txt: no word; expected"):
        BadWords(words=str(tmp_path / "empty.txt"))


def test_files_that_are_no_classifier_raise(tmp_path, trained) -> None:
    with pytest.raises(UserError, match="cannot be read as a quality classifier"):
        QualityScore(model=str(tmp_path / "none.safetensors"))
    from safetensors.numpy import save_file

    save_file({"weights": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="not a quality classifier"):
        QualityScore(model=str(tmp_path / "other.safetensors"))
    with pytest.raises(UserError, match="--negative: too few documents"):
        train_classifier(["one text", "another text", "third"] * 5, [], ClassifierTraining())
    with pytest.raises(ConfigError, match="--epochs is 0"):
        ClassifierTraining(epochs=0)


def test_command_trains_a_classifier(shared: Path, tmp_path, capsys) -> None:
    files = [
        str(shared / f"text/inaugural/{name}.txt") for name in ("1861-Lincoln", "1961-Kennedy")
    ]
    output = tmp_path / "quality.safetensors"
    flags = ["--positive", files[0], "--negative", files[1], "--output", str(output), "--epochs=1"]
    assert main(["curate-classifier", *flags]) == 0
    assert "AUC" in capsys.readouterr().out
    assert QualityClassifier.load(output).weights.shape == (1 << 18,)
