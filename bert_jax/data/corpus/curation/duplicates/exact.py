"""Drops documents that are equal but for case, white space and compatible characters."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.data.corpus.curation.corpus import Corpus, Decision
from bert_jax.data.corpus.curation.workers import Workers


@dataclass(frozen=True, kw_only=True)
class ExactDuplicates:
    """Drops documents that are equal but for case, white space and compatible characters.

    The first one is kept, in the order of the input: sources by priority, then files by name.
    """

    REASON: ClassVar[str] = "duplicate document"

    def decide(self, corpus: Corpus, workers: Workers) -> None:
        """Writes the decisions about each work unit."""
        del workers
        first: dict[str, str] = {}
        for unit in range(corpus.num_units):
            decisions: dict[int, Decision] = {}
            for document in corpus.documents(unit):
                twin = first.setdefault(document.match_key, document.id)
                if twin != document.id:
                    decisions[document.index] = Decision(reason=self.REASON, twin=twin)
            corpus.write_decisions(unit, decisions)
