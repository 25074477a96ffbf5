"""Finds hard negatives: texts that are near to a query, but are not its positives.

The rules are as in `mine_hard_negatives` in sentence-transformers 6, so that recipes can be
taken over. Training on these texts improves sentence encoders and cross-encoders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from bert_jax.apps.search.encoder import DenseEncoder
from bert_jax.apps.search.nearest import Neighbors, exact_neighbors
from bert_jax.errors import ConfigError, UserError, check_range

SamplingStrategy = Literal["top", "random"]
"""Which candidates are used: the nearest ones, or a random sample."""
SAMPLING_STRATEGIES: tuple[SamplingStrategy, ...] = get_args(SamplingStrategy)
_CANDIDATES_FOR_EACH_NEGATIVE = 10


@dataclass(frozen=True, kw_only=True)
class HardNegatives:
    """Configures which neighbors of a query become its negatives.

    Attributes:
      num_negatives: negatives for each pair; a pair has fewer if fewer candidates remain.
      range_min: number of nearest candidates that are left out, which may be unlabeled positives.
      range_max: number of nearest candidates that are considered; None for enough of them.
      absolute_margin: how much smaller the score of a negative is than the positive's.
      relative_margin: the same as a fraction of the score of the positive.
      max_score, min_score: bounds of the score of a negative.
      sampling: which of the remaining candidates are used.
      seed: of the random sample.
    """

    num_negatives: int = 3
    range_min: int = 0
    range_max: int | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    sampling: SamplingStrategy = "top"
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("--num-negatives", self.num_negatives, at_least=1)
        check_range("--range-min", self.range_min, at_least=0)
        if self.sampling not in SAMPLING_STRATEGIES:
            raise ConfigError(
                f"--sampling is {self.sampling!r}; expected {' or '.join(SAMPLING_STRATEGIES)}"
            )
        if self.range_max is not None and self.range_max < self.range_min + self.num_negatives:
            raise ConfigError(
                f"--range-max is {self.range_max}, but --range-min {self.range_min} leaves out "
                f"that many candidates and --num-negatives is {self.num_negatives}; expected at "
                f"least {self.range_min + self.num_negatives}"
            )

    def num_candidates(self, max_positives: int) -> int:
        """Returns how many of the nearest candidates of a query are considered.

        Args:
          max_positives: the largest number of positives of a query.
        """
        if self.range_max is not None:
            return self.range_max
        bounds = (self.absolute_margin, self.relative_margin, self.max_score)
        has_bound = any(bound is not None for bound in bounds)
        factor = _CANDIDATES_FOR_EACH_NEGATIVE if has_bound else 1
        return self.range_min + self.num_negatives * factor + max_positives


class Triple(NamedTuple):
    """Holds a query, a text that is relevant to it, and one that is not."""

    anchor: str
    positive: str
    negative: str


def find_hard_negatives(
    pairs: Sequence[tuple[str, str]],
    encoder: DenseEncoder,
    config: HardNegatives,
    corpus: Sequence[str] = (),
) -> list[Triple]:
    """Returns triples of (query, positive) pairs with their negatives, in the order of the queries.

    All positives of a query, which may occur in several pairs, are excluded. With several
    positives, margins count from the one with the smallest score.

    Args:
      corpus: texts that may be negatives, in addition to the positives of other queries.

    Raises:
      UserError: there are no pairs, or a vector is not finite.
    """
    if not pairs:
        raise UserError("there are no pairs of a query and a positive; expected at least one")
    texts = list(dict.fromkeys([*corpus, *(positive for _, positive in pairs)]))
    row_of_text = {text: row for row, text in enumerate(texts)}
    positives: dict[str, list[int]] = {}
    for query, positive in pairs:
        rows = positives.setdefault(query, [])
        if row_of_text[positive] not in rows:
            rows.append(row_of_text[positive])
    queries = list(positives)
    max_positives = max(map(len, positives.values()))
    num_candidates = config.num_candidates(max_positives)
    queries_QD, texts_ND = encoder.encode_queries(queries), encoder.encode_documents(texts)
    top_k = min(num_candidates + max_positives, len(texts))
    found = exact_neighbors(queries_QD, texts_ND, top_k)
    rng = np.random.default_rng(config.seed)
    triples = []
    for index, (query, positive_rows) in enumerate(positives.items()):
        positive_scores = texts_ND[positive_rows] @ queries_QD[index]
        neighbors = Neighbors(found.rows[index], found.scores[index])
        negatives = _choose(neighbors, positive_rows, positive_scores, num_candidates, config, rng)
        for positive in positive_rows:
            triples += [Triple(query, texts[positive], texts[row]) for row in negatives]
    return triples


def _choose(
    neighbors: Neighbors,
    positive_rows: Sequence[int],
    positive_scores: np.ndarray,
    num_candidates: int,
    config: HardNegatives,
    rng: np.random.Generator,
) -> list[int]:
    """Returns the rows of the negatives of one query, the nearest first."""
    rows, scores = neighbors.rows, neighbors.scores
    allowed = ~np.isin(rows, positive_rows)
    smallest = float(positive_scores.min())
    if config.absolute_margin is not None:
        allowed &= scores + config.absolute_margin <= smallest
    if config.relative_margin is not None:
        # The absolute value: for a negative score, (1 - margin) times it would be larger.
        allowed &= scores <= smallest - abs(smallest) * config.relative_margin
    if config.max_score is not None:
        allowed &= scores <= config.max_score
    if config.min_score is not None:
        allowed &= scores >= config.min_score
    candidates = rows[allowed][config.range_min : num_candidates]
    if config.sampling == "random" and len(candidates) > config.num_negatives:
        chosen = rng.choice(len(candidates), config.num_negatives, replace=False)
        candidates = candidates[np.sort(chosen)]
    return candidates[: config.num_negatives].tolist()
