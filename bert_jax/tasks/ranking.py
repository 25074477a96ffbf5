"""Defines the kind "ranking": how relevant a text is to a query, scored by a cross-encoder."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.special import expit

from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.features import TargetValues
from bert_jax.errors import UserError
from bert_jax.losses import Batch, WeightedMean, weighted_mean
from bert_jax.models.heads.config import RankingActivation, RankingHead, TaskHead
from bert_jax.tasks.base import Json, KindDescription
from bert_jax.tasks.hugging_face import MULTI_LABEL_CLASSIFICATION, label_maps, read_labels
from bert_jax.tasks.losses import HeadOutputs, Metrics
from bert_jax.tasks.metrics.regression import regression_metrics
from bert_jax.tasks.regression import Metric, Regression

RELEVANT = 0.5
"""The smallest label of a relevant text."""


def _average_precision(references: np.ndarray, logits: np.ndarray) -> float:
    from sklearn import metrics  # takes a second to import

    relevant = references >= RELEVANT
    return float(metrics.average_precision_score(relevant, logits)) if relevant.any() else 0.0


def _accuracy(references: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean((references >= RELEVANT) == (logits > 0)))


_METRICS: dict[str, Metric] = {
    "average_precision": _average_precision,
    "accuracy": _accuracy,
}


_ACTIVATIONS: dict[str, RankingActivation] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}
"""Name of a PyTorch class in a cross-encoder's config.json -> activation of the score."""


def ranking_loss(
    outputs: HeadOutputs, batch: Batch, class_weights: Sequence[float], label_smoothing: float
) -> tuple[WeightedMean, Metrics]:
    """Computes the binary cross-entropy of `label_values`, which are from 0 to 1.

    `accuracy` counts an example as relevant if its label is at least 0.5, or its logit above 0.
    """
    logits, labels, weights = outputs["values"], batch["label_values"], batch["example_weights"]
    # log(1 + exp(x)) - x y: the cross-entropy of sigmoid(x), which would overflow for large x.
    loss = weighted_mean(jax.nn.softplus(logits) - logits * labels, weights)
    # A logit of 0 is a probability of 0.5.
    correct = (logits > 0) == (labels >= RELEVANT)
    return loss, {"loss": loss, "accuracy": weighted_mean(correct, weights)}


class Ranking(Regression):
    """Predicts relevance; references are float [n] from 0 to 1, predictions logits [n]."""

    name = "ranking"
    head_type = RankingHead
    spec = dataclasses.replace(Regression.spec, compute_loss=ranking_loss, uncertainty_scale=1.0)
    description = KindDescription(
        expected_input="a pair of texts, a query and a text",
        text_names=("query", "text"),
        error_loss="distance",
        pipeline_tag="text-ranking",
        head_output="one logit for a query and a text, whose sigmoid is the relevance",
        result="scores",
        example_arguments='--pairs "A query." "A text."',
    )
    empty_prediction: ClassVar[Mapping[str, Any]] = {"score": None, "logit": None}
    output_field = "logit"
    resampled_metrics = _METRICS

    def head_from_hugging_face(self, data: Mapping[str, Any], source: str) -> TaskHead | None:
        """Reads a head with one label and the activation of a cross-encoder, or its loss."""
        labels, activation = read_labels(data, source), _read_activation(data, source)
        has_loss = data.get("problem_type") == MULTI_LABEL_CLASSIFICATION
        if len(labels) != 1 or not (activation or has_loss):
            return None
        return RankingHead(activation=activation or "sigmoid")

    # `multi_label_classification` with one label has the same loss, binary cross-entropy. The
    # activation is written where sentence-transformers reads it.
    def head_to_hugging_face(self, head: RankingHead) -> Json:
        """Returns one label without a meaning, the problem type, and the activation."""
        names = {activation: name for name, activation in _ACTIVATIONS.items()}
        return {
            **label_maps(("LABEL_0",)),
            "problem_type": MULTI_LABEL_CLASSIFICATION,
            "sentence_transformers": {"activation_fn": names[head.activation]},
            # The same for versions before 4.
            "sbert_ce_default_activation_function": names[head.activation],
        }

    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns the label of each example, and an index of its query."""
        ids: dict[str, int] = {}
        query_ids = [ids.setdefault(example.text, len(ids)) for example in examples]
        return {**super().make_targets(examples, labels), "query_ids": query_ids}

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes average precision and accuracy of relevant texts, and Spearman's correlation.

        A text is relevant if its label is at least 0.5, and predicted to be if its logit is above
        0. Without a relevant text, the average precision is 0.
        """
        # It compares ranks, which logits have as scores do.
        spearman = regression_metrics(references, predictions)["spearman"]  # checks the inputs
        metrics = {name: metric(references, predictions) for name, metric in _METRICS.items()}
        return {**metrics, "spearman": spearman}

    def example_metrics(
        self, examples: Sequence[TextExample], references: np.ndarray, predictions: np.ndarray
    ) -> dict[str, float]:
        """Computes the mean NDCG of queries with several texts; {} if there is no such query.

        The gain of a text is its label, and the discount of a rank log2(1 + rank) (Järvelin and
        Kekäläinen 2002). Queries whose texts all have the label 0 do not count.
        """
        rows: dict[str, list[int]] = {}
        for row, example in enumerate(examples):
            rows.setdefault(example.text, []).append(row)
        values: list[float] = []
        for of_query in rows.values():
            labels = np.asarray(references[of_query], np.float64)
            if len(of_query) > 1 and labels.any():
                order = np.argsort(-predictions[of_query], kind="stable")
                discounts = np.log2(2 + np.arange(len(of_query)))
                best = np.sum(np.sort(labels)[::-1] / discounts)
                values.append(float(np.sum(labels[order] / discounts) / best))
        return {"ndcg": float(np.mean(values))} if values else {}

    def prediction_to_json(
        self, example: TextExample, prediction: np.ndarray, labels: Sequence[str]
    ) -> Json:
        """Returns {"score", "logit"}; the score is the sigmoid of the logit."""
        return {"score": float(expit(prediction)), "logit": float(prediction)}

    def shown_values(self, predictions: np.ndarray) -> np.ndarray:
        """Returns the scores, which are from 0 to 1 as the labels are."""
        return expit(predictions)


def max_texts_per_query(task: Task, batch_size: int) -> int:
    """Returns the largest number of training texts that a query has, for listwise losses.

    Raises:
      UserError: a query has a single text, or more than a batch has.
    """
    counts = Counter(each.text for each in task.splits["train"] if isinstance(each, TextExample))
    for query, count in counts.items():
        if not 2 <= count <= batch_size:
            raise UserError(
                f"{task.name}: {count:,} training {'text has' if count == 1 else 'texts have'} the "
                f"query {query!r}, but --loss compares the texts of a query in a batch; expected 2 "
                f"to {batch_size:,}, the batch size, for each query, or no --loss"
            )
    return max(counts.values())


def _read_activation(data: Mapping[str, Any], source: str) -> RankingActivation | None:
    """Returns the activation that sentence-transformers writes; None if the file has none.

    Raises:
      UserError: it is not one of the two that are supported.
    """
    section = data.get("sentence_transformers")
    field, name = "sentence_transformers.activation_fn", None
    if isinstance(section, Mapping):
        name = section.get("activation_fn")
    if name is None:  # how versions before 4 wrote it
        field = "sbert_ce_default_activation_function"
        name = data.get(field)
    if name is None:
        return None
    if name not in _ACTIVATIONS:
        code = "" if str(name).startswith("torch.") else ", code that is not part of PyTorch"
        raise UserError(
            f"{source}: {field} is {name!r}{code}; supported are {' and '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]
