"""Tests the score of an encoder as a signal of curation: bert_jax/apps/curate/encoder_score.py."""

from collections import Counter

import pytest

from bert_jax.apps.curate import encoder_score
from bert_jax.apps.curate.encoder_score import EncoderScore
from bert_jax.apps.curate.plan import CurationConfig, Rule, RuleSet, Source
from bert_jax.apps.curate.signals import TextView
from bert_jax.apps.curate.units import filter_document
from bert_jax.apps.testing.models import small_model
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.heads.config import RegressionHead, SequenceClassificationHead
from bert_jax.predict.predictor import Predictor

TEXTS = ("the old man", "a net and the sea " * 30, "sea")


def test_score_is_the_prediction_for_the_document_alone(tmp_path, monkeypatch):
    heads = {
        "classes": SequenceClassificationHead(labels=("bad", "good")),
        "value": RegressionHead(),
    }
    models = {name: small_model(tmp_path / name, head=head) for name, head in heads.items()}
    monkeypatch.setattr(encoder_score, "_load", lambda path: models[path.rpartition("/")[2]])
    classes, value = str(tmp_path / "classes"), str(tmp_path / "value")
    good, regression = EncoderScore(model=classes, label="good"), EncoderScore(model=value)
    for text, expected in zip(TEXTS, Predictor(models["classes"])(list(TEXTS)), strict=True):
        found = good.compute(TextView(text))
        assert found == pytest.approx(expected["probabilities"]["good"], abs=1e-4)
        assert found == round(found, 4)
    assert regression.compute(TextView(TEXTS[0])) == pytest.approx(
        Predictor(models["value"])(TEXTS[0])["value"], abs=1e-4
    )
    assert good.compute(TextView(" \n")) == 0
    assert good.fingerprint() == EncoderScore(model=classes, label="bad").fingerprint()
    assert good.fingerprint() != regression.fingerprint()
    for wrong, message in (
        (EncoderScore(model=classes, label="fine"), "label is 'fine', expected one of bad, good"),
        (EncoderScore(model=value, label="good"), "a regression has no labels"),
    ):
        with pytest.raises(ConfigError, match=message):
            wrong.fingerprint()
    with pytest.raises(UserError, match="no such folder; expected a run"):
        EncoderScore(model=str(tmp_path / "none"))
    # As the signal of a rule.
    limit = good.compute(TextView(TEXTS[0]))
    rules = (Rule(signal=good, at_least=limit),)
    config = CurationConfig(
        sources=(Source(name="a", files=TextFiles("a.txt")),),
        rule_sets=(RuleSet(name="mine", rules=rules),),
    )
    results = [filter_document(text, config, Counter()) for text in TEXTS]
    assert [each.reason for each in results] == [
        "" if good.compute(TextView(text)) >= limit else "mine: encoder" for text in TEXTS
    ]
