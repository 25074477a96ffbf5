"""Decodes tags of named entities and computes their metrics: precision, recall and F1.

Tags are IOB2: "B-PER" begins an entity of type PER, "I-PER" continues it, "O" is outside. As in
conlleval (Tjong Kim Sang and De Meulder 2003), an "I-" without an entity to continue begins one. A
predicted entity is correct if both its words and its type are.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.classification import ClassScores
from bert_jax.tasks.metrics.validate_inputs import require_finite, require_matching_counts

Tags = Sequence[str]


class Entity(NamedTuple):
    """Holds the type of an entity and its words [start, end) in a sentence."""

    type: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityErrors:
    """Counts how the entities of one type were predicted.

    correct + wrong_type + wrong_boundary + missed is their number in the reference tags. One
    predicted entity matches at most one reference entity.
    """

    type: str
    correct: int = 0
    wrong_type: int = 0  # the right words with another type
    wrong_boundary: int = 0  # the right type on overlapping words
    missed: int = 0  # none of the above
    spurious: int = 0  # predicted with this type without a match


def decode_tags(
    logits: np.ndarray, first_token_positions: np.ndarray, labels: Sequence[str]
) -> list[str]:
    """Decodes the tag of each word of one sentence from the logits of its first token.

    Args:
      logits: float [L, C].
      first_token_positions: int [W], the position of each word's first token; -1 for a word that
        was truncated, which gets "O".
      labels: the C tags in the order of their ids.

    Returns:
      W tags in valid IOB2: an "I-" without an entity to continue becomes "B-".

    Raises:
      UserError: logits are not finite or have another number of classes.
    """
    positions = np.asarray(first_token_positions)
    if logits.shape[1] != len(labels):
        raise UserError(
            f"the head of the model has {logits.shape[1]} tags, but the task has {len(labels)}: "
            f"{', '.join(labels)}"
        )
    word_logits = logits[np.maximum(positions, 0)]
    require_finite("the logits", np.where(positions[:, None] < 0, 0, word_logits))
    class_ids = word_logits.argmax(axis=1)
    return repair_iob2(
        ["O" if p < 0 else labels[int(c)] for p, c in zip(positions, class_ids, strict=True)]
    )


def repair_iob2(tags: Tags) -> list[str]:
    """Converts an "I-" without an entity to continue into "B-"; the entities stay the same."""
    repaired, previous = [], ""
    for tag in tags:
        prefix, entity_type = _split_tag(tag)
        repaired.append(f"B-{entity_type}" if prefix == "I" and entity_type != previous else tag)
        previous = entity_type
    return repaired


def entity_spans(tags: Tags) -> list[Entity]:
    """Returns the entities of one sentence from left to right.

    Raises:
      UserError: a tag is not "O", "B-..." or "I-...".
    """
    entities: list[Entity] = []
    previous = ""
    for index, tag in enumerate(tags):
        prefix, entity_type = _split_tag(tag)
        if prefix == "B" or (entity_type and entity_type != previous):
            entities.append(Entity(entity_type, index, index + 1))
        elif entity_type:
            entities[-1] = entities[-1]._replace(end=index + 1)
        previous = entity_type
    return entities


def entity_types(*sentences: Sequence[Tags]) -> tuple[str, ...]:
    """Returns the entity types that occur in any of these lists of sentences, sorted."""
    tags = {tag for tagged in sentences for sentence in tagged for tag in sentence}
    return tuple(sorted({entity_type for tag in tags if (entity_type := _split_tag(tag)[1])}))


def entity_counts(
    references: Sequence[Tags], predictions: Sequence[Tags], types: Sequence[str]
) -> np.ndarray:
    """Counts correct, predicted and reference entities by sentence and type: int64 [n, types, 3].

    Every entity metric follows from sums over sentences, which makes bootstrapping cheap.

    Raises:
      UserError: there are no sentences, or a tag is not IOB2.
    """
    _require_matching_tags(references, predictions)
    type_index = {entity_type: index for index, entity_type in enumerate(types)}
    counts = np.zeros((len(references), len(types), 3), np.int64)
    for row, (reference_tags, predicted_tags) in enumerate(
        zip(references, predictions, strict=True)
    ):
        reference_entities, predicted_entities = (
            # Type, start and end are in the tuple, so the intersection has exactly the correct
            # entities.
            set(entity_spans(reference_tags)),
            set(entity_spans(predicted_tags)),
        )
        for column, entities in enumerate(
            (reference_entities & predicted_entities, predicted_entities, reference_entities)
        ):
            for entity in entities:
                counts[row, type_index[entity.type], column] += 1
    return counts


def token_counts(references: Sequence[Tags], predictions: Sequence[Tags]) -> np.ndarray:
    """Counts words with the right tag and all words, by sentence: int64 [n, 2]."""
    _require_matching_tags(references, predictions)
    return np.array(
        [
            [sum(g == p for g, p in zip(tags, predicted_tags, strict=True)), len(tags)]
            for tags, predicted_tags in zip(references, predictions, strict=True)
        ],
        np.int64,
    )


def entity_scores(counts: np.ndarray) -> dict[str, float]:
    """Computes precision, recall, f1 (micro) and f1_macro from the result of `entity_counts`.

    The macro mean is over the types that occur, as in seqeval.
    """
    by_type = counts.sum(axis=0)
    precision, recall, f1 = _precision_recall_f1(*by_type.sum(axis=0))
    macro = [_precision_recall_f1(*row)[2] for row in by_type if row.any()]
    f1_macro = float(np.mean(macro)) if macro else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "f1_macro": f1_macro}


def token_accuracy(counts: np.ndarray) -> float:
    """Computes the fraction of words with the right tag from the result of `token_counts`."""
    num_correct, num_words = counts.sum(axis=0)
    return float(num_correct / num_words) if num_words else 0.0


def entity_metrics(references: Sequence[Tags], predictions: Sequence[Tags]) -> dict[str, float]:
    """Computes precision, recall, f1 (micro) and f1_macro of entities, and token_accuracy.

    Args:
      references: the right tags of n sentences.
      predictions: the same number of predicted tags for each sentence.

    Raises:
      UserError: there are no sentences, numbers of tags differ, or a tag is not IOB2.
    """
    counts = entity_counts(references, predictions, entity_types(references, predictions))
    return {
        **entity_scores(counts),
        "token_accuracy": token_accuracy(token_counts(references, predictions)),
    }


def entity_table(
    references: Sequence[Tags], predictions: Sequence[Tags]
) -> tuple[ClassScores, ...]:
    """Computes precision, recall, F1 and support of each entity type, sorted by name."""
    types = entity_types(references, predictions)
    rows = []
    for entity_type, row in zip(
        types, entity_counts(references, predictions, types).sum(axis=0), strict=True
    ):
        precision, recall, f1 = _precision_recall_f1(*row)
        support = int(row[2])
        rows.append(
            ClassScores(
                name=entity_type, precision=precision, recall=recall, f1=f1, support=support
            )
        )
    return tuple(rows)


def entity_errors(
    references: Sequence[Tags], predictions: Sequence[Tags]
) -> tuple[EntityErrors, ...]:
    """Counts the outcomes of the entities of each type, sorted by name."""
    _require_matching_tags(references, predictions)
    counts_by_type = {
        entity_type: Counter() for entity_type in entity_types(references, predictions)
    }
    for reference_tags, predicted_tags in zip(references, predictions, strict=True):
        reference_entities, predicted_entities = (
            entity_spans(reference_tags),
            entity_spans(predicted_tags),
        )
        # All exact matches first: an entity must not take the prediction that another one matches
        # exactly.
        for outcome, matches in _MATCH_RULES.items():
            for entity in list(reference_entities):
                prediction = next((g for g in predicted_entities if matches(entity, g)), None)
                if prediction:
                    counts_by_type[entity.type][outcome] += 1
                    reference_entities.remove(entity)
                    predicted_entities.remove(prediction)
        for entity in reference_entities:
            counts_by_type[entity.type]["missed"] += 1
        for prediction in predicted_entities:
            counts_by_type[prediction.type]["spurious"] += 1
    return tuple(
        EntityErrors(type=entity_type, **counts) for entity_type, counts in counts_by_type.items()
    )


# How a predicted entity can match a reference entity, the best match first.
_MATCH_RULES = {
    "correct": lambda entity, prediction: entity == prediction,
    "wrong_type": lambda entity, prediction: entity[1:] == prediction[1:],
    "wrong_boundary": lambda entity, prediction: (
        entity.type == prediction.type
        and entity.start < prediction.end
        and prediction.start < entity.end
    ),
}


def _split_tag(tag: str) -> tuple[str, str]:
    """Splits "B-PER" into ("B", "PER"); gives ("O", "") for "O"."""
    prefix, dash, entity_type = tag.partition("-")
    if tag == "O" or (prefix in ("B", "I") and dash and entity_type):
        return prefix, entity_type
    raise UserError(f"the tag {tag!r} is not IOB2; expected O, B-TYPE or I-TYPE")


def _precision_recall_f1(
    num_correct: int, num_predicted: int, num_references: int
) -> tuple[float, float, float]:
    """Computes precision, recall and F1; a ratio with the denominator 0 is 0."""
    precision = float(num_correct / num_predicted) if num_predicted else 0.0
    recall = float(num_correct / num_references) if num_references else 0.0
    # Without a correct entity both are 0, and the division is undefined.
    f1 = 2 * precision * recall / (precision + recall) if num_correct else 0.0
    return precision, recall, f1


def _require_matching_tags(references: Sequence[Tags], predictions: Sequence[Tags]) -> None:
    require_matching_counts("sentences", len(references), len(predictions))
    for row, (tags, predicted_tags) in enumerate(zip(references, predictions, strict=True)):
        if len(tags) != len(predicted_tags):
            raise UserError(
                f"sentence {row} has {len(tags)} reference tags, but {len(predicted_tags)} "
                "predicted ones"
            )
