"""Covers bert_jax/tasks/hugging_face.py: task heads in config.json, both ways."""

import json
from pathlib import Path

import pytest

from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import read_config, to_hf_config
from bert_jax.models.heads.config import (
    MultiLabelHead,
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)

SEQUENCE, TOKEN = "BertForSequenceClassification", "BertForTokenClassification"
SPAN, CHOICE = "BertForQuestionAnswering", "BertForMultipleChoice"


IDENTITY = "torch.nn.modules.linear.Identity"


def write_config_json(folder: Path, architecture: str | None, **fields) -> Path:
    file = folder / "config.json"
    written = to_hf_config(small_config(), {"encoder"}, pad_token_id=0)
    architectures = [architecture] if architecture else None
    file.write_text(json.dumps({**written, "architectures": architectures, **fields}))
    return file


@pytest.mark.parametrize(
    "head, architecture",
    [
        (SequenceClassificationHead(labels=("not_entailment", "entailment")), SEQUENCE),
        (SequenceClassificationHead(labels=tuple(f"{n}" for n in range(12))), SEQUENCE),
        (RegressionHead(), SEQUENCE),
        (RankingHead(), SEQUENCE),
        (RankingHead(activation="identity"), SEQUENCE),
        (TokenClassificationHead(labels=("O", "B-PER", "I-PER")), TOKEN),
        (QuestionAnsweringHead(), SPAN),
        (MultipleChoiceHead(), CHOICE),
    ],
)
def test_written_head_is_read_back(tmp_path, head, architecture):
    config = small_config()
    flat = random_parameters(config, head=head)
    huggingface.write_config(tmp_path, config, {p.split("/")[0] for p in flat}, 0, head)
    huggingface.write_weights(tmp_path, flat, config)
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["architectures"] == [architecture]
    imported = huggingface.read_folder(tmp_path)
    assert imported.head == head and imported.config == config
    assert imported.flat_params.keys() == flat.keys()


@pytest.mark.parametrize(
    "architecture, fields, expected",
    [
        (SEQUENCE, {}, SequenceClassificationHead(labels=("LABEL_0", "LABEL_1"))),
        (
            SEQUENCE,
            {"num_labels": 3},
            SequenceClassificationHead(labels=("LABEL_0", "LABEL_1", "LABEL_2")),
        ),
        (
            SEQUENCE,
            {"id2label": {"1": "good", "0": "bad"}},
            SequenceClassificationHead(labels=("bad", "good")),
        ),
        (SEQUENCE, {"id2label": {"0": "LABEL_0"}}, RegressionHead()),
        (SEQUENCE, {"num_labels": 1, "problem_type": "regression"}, RegressionHead()),
        (SEQUENCE, {"num_labels": 1, "problem_type": "multi_label_classification"}, RankingHead()),
        (
            SEQUENCE,
            {"problem_type": "multi_label_classification"},
            MultiLabelHead(labels=("LABEL_0", "LABEL_1")),
        ),
        (
            SEQUENCE,
            {"num_labels": 1, "sentence_transformers": {"activation_fn": IDENTITY}},
            RankingHead(activation="identity"),
        ),
        (
            SEQUENCE,
            {"num_labels": 1, "sbert_ce_default_activation_function": IDENTITY},
            RankingHead(activation="identity"),
        ),
        (
            SEQUENCE,
            {"num_labels": 2, "sbert_ce_default_activation_function": IDENTITY},
            SequenceClassificationHead(labels=("LABEL_0", "LABEL_1")),
        ),
        (TOKEN, {"id2label": {"0": "O", "1": "B-X"}}, TokenClassificationHead(labels=("O", "B-X"))),
        (SPAN, {}, QuestionAnsweringHead()),
        (CHOICE, {"id2label": {"0": "x"}}, MultipleChoiceHead()),
        ("BertForMaskedLM", {"id2label": {"0": "x", "1": "y"}}, None),
        (None, {}, None),
    ],
)
def test_head_fields_that_are_absent_have_defaults(tmp_path, architecture, fields, expected):
    assert read_config(write_config_json(tmp_path, architecture, **fields))[1] == expected


@pytest.mark.parametrize(
    "architecture, fields, message",
    [
        (SEQUENCE, {"problem_type": "several"}, "problem_type is 'several'; supported are"),
        (
            SEQUENCE,
            {"problem_type": "regression"},
            "problem_type is 'regression', but num_labels is 2; expected 1",
        ),
        (
            SEQUENCE,
            {"num_labels": 1, "problem_type": "single_label_classification"},
            "expected at least two labels",
        ),
        (
            SEQUENCE,
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "mine.Activation"}},
            "activation_fn is 'mine.Activation', code that is not part of PyTorch; supported",
        ),
        (
            SEQUENCE,
            {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.ReLU"},
            "activation_function is 'torch.nn.ReLU'; supported are torch",
        ),
        (SEQUENCE, {"id2label": {"0": "a", "2": "b"}}, "for each number 0, 1, "),
        (SEQUENCE, {"id2label": ["a", "b"]}, "for each number 0, 1, "),
        (SEQUENCE, {"num_labels": "3"}, "num_labels is '3'; expected an integer"),
        (SEQUENCE, {"num_labels": 10**9}, "num_labels is 1000000000; expected an integer from 1"),
        (SEQUENCE, {"id2label": 5}, "id2label is 5; expected a label for each number"),
        (TOKEN, {"id2label": {str(i): "" for i in range(10**5)}}, "'' more than once"),
        (TOKEN, {"id2label": {"0": 0, "1": 1}}, "expected strings"),
        (TOKEN, {"id2label": {"0": "O", "1": "O"}}, "'O' more than once"),
        (
            SPAN,
            {"num_labels": 3},
            "num_labels is 3, but the architecture is question answering; expected 2",
        ),
    ],
)
def test_unsupported_head_error_names_the_file(tmp_path, architecture, fields, message):
    file = write_config_json(tmp_path, architecture, **fields)
    with pytest.raises(UserError, match=message) as error:
        read_config(file)
    assert str(file) in str(error.value)
