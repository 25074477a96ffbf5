"""Checks that groups of texts are what a loss of sentence vectors needs, and makes its targets."""

from typing import Any

import numpy as np

from bert_jax.config.sentence_embeddings import (
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MarginMSELoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    SentenceEmbedding,
    SentenceLoss,
    SingleLoss,
    SoftmaxLoss,
    SupervisedSimCSE,
    TripletLoss,
    UnsupervisedSimCSE,
    single_loss,
)
from bert_jax.data.sentence_embeddings.text_groups import TextGroups, repeated_texts, single_texts
from bert_jax.errors import ConfigError, UserError


def prepare_groups(groups: TextGroups, loss: SentenceLoss) -> TextGroups:
    """Returns the groups in the form that a loss reads.

    For `UnsupervisedSimCSE` these are pairs of each text with itself, for `MSELoss` single texts.

    Raises:
      UserError: the groups have too few or too many texts, no scores or labels, or scores that the
        loss does not use.
    """
    single = single_loss(loss)
    match single:
        case UnsupervisedSimCSE():
            return repeated_texts(groups)
        case MSELoss():
            return single_texts(groups)
        case _:
            _check_num_texts(groups, single)
            _check_labels(groups, single)
            return groups


def loss_targets(groups: TextGroups, loss: SentenceLoss) -> dict[str, Any]:
    """Returns the batch field of labels or scores with a value for each group; {} for none.

    Raises:
      UserError: a label is not one of the loss.
    """
    match single_loss(loss):
        case SoftmaxLoss(labels=names):
            return {"labels": _label_ids(groups, {name: i for i, name in enumerate(names)})}
        case ContrastiveLoss():
            return {"labels": _label_ids(groups, {"0": 0, "1": 1})}
        case CosineSimilarityLoss() | CoSENTLoss():
            assert groups.scores is not None
            return {"label_values": groups.scores.tolist()}
        case _:
            return {}


def teacher_targets(groups: TextGroups, config: SentenceEmbedding, path: str) -> dict[str, Any]:
    """Returns the batch field of what a teacher computes for each group.

    Raises:
      UserError: the teacher cannot be read.
      ConfigError: its vectors must have the size of the student's, and have another.
    """
    # Imported here, so that a run without a teacher loads no model readers.
    from bert_jax.predict.embedder import Embedder
    from bert_jax.pretrained.load import load_model

    texts = list(dict.fromkeys(text for group in groups.texts for text in group))
    embeddings = Embedder(load_model(path))(texts)
    by_text = {text: embedding.vector for text, embedding in zip(texts, embeddings, strict=True)}
    vectors = np.stack([[by_text[text] for text in group] for group in groups.texts])
    if isinstance(single_loss(config.loss), MarginMSELoss):
        queries, positives, negatives = vectors[:, 0], vectors[:, 1], vectors[:, 2]
        return {"label_values": np.sum(queries * (positives - negatives), axis=-1).tolist()}
    size = config.embedding_size
    if vectors.shape[-1] != size:
        raise ConfigError(
            f"the teacher {path} has vectors of {vectors.shape[-1]} components, but those of the "
            f"model have {size}; expected the same size: add a Dense module to "
            "objective.sentence_encoder.modules, or choose another teacher"
        )
    return {"teacher_vectors": list(vectors[:, 0].astype(np.float32))}


def label_names(groups: TextGroups) -> tuple[str, ...]:
    """Returns the names of the classes of the groups, in alphabetical order.

    Raises:
      UserError: the groups have no labels.
    """
    _require_labels(groups, SoftmaxLoss)
    return tuple(sorted(set(groups.labels or ())))


def _check_num_texts(groups: TextGroups, loss: SingleLoss) -> None:
    match loss:
        case MultipleNegativesRankingLoss():
            is_expected, expected = groups.num_texts >= 2, "2 or more: anchor, positive, negatives"
        case SupervisedSimCSE():
            is_expected = groups.num_texts in (2, 3)
            expected = "3: premise, entailed hypothesis, contradicting hypothesis"
        case TripletLoss() | MarginMSELoss():
            is_expected, expected = groups.num_texts == 3, "3: anchor, positive, negative"
        case _:
            is_expected, expected = groups.num_texts == 2, "2"
    if not is_expected:
        raise UserError(
            f"{groups.name}: each example has {groups.num_texts} texts, but "
            f"{type(loss).__name__} needs {expected}; name the columns with --texts, or choose "
            "another --loss"
        )


def _check_labels(groups: TextGroups, loss: SingleLoss) -> None:
    match loss:
        case CosineSimilarityLoss() | CoSENTLoss():
            if groups.scores is None:
                raise UserError(_missing(groups, "score", type(loss)))
        case SoftmaxLoss() | ContrastiveLoss():
            _require_labels(groups, type(loss))
        case _:
            if groups.scores is not None:
                raise UserError(
                    f"{groups.name} has scores, which {type(loss).__name__} does not use: it would "
                    "treat pairs with low scores as similar texts too; expected a loss of scores, "
                    "such as --loss cosent, or data without scores"
                )


def _require_labels(groups: TextGroups, loss: type) -> None:
    if groups.labels is None:
        raise UserError(_missing(groups, "label", loss))


def _missing(groups: TextGroups, column: str, loss: type) -> str:
    return (
        f"{groups.name} has no {column}s, which {loss.__name__} needs; name the column with "
        f"--{column}, or choose another --loss"
    )


def _label_ids(groups: TextGroups, ids: dict[str, int]) -> list[int]:
    for index, label in enumerate(groups.labels or ()):
        if label not in ids:
            raise UserError(
                f"{groups.name}: example {index + 1} has the label {label!r}; expected one of "
                f"{', '.join(ids)}"
            )
    return [ids[label] for label in groups.labels or ()]
