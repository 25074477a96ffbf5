"""Tagging: from logits to tags, from tags to entities, and how well entities are found.

Tags are IOB2: "B-PER" begins an entity of type PER, "I-PER" goes on with it, "O" is outside. They
are read as conlleval reads them (Tjong Kim Sang and De Meulder 2003): an "I-" that continues
nothing begins an entity. An entity is found when its words and its type are both right.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.evals.classification import ClassScores
from bert_jax.evals.validate_inputs import require_finite, require_matching_counts

Tags = Sequence[str]


class Entity(NamedTuple):
    """Words [start, end) of a sentence, of one type."""

    type: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityErrors:
    """What became of the entities of one type.

    correct + wrong_type + wrong_boundary + missed is their number in the gold tags. One predicted
    entity explains at most one gold entity.
    """

    type: str
    correct: int = 0
    wrong_type: int = 0  # the right words, taken for another type
    wrong_boundary: int = 0  # the right type on some of the words, or on others as well
    missed: int = 0  # neither
    spurious: int = 0  # predicted as this type, and none of the above


def decode_tags(
    logits: np.ndarray, first_token_positions: np.ndarray, labels: Sequence[str]
) -> list[str]:
    """The tag of each word of one sentence, by the logits of its first piece.

    Args:
      logits: float [L, C].
      first_piece_positions: int [W], where each word's first piece is in the row; -1 for a word
        that was cut off, which gets "O".
      labels: the C tags, in the order of their numbers.

    Returns:
      W tags in valid IOB2: an "I-" that continues nothing becomes "B-".

    Raises:
      UserError: logits that are not numbers, or of another number of classes.
    """
    positions = np.asarray(first_token_positions)
    if logits.shape[1] != len(labels):
        raise UserError(
            f"the model's head has {logits.shape[1]} tags, but {len(labels)} are named: "
            f"{', '.join(labels)}"
        )
    word_logits = logits[np.maximum(positions, 0)]
    require_finite("the logits", np.where(positions[:, None] < 0, 0, word_logits))
    class_ids = word_logits.argmax(axis=1)
    return repair_iob2(
        ["O" if p < 0 else labels[int(c)] for p, c in zip(positions, class_ids, strict=True)]
    )


def repair_iob2(tags: Tags) -> list[str]:
    """The same entities as valid IOB2: an "I-" that continues nothing becomes "B-"."""
    repaired, previous = [], ""
    for tag in tags:
        prefix, entity_type = _split_tag(tag)
        repaired.append(f"B-{entity_type}" if prefix == "I" and entity_type != previous else tag)
        previous = entity_type
    return repaired


def entity_spans(tags: Tags) -> list[Entity]:
    """The entities of one sentence, from left to right.

    Raises:
      UserError: a tag that is not "O", "B-..." or "I-...".
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
    """The types that occur in any of these lists of sentences, sorted."""
    tags = {tag for tagged in sentences for sentence in tagged for tag in sentence}
    return tuple(sorted({entity_type for tag in tags if (entity_type := _split_tag(tag)[1])}))


def entity_counts(
    references: Sequence[Tags], predictions: Sequence[Tags], types: Sequence[str]
) -> np.ndarray:
    """int64 [n, types, 3]: entities found, predicted and in the gold tags, by sentence and type.

    Sums over sentences give every entity metric, which is how a bootstrap stays cheap.

    Raises:
      UserError: no sentences, or a tag that is not IOB2.
    """
    _require_matching_tags(references, predictions)
    type_index = {entity_type: index for index, entity_type in enumerate(types)}
    counts = np.zeros((len(references), len(types), 3), np.int64)
    for row, (reference_tags, predicted_tags) in enumerate(
        zip(references, predictions, strict=True)
    ):
        reference_entities, predicted_entities = (
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
    """int64 [n, 2]: words whose tag is right, and words, by sentence."""
    _require_matching_tags(references, predictions)
    return np.array(
        [
            [sum(g == p for g, p in zip(tags, predicted_tags, strict=True)), len(tags)]
            for tags, predicted_tags in zip(references, predictions, strict=True)
        ],
        np.int64,
    )


def entity_scores(counts: np.ndarray) -> dict[str, float]:
    """precision, recall, f1 (micro) and f1_macro from what `entity_counts` gives.

    The macro mean is over the types that occur, as seqeval takes it.
    """
    by_type = counts.sum(axis=0)
    precision, recall, f1 = _precision_recall_f1(*by_type.sum(axis=0))
    macro = [_precision_recall_f1(*row)[2] for row in by_type if row.any()]
    f1_macro = float(np.mean(macro)) if macro else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "f1_macro": f1_macro}


def token_accuracy(counts: np.ndarray) -> float:
    """Share of words whose tag is right, from what `token_counts` gives."""
    num_correct, num_words = counts.sum(axis=0)
    return float(num_correct / num_words) if num_words else 0.0


def entity_metrics(references: Sequence[Tags], predictions: Sequence[Tags]) -> dict[str, float]:
    """precision, recall, f1 (micro), f1_macro of entities, and token_accuracy.

    Args:
      gold: the right tags of n sentences.
      predicted: as many for each sentence.

    Raises:
      UserError: no sentences, another number of tags than words, or a tag that is not IOB2.
    """
    counts = entity_counts(references, predictions, entity_types(references, predictions))
    return {
        **entity_scores(counts),
        "token_accuracy": token_accuracy(token_counts(references, predictions)),
    }


def entity_table(
    references: Sequence[Tags], predictions: Sequence[Tags]
) -> tuple[ClassScores, ...]:
    """Precision, recall, F1 and support of each entity type that occurs, sorted by name."""
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
    """What went wrong with the entities of each type that occurs, sorted by name."""
    _require_matching_tags(references, predictions)
    counts_by_type = {
        entity_type: Counter() for entity_type in entity_types(references, predictions)
    }
    for reference_tags, predicted_tags in zip(references, predictions, strict=True):
        reference_entities, predicted_entities = (
            entity_spans(reference_tags),
            entity_spans(predicted_tags),
        )
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


# How a predicted entity can explain a gold one, the best way first.
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
    """("B", "PER") for "B-PER"; ("O", "") for "O"."""
    prefix, dash, entity_type = tag.partition("-")
    if tag == "O" or (prefix in ("B", "I") and dash and entity_type):
        return prefix, entity_type
    raise UserError(f"the tag {tag!r} is not IOB2; expected O, B-TYPE or I-TYPE")


def _precision_recall_f1(
    num_correct: int, num_predicted: int, num_references: int
) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 where there is nothing to divide by."""
    precision = float(num_correct / num_predicted) if num_predicted else 0.0
    recall = float(num_correct / num_references) if num_references else 0.0
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
