"""Compares predictions with a plain PyTorch forward pass of the exported folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
)
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TAGS = ("O", "B-PER", "I-PER")
TEXTS = ["The old man mends a net.", "A net by the sea, and old!", "Sea", "the man sings " * 3]


def exported(folder: Path, head: TaskHead) -> Path:
    fields: Any = {
        "positions": LearnedPositions(max_position_embeddings=64),
        "initializer_range": 0.3,
    }
    export(small_model(folder / "made", head=head, **fields), folder / "exported")
    return folder / "exported"


def torch_model_and_tokenizer(folder: Path, name: str) -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, f"AutoModelFor{name}").from_pretrained(folder)
    return tokenizer, model.eval()


def forward(model: Any, encoded: Any) -> Any:
    with torch.no_grad():
        return model(**encoded)


def test_labels_and_values_equal_pytorch(tmp_path):
    folder = exported(
        tmp_path / "labels", SequenceClassificationHead(labels=("no", "perhaps", "yes"))
    )
    tokenizer, model = torch_model_and_tokenizer(folder, "SequenceClassification")
    pairs = [(text, "the sea .") for text in TEXTS]
    for given in (TEXTS, pairs):
        for row, text in zip(Predictor(load_encoder(folder))(given), given, strict=True):
            texts = (text,) if isinstance(text, str) else text
            logits = forward(model, tokenizer(*texts, return_tensors="pt")).logits[0]
            shares = torch.softmax(logits, -1).tolist()
            assert list(row["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
            assert row["label"] == model.config.id2label[int(logits.argmax())]
    folder = exported(tmp_path / "values", RegressionHead())
    tokenizer, model = torch_model_and_tokenizer(folder, "SequenceClassification")
    for row, text in zip(Predictor(load_encoder(folder))(TEXTS), TEXTS, strict=True):
        value = forward(model, tokenizer(text, return_tensors="pt")).logits.item()
        assert row["value"] == pytest.approx(value, abs=1e-5)


def test_tags_equal_pytorch(tmp_path):
    folder = exported(tmp_path, TokenClassificationHead(labels=TAGS))
    tokenizer, model = torch_model_and_tokenizer(folder, "TokenClassification")
    seen = set()
    for row in Predictor(load_encoder(folder))(TEXTS):
        encoded = tokenizer(row["words"], is_split_into_words=True, return_tensors="pt")
        chosen = forward(model, encoded).logits[0].argmax(-1).tolist()
        owners = encoded.word_ids()
        firsts = [owners.index(word) for word in range(len(row["words"]))]
        tags = [model.config.id2label[chosen[place]] for place in firsts]
        assert [tag[2:] for tag in row["tags"]] == [tag[2:] for tag in tags]
        seen |= set(tags)
    assert len(seen) > 1


def test_answers_equal_pytorch(tmp_path):
    folder = exported(tmp_path, QuestionAnsweringHead())
    tokenizer, model = torch_model_and_tokenizer(folder, "QuestionAnswering")
    given = [("the net", text) for text in TEXTS]
    for row, (question, context) in zip(Predictor(load_encoder(folder))(given), given, strict=True):
        encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        found = forward(model, encoded)
        sides = encoded.sequence_ids(0)
        scores = {
            (i, j): (found.start_logits[0, i] + found.end_logits[0, j]).item()
            for i, side in enumerate(sides)
            for j in range(i, min(i + 30, len(sides)))
            if side == 1 and sides[j] == 1
        }
        (i, j), score = max(scores.items(), key=lambda item: item[1])
        assert (row["start"], row["end"]) == (offsets[i][0], offsets[j][1])
        assert row["answer"] == context[row["start"] : row["end"]]
        assert row["score"] == pytest.approx(score, abs=1e-4)


def test_choices_equal_pytorch(tmp_path):
    folder = exported(tmp_path, MultipleChoiceHead())
    tokenizer, model = torch_model_and_tokenizer(folder, "MultipleChoice")
    (row,) = Predictor(load_encoder(folder))([("The old man", *TEXTS)])
    encoded = tokenizer(["The old man"] * len(TEXTS), TEXTS, padding=True, return_tensors="pt")
    logits = forward(model, {name: values[None] for name, values in encoded.items()}).logits[0]
    assert row["probabilities"] == pytest.approx(torch.softmax(logits, -1).tolist(), abs=1e-5)
    assert row["choice"] == int(np.argmax(logits.numpy()))
    assert json.dumps(row)
