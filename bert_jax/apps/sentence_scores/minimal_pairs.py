"""Measures how often a model finds the acceptable sentence of a minimal pair more probable.

BLiMP (Warstadt et al. 2020) has 67 paradigms of 1,000 pairs each, in 12 phenomena. Any table with
two columns of sentences can be read in the same way.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.apps.sentence_scores.scorer import SentenceScore, SentenceScorer
from bert_jax.data.finetuning.readers.columns import cell_text, require_columns
from bert_jax.data.finetuning.readers.tabular_files import read_table
from bert_jax.errors import UserError

logger = logging.getLogger(__name__)

ALL = "all"
"""The group of all pairs of a file that has no column of groups."""


class MinimalPair(NamedTuple):
    """Holds two sentences, of which the first is acceptable, with their file and phenomenon."""

    good: str
    bad: str
    paradigm: str
    group: str


BLIMP_GROUP = "linguistics_term"
"""The column of BLiMP with the phenomenon of a pair."""


class PairColumns(NamedTuple):
    """Names the columns of a table of minimal pairs; the default names are BLiMP's.

    Attributes:
      good, bad: the acceptable sentence and the other one.
      group: what a pair tests; None for BLiMP's phenomena, or one group in other files.
    """

    good: str = "sentence_good"
    bad: str = "sentence_bad"
    group: str | None = None


class Accuracy(NamedTuple):
    """Holds the accuracy of a group of pairs.

    Attributes:
      value: the fraction of pairs whose acceptable sentence is more probable; half for a tie. For
        several paradigms, the mean of their accuracies.
      low, high: the limits of a 95 % interval over the pairs.
      pairs: the number of pairs.
    """

    value: float
    low: float
    high: float
    pairs: int


def read_pairs(
    files: Sequence[str],
    columns: PairColumns = PairColumns(),  # noqa: B008 (frozen)
    *,
    limit: int | None = None,
) -> list[MinimalPair]:
    """Reads tables of minimal pairs; the paradigm of a pair is the name of its file.

    Args:
      limit: the number of pairs that are read from the start of each file; None for all.

    Raises:
      UserError: a file is damaged, has no such column (named), or a sentence is empty.
    """
    pairs: list[MinimalPair] = []
    ties: list[str] = []
    for file in files:
        table = read_table(file)
        require_columns(table, file, columns)
        paradigm = Path(file).name.split(".")[0]
        group_column = columns.group
        if group_column is None and BLIMP_GROUP in table.columns:
            group_column = BLIMP_GROUP
        for row in table.rows[:limit]:
            good = cell_text(row, columns.good, "acceptable sentence")
            bad = cell_text(row, columns.bad, "unacceptable sentence")
            if good == bad:
                ties.append(row.location)
            group = ALL if group_column is None else cell_text(row, group_column, "group")
            pairs.append(MinimalPair(good, bad, paradigm, group))
    if not pairs:
        raise UserError(f"{', '.join(files)}: no pairs; expected at least one")
    if ties:
        # BLiMP itself has seven such pairs, so they are not an error.
        logger.warning(
            "%s of %s pairs have two equal sentences and count as half right, the first in %s",
            f"{len(ties):,}",
            f"{len(pairs):,}",
            ties[0],
        )
    return pairs


class PairScores(NamedTuple):
    """Holds the log-probabilities of both sentences of each pair, and their numbers of tokens."""

    pairs: Sequence[MinimalPair]
    good: Sequence[SentenceScore]
    bad: Sequence[SentenceScore]

    def credits(self) -> np.ndarray:
        """Returns float64 [n]: 1 if the acceptable sentence is more probable, 0.5 for a tie."""
        good, bad = (
            np.array([score.log_probability for score in scores])
            for scores in (self.good, self.bad)
        )
        return np.where(good == bad, 0.5, good > bad)

    def num_unequal(self) -> int:
        """Returns how many pairs have sentences of different numbers of tokens."""
        return sum(
            len(good.tokens) != len(bad.tokens)
            for good, bad in zip(self.good, self.bad, strict=True)
        )


def score_pairs(
    scorer: SentenceScorer,
    pairs: Sequence[MinimalPair],
    on_progress: Callable[[int], object] | None = None,
) -> PairScores:
    """Scores both sentences of each pair; a sentence that occurs several times is scored once.

    Args:
      on_progress: called with the number of pairs that are finished, once in a while.

    Raises:
      UserError: a sentence is longer than the model allows.
    """
    texts = list(dict.fromkeys(text for pair in pairs for text in pair[:2]))

    def report(num_texts: int) -> None:
        if on_progress is not None:
            on_progress(num_texts * len(pairs) // len(texts))

    scores = dict(zip(texts, scorer(texts, report), strict=True))
    return PairScores(pairs, *([scores[pair[side]] for pair in pairs] for side in (0, 1)))


def accuracies(scores: PairScores) -> dict[str, dict[str, Accuracy]]:
    """Computes the accuracy of each paradigm, of each group and of all.

    Returns:
      {"paradigms": {name: Accuracy}, "groups": {name: Accuracy}, "all": {"all": Accuracy}}. As in
      BLiMP, paradigms count equally in a group, whatever their numbers of pairs.
    """
    credits = scores.credits()
    by_paradigm: dict[tuple[str, str], list[float]] = {}
    for pair, credit in zip(scores.pairs, credits, strict=True):
        by_paradigm.setdefault((pair.group, pair.paradigm), []).append(float(credit))
    groups: dict[str, list[list[float]]] = {}
    for (group, _), values in by_paradigm.items():
        groups.setdefault(group, []).append(values)
    names = Counter(paradigm for _, paradigm in by_paradigm)
    return {
        "paradigms": {
            paradigm if names[paradigm] == 1 else f"{paradigm}/{group}": mean_accuracy([values])
            for (group, paradigm), values in by_paradigm.items()
        },
        "groups": {group: mean_accuracy(values) for group, values in groups.items()},
        ALL: {ALL: mean_accuracy(list(by_paradigm.values()))},
    }


def mean_accuracy(paradigms: Sequence[Sequence[float]]) -> Accuracy:
    """Returns the mean over paradigms of their accuracies, with a 95 % interval.

    A single paradigm has Wilson's interval. Several have the normal interval of a stratified
    sample: the variance is the sum of theirs, divided by the square of their number.
    """
    counts = [len(values) for values in paradigms]
    means = [float(np.mean(values)) for values in paradigms]
    value, z = float(np.mean(means)), 1.959964
    if len(paradigms) == 1:
        n = counts[0]
        center = (value + z * z / (2 * n)) / (1 + z * z / n)
        margin = z * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return Accuracy(value, center - margin, center + margin, n)
    variance = sum(p * (1 - p) / n for p, n in zip(means, counts, strict=True))
    margin = z * math.sqrt(variance) / len(paradigms)
    return Accuracy(value, max(value - margin, 0.0), min(value + margin, 1.0), sum(counts))


def read_published(file: str, pairs: Sequence[MinimalPair]) -> dict[str, dict[str, float]]:
    """Reads the accuracies of other systems on BLiMP, as in its raw_results/summary.

    Args:
      file: JSON lines with UID, linguistics_term and a number for each system.
      pairs: the pairs that were scored; only their paradigms are counted.

    Returns:
      System -> {group or "all": mean accuracy over paradigms}.

    Raises:
      UserError: the file is damaged or lacks a paradigm.
    """
    table = read_table(file)
    require_columns(table, file, ["UID", "linguistics_term"])
    by_uid = {str(row.cells["UID"]): row.cells for row in table.rows}
    paradigms = sorted({(pair.paradigm, pair.group) for pair in pairs})
    if missing := [name for name, _ in paradigms if name not in by_uid]:
        raise UserError(
            f"{file}: no results for {', '.join(missing[:3])}; expected BLiMP's files, such as "
            f"{next(iter(by_uid), '')}.jsonl"
        )
    systems = [name for name in table.columns if name not in ("UID", "linguistics_term")]
    found: dict[str, dict[str, float]] = {}
    for system in systems:
        values: dict[str, list[float]] = {}
        for paradigm, group in paradigms:
            number = by_uid[paradigm].get(system)
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise UserError(
                    f"{file}: the accuracy of {system!r} on {paradigm} is {number!r}; expected a "
                    "number from 0 to 1"
                )
            for name in dict.fromkeys((group, ALL)):
                values.setdefault(name, []).append(number)
        found[system] = {name: float(np.mean(numbers)) for name, numbers in values.items()}
    return found


def to_json(found: Mapping[str, Mapping[str, Accuracy]], scores: PairScores) -> dict[str, Any]:
    """Returns the result as JSON values."""
    return {
        **{
            kind: {name: accuracy._asdict() for name, accuracy in by_name.items()}
            for kind, by_name in found.items()
        },
        "pairs_with_unequal_numbers_of_tokens": scores.num_unequal(),
        "credits": scores.credits().tolist(),  # of each pair, in the order of the files
    }
