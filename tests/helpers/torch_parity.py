"""Builds Hugging Face's PyTorch models with task heads, and computes the outputs of both sides."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config.objectives import FineTuning
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
)
from bert_jax.objectives.fine_tuning import FineTuningObjective

torch = pytest.importorskip("torch")

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
HEADS: dict[str, tuple[TaskHead, str, dict[str, Any]]] = {
    "sequence": (
        SequenceClassificationHead(labels=("no", "maybe", "yes")),
        "SequenceClassification",
        {"id2label": {0: "no", 1: "maybe", 2: "yes"}},
    ),
    "regression": (
        RegressionHead(),
        "SequenceClassification",
        {"num_labels": 1, "problem_type": "regression"},
    ),
    "token": (
        TokenClassificationHead(labels=LABELS),
        "TokenClassification",
        {"id2label": dict(enumerate(LABELS))},
    ),
    "span": (QuestionAnsweringHead(), "QuestionAnswering", {}),
    "choice": (MultipleChoiceHead(), "MultipleChoice", {}),
}
"""Name -> (head, the end of Hugging Face's class name, and the fields of its config)."""


def _heads(*fast: str) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in HEADS]


# Regression has the class and the weights of "sequence". The linear layers of "token" and "span"
# read the encoder's output in every family; fine_tuning_heads_test.py has those of BERT.
each_head_of_family = pytest.mark.parametrize("head_name", _heads("sequence", "choice"))
# Of a second size; the first has all heads.
each_head_of_second_size = pytest.mark.parametrize("head_name", _heads("sequence"))


def randomize_parameters(model: Any, *, std: float, seed: int = 0) -> Any:
    """Gives every parameter random values, biases and norms too, and turns off dropout."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, std, generator=generator)
            if "norm.weight" in name.lower():
                parameter.add_(1.0)
    return model.eval()


def torch_head_outputs(model: Any, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Computes the logits of a PyTorch model by the names of `jax_head_outputs`."""
    with torch.no_grad():
        outputs = model(**inputs)
    names = ("start_logits", "end_logits") if "start_logits" in outputs else ("logits",)
    return {name: outputs[name].numpy() for name in names}


def jax_head_outputs(
    params: Any, config: Any, head: TaskHead, batch: Any, num_examples: int | None = None
) -> dict[str, np.ndarray]:
    """Computes the logits of the first `num_examples` examples of a batch (None: all)."""
    objective = FineTuningObjective(FineTuning(model=config, head=head))
    outputs = jax.device_get(jax.jit(objective.predict)(params, batch))
    if isinstance(head, RegressionHead):
        outputs = {"logits": outputs["values"][:, None]}
    return {name: values[:num_examples] for name, values in outputs.items()}


def load_exported(auto_class: Any, folder: Any) -> Any:
    """Opens a folder with an Auto class, and checks that it has exactly the model's parameters."""
    model, info = auto_class.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], problem
    return model
