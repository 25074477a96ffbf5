"""Compares zero-shot classification with the pipeline of transformers, on a small random model."""

import json
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.zero_shot import ZeroShotClassifier
from bert_jax.pretrained.load import load_model

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["the old man mends a net", "the sea", "a man sings by the sea ."]
LABELS = ["sea", "old man", "net"]
ORDERS = {
    "last": ("contradiction", "neutral", "entailment"),
    "first": ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
}


@pytest.fixture(scope="module", params=ORDERS)
def folder(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("nli")
    head = SequenceClassificationHead(labels=ORDERS[request.param])
    export(small_model(folder / "v", head=head, initializer_range=0.5), folder / "model")
    return folder / "model"


@pytest.mark.parametrize("multi_label", [False, True])
def test_probabilities_are_those_of_the_pipeline(folder, multi_label):
    pipeline = transformers.pipeline(
        "zero-shot-classification", model=str(folder), device="cpu", framework="pt"
    )
    hypothesis = "the {} sings"
    expected = pipeline(TEXTS, LABELS, hypothesis_template=hypothesis, multi_label=multi_label)
    predictor = Predictor(load_model(folder))
    classify = ZeroShotClassifier(predictor, LABELS, hypothesis=hypothesis, multi_label=multi_label)
    finished: list[int] = []
    found = classify([*TEXTS[:1], " ", *TEXTS[1:]], finished.append)
    assert found.pop(1) == {"text": " ", "label": None, "probabilities": None}
    assert sum(finished) == len(TEXTS)
    for record, reference in zip(found, expected, strict=True):
        scores = dict(zip(reference["labels"], reference["scores"], strict=True))
        assert record["probabilities"] == pytest.approx(scores, abs=1e-5)
        assert record["label"] == reference["labels"][0]
    alone = classify(TEXTS[0])["probabilities"]
    assert alone == pytest.approx(found[0]["probabilities"], abs=1e-6)


def test_command_prints_one_line_for_each_text(folder, capsys):
    assert main(["predict", str(folder), "--zero-shot", "sea,old man", *TEXTS]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["text"] for record in records] == TEXTS
    assert set(records[0]["probabilities"]) == {"sea", "old man"}
    assert main(["predict", str(folder), "--multi-label", "the sea"]) == 2
    assert "--multi-label needs --zero-shot" in capsys.readouterr().err


def test_unusable_models_labels_and_hypotheses(folder, tmp_path):
    predictor = Predictor(load_model(folder))
    for labels in ([], ["sea", "sea"], ["sea", ""]):
        with pytest.raises(ConfigError, match="expected different names"):
            ZeroShotClassifier(predictor, labels)
    with pytest.raises(ConfigError, match=r"expected a text with \{\} in it"):
        ZeroShotClassifier(predictor, LABELS, hypothesis="this is it")
    other = small_model(tmp_path / "v", head=SequenceClassificationHead(labels=("no", "yes")))
    with pytest.raises(UserError, match=r"the labels of the model are no, yes; .* 'entail'"):
        ZeroShotClassifier(Predictor(other), LABELS)
