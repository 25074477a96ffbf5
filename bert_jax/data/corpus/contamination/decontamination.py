"""Searches evaluation items in all documents of a corpus, reports them, and removes them.

The first pass counts in how many documents and sources each n-gram of the items occurs; the second
finds the items in the documents that have any of these n-grams, without the common ones. Counts are
integers that are added up, so the result depends on neither the order nor the number of workers.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_jax.atomic_io import atomic_path, make_folder, write_json
from bert_jax.data.corpus.contamination.config import (
    Action,
    DropDocuments,
    EvaluationSet,
    FileItems,
)
from bert_jax.data.corpus.contamination.index import ContaminationIndex, common_ngrams
from bert_jax.data.corpus.contamination.items import read_items
from bert_jax.data.corpus.contamination.passes import (
    common_path,
    items_path,
    load_index,
    read_counts,
    read_found,
    write_counts,
    write_found,
    write_items,
)
from bert_jax.data.corpus.contamination.summary import item_rows, summarize
from bert_jax.data.corpus.contamination.tables import (
    ITEMS_FILE,
    MATCHES_FILE,
    SUMMARY_FILE,
    ItemRow,
    MatchRow,
    write_rows,
)
from bert_jax.data.corpus.curation.corpus import Corpus, Decision
from bert_jax.data.corpus.curation.workers import Workers
from bert_jax.data.finetuning.config import Glue
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.errors import ConfigError, UserError, check_range


@dataclass(frozen=True, kw_only=True)
class Decontamination:
    """Searches the items of evaluation sets in all documents of a corpus.

    Contexts are reported and never removed, since BERT's own corpus has the articles of SQuAD. The
    same holds for items of a split "train", which are no test.

    Attributes:
      sets: the evaluation sets.
      action: what is done with documents that contain an input.
      max_changed: the largest fraction of the documents that may be dropped or changed; more is an
        error, if more than 10 documents would change. Soldaini et al. 2024 (Dolma) stop at the same
        fraction.
      max_documents: an n-gram in at least this many documents, from at least three sources (all, if
        there are fewer), is a common phrase and ignored. Below 200 documents the limit is 5 % of
        the documents, at least 3.
    """

    FEW_DOCUMENTS: ClassVar[int] = 10

    sets: tuple[EvaluationSet, ...]
    action: Action = DropDocuments()  # noqa: RUF009 (frozen)
    max_changed: float = 0.001
    max_documents: int = 10

    def __post_init__(self) -> None:
        if not self.sets:
            raise ConfigError("decontamination: no evaluation set; expected at least one")
        check_range("max_changed", self.max_changed, at_least=0, at_most=1)
        check_range("max_documents", self.max_documents, at_least=2)

    def input_files(self) -> list[list[Any]]:
        """Returns name, size and time of change of the files of the evaluation sets."""
        paths = sorted(path for each in self.sets for path in _files_of(each))
        stats = [(path, os.stat(path)) for path in paths if os.path.isfile(path)]
        return [[os.path.basename(path), s.st_size, s.st_mtime_ns] for path, s in stats]

    def check_sets(self) -> None:
        """Reads the evaluation sets, so that a wrong file or column is an error before any work.

        Raises:
          UserError: a file cannot be read or does not have a column that is named.
          ConfigError: two sets have one name, or a task does not have a split that is named.
        """
        read_items(self.sets)

    def decide(self, corpus: Corpus, workers: Workers) -> None:
        """Writes the decisions about each work unit, and the three files of the report.

        Raises:
          UserError: an evaluation set cannot be read, or more than `max_changed` of the documents
            would be dropped or changed.
        """
        items = read_items(self.sets)
        write_items(items_path(corpus), items)
        index = load_index(items_path(corpus))
        units = range(corpus.num_units)
        counts = {corpus.path("counts", unit): (corpus, unit) for unit in units}
        workers.write_files(write_counts, counts, description="count n-grams")
        common, documents = self._common_ngrams(corpus, index, list(counts))
        with atomic_path(common_path(corpus)) as path, path.open("wb") as file:
            np.save(file, common)
        found = {corpus.path("found", unit): (corpus, unit, self.action) for unit in units}
        workers.write_files(write_found, found, description="find items")
        rows: list[MatchRow] = []
        decisions = [dict[int, Decision]() for _ in units]
        for unit, path in enumerate(found):
            for index_of_document, decision, matches in read_found(path):
                rows += matches
                if decision is not None:
                    decisions[unit][index_of_document] = decision
        num_documents = sum(read_counts(path)["num_documents"].item() for path in counts)
        self._check_changed(decisions, rows, num_documents)
        output = corpus.output_folder
        make_folder(output)
        of_items = item_rows(index, common, rows)
        write_rows(output / MATCHES_FILE, MatchRow, rows)
        write_rows(output / ITEMS_FILE, ItemRow, of_items)
        summary = summarize(index, of_items, rows, common, documents)
        write_json(output / SUMMARY_FILE, {"documents": num_documents, **summary})
        for unit in units:
            corpus.write_decisions(unit, decisions[unit])

    def _common_ngrams(
        self, corpus: Corpus, index: ContaminationIndex, paths: Sequence[Path]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which n-grams are common phrases, and in how many documents each occurs."""
        by_source: dict[str, np.ndarray] = {}
        num_documents = 0
        for source, path in zip(corpus.sources, paths, strict=True):
            unit = read_counts(path)
            counts = by_source.setdefault(source, np.zeros(index.num_ngrams, np.int64))
            counts[unit["ngrams"]] += unit["counts"]
            num_documents += unit["num_documents"].item()
        documents = np.sum([*by_source.values()], axis=0)
        sources = np.sum([counts > 0 for counts in by_source.values()], axis=0)
        limit = self.max_documents
        return common_ngrams(documents, sources, num_documents, len(by_source), limit), documents

    def _check_changed(
        self, decisions: Sequence[dict[int, Decision]], rows: Iterable[MatchRow], documents: int
    ) -> None:
        """Raises an error if more than `max_changed` of the documents would be changed."""
        changed = sum(map(len, decisions))
        if changed <= max(self.FEW_DOCUMENTS, self.max_changed * documents):
            return
        pairs = {
            (row.set_name, row.document)
            for row in rows
            if row.action != "reported" and row.role == "input"
        }
        sets = Counter(name for name, _ in pairs).most_common(3)
        found = ", ".join(f"{name} ({count:,} documents)" for name, count in sets)
        raise UserError(
            f"{changed:,} of {documents:,} documents contain evaluation items and would be dropped "
            f"or changed, more than max_changed, which is {self.max_changed:.2%}; most are from "
            f"{found}. A source may contain the evaluation set itself: look at it with "
            "action=ReportOnly(), then leave the source out, or raise max_changed"
        )


def _files_of(evaluation_set: EvaluationSet) -> Iterator[str]:
    """Yields the files of an evaluation set, as far as its config names them."""
    if isinstance(evaluation_set, FileItems):
        yield evaluation_set.file
        return
    task = evaluation_set.task
    folder = getattr(task, "folder", None)
    if isinstance(folder, str):
        names = GLUE_TASKS[task.task].folder_names if isinstance(task, Glue) else (".",)
        for path in (Path(folder) / name for name in names):
            yield from (map(str, path.iterdir()) if path.is_dir() else ())
    for field in ("train", "dev", "test", "file"):
        value = getattr(task, field, None)
        if isinstance(value, str):
            yield value
