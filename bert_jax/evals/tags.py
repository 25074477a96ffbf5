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
from bert_jax.evals.checks import require_numbers, require_rows
from bert_jax.evals.classification import ClassScores

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
    logits: np.ndarray, first_piece_positions: np.ndarray, labels: Sequence[str]
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
    positions = np.asarray(first_piece_positions)
    if logits.shape[1] != len(labels):
        raise UserError(
            f"the model's head has {logits.shape[1]} tags, but {len(labels)} are named: "
            f"{', '.join(labels)}"
        )
    chosen = logits[np.maximum(positions, 0)]
    require_numbers("the logits", np.where(positions[:, None] < 0, 0, chosen))
    classes = chosen.argmax(axis=1)
    return repair_iob2(
        ["O" if p < 0 else labels[int(c)] for p, c in zip(positions, classes, strict=True)]
    )


def repair_iob2(tags: Tags) -> list[str]:
    """The same entities as valid IOB2: an "I-" that continues nothing becomes "B-"."""
    repaired, previous = [], ""
    for tag in tags:
        prefix, kind = _parts(tag)
        repaired.append(f"B-{kind}" if prefix == "I" and kind != previous else tag)
        previous = kind
    return repaired


def entity_spans(tags: Tags) -> list[Entity]:
    """The entities of one sentence, from left to right.

    Raises:
      UserError: a tag that is not "O", "B-..." or "I-...".
    """
    entities: list[Entity] = []
    previous = ""
    for place, tag in enumerate(tags):
        prefix, kind = _parts(tag)
        if prefix == "B" or (kind and kind != previous):
            entities.append(Entity(kind, place, place + 1))
        elif kind:
            entities[-1] = entities[-1]._replace(end=place + 1)
        previous = kind
    return entities


def entity_types(*sentences: Sequence[Tags]) -> tuple[str, ...]:
    """The types that occur in any of these lists of sentences, sorted."""
    tags = {tag for tagged in sentences for sentence in tagged for tag in sentence}
    return tuple(sorted({kind for tag in tags if (kind := _parts(tag)[1])}))


def entity_counts(
    gold: Sequence[Tags], predicted: Sequence[Tags], types: Sequence[str]
) -> np.ndarray:
    """int64 [n, types, 3]: entities found, predicted and in the gold tags, by sentence and type.

    Sums over sentences give every entity metric, which is how a bootstrap stays cheap.

    Raises:
      UserError: no sentences, or a tag that is not IOB2.
    """
    _require_pairs(gold, predicted)
    number = {kind: place for place, kind in enumerate(types)}
    counts = np.zeros((len(gold), len(types), 3), np.int64)
    for row, (gold_tags, predicted_tags) in enumerate(zip(gold, predicted, strict=True)):
        wanted, given = set(entity_spans(gold_tags)), set(entity_spans(predicted_tags))
        for column, entities in enumerate((wanted & given, given, wanted)):
            for entity in entities:
                counts[row, number[entity.type], column] += 1
    return counts


def token_counts(gold: Sequence[Tags], predicted: Sequence[Tags]) -> np.ndarray:
    """int64 [n, 2]: words whose tag is right, and words, by sentence."""
    _require_pairs(gold, predicted)
    return np.array(
        [
            [sum(g == p for g, p in zip(tags, guesses, strict=True)), len(tags)]
            for tags, guesses in zip(gold, predicted, strict=True)
        ],
        np.int64,
    )


def entity_scores(counts: np.ndarray) -> dict[str, float]:
    """precision, recall, f1 (micro) and f1_macro from what `entity_counts` gives.

    The macro mean is over the types that occur, as seqeval takes it.
    """
    by_type = counts.sum(axis=0)
    precision, recall, f1 = _ratios(*by_type.sum(axis=0))
    macro = [_ratios(*row)[2] for row in by_type if row.any()]
    f1_macro = float(np.mean(macro)) if macro else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "f1_macro": f1_macro}


def token_accuracy(counts: np.ndarray) -> float:
    """Share of words whose tag is right, from what `token_counts` gives."""
    right, words = counts.sum(axis=0)
    return float(right / words) if words else 0.0


def entity_metrics(gold: Sequence[Tags], predicted: Sequence[Tags]) -> dict[str, float]:
    """precision, recall, f1 (micro), f1_macro of entities, and token_accuracy.

    Args:
      gold: the right tags of n sentences.
      predicted: as many for each sentence.

    Raises:
      UserError: no sentences, another number of tags than words, or a tag that is not IOB2.
    """
    counts = entity_counts(gold, predicted, entity_types(gold, predicted))
    return {
        **entity_scores(counts),
        "token_accuracy": token_accuracy(token_counts(gold, predicted)),
    }


def entity_table(gold: Sequence[Tags], predicted: Sequence[Tags]) -> tuple[ClassScores, ...]:
    """Precision, recall, F1 and support of each entity type that occurs, sorted by name."""
    types = entity_types(gold, predicted)
    rows = []
    for kind, row in zip(types, entity_counts(gold, predicted, types).sum(axis=0), strict=True):
        precision, recall, f1 = _ratios(*row)
        support = int(row[2])
        rows.append(
            ClassScores(name=kind, precision=precision, recall=recall, f1=f1, support=support)
        )
    return tuple(rows)


def entity_errors(gold: Sequence[Tags], predicted: Sequence[Tags]) -> tuple[EntityErrors, ...]:
    """What went wrong with the entities of each type that occurs, sorted by name."""
    _require_pairs(gold, predicted)
    tally = {kind: Counter() for kind in entity_types(gold, predicted)}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        wanted, given = entity_spans(gold_tags), entity_spans(predicted_tags)
        for outcome, explains in _OUTCOMES.items():
            for entity in list(wanted):
                guess = next((g for g in given if explains(entity, g)), None)
                if guess:
                    tally[entity.type][outcome] += 1
                    wanted.remove(entity)
                    given.remove(guess)
        for entity in wanted:
            tally[entity.type]["missed"] += 1
        for guess in given:
            tally[guess.type]["spurious"] += 1
    return tuple(EntityErrors(type=kind, **counts) for kind, counts in tally.items())


# How a predicted entity can explain a gold one, the best way first.
_OUTCOMES = {
    "correct": lambda entity, guess: entity == guess,
    "wrong_type": lambda entity, guess: entity[1:] == guess[1:],
    "wrong_boundary": lambda entity, guess: (
        entity.type == guess.type and entity.start < guess.end and guess.start < entity.end
    ),
}


def _parts(tag: str) -> tuple[str, str]:
    """("B", "PER") for "B-PER"; ("O", "") for "O"."""
    prefix, dash, kind = tag.partition("-")
    if tag == "O" or (prefix in ("B", "I") and dash and kind):
        return prefix, kind
    raise UserError(f"the tag {tag!r} is not IOB2; expected O, B-TYPE or I-TYPE")


def _ratios(found: int, predicted: int, gold: int) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 where there is nothing to divide by."""
    precision = float(found / predicted) if predicted else 0.0
    recall = float(found / gold) if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if found else 0.0
    return precision, recall, f1


def _require_pairs(gold: Sequence[Tags], predicted: Sequence[Tags]) -> None:
    require_rows("sentences", len(gold), len(predicted))
    for row, (tags, guesses) in enumerate(zip(gold, predicted, strict=True)):
        if len(tags) != len(guesses):
            raise UserError(
                f"sentence {row} has {len(tags)} gold tags, but {len(guesses)} predicted ones"
            )
