"""Reads the texts of a collection: lines of text, JSON lines with ids and titles, SQuAD, BEIR.

A retrieval set has queries and the documents that are relevant to them as well. Two formats are
read: BEIR's folder (Thakur et al. 2021), and SQuAD's JSON, where the question is the query and its
paragraph is the relevant document.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.config.labeled_data import Squad
from bert_jax.data.finetuning.example import QuestionExample
from bert_jax.data.finetuning.readers.squad import read_squad
from bert_jax.data.finetuning.readers.tabular_files import read_tsv
from bert_jax.errors import ConfigError, UserError, describe_folder
from bert_jax.tasks.metrics.retrieval import Relevance
from bert_jax.text.files import expand_globs, read_documents, read_json_objects, uncompressed_name

_BEIR_SPLITS = ("test", "dev", "train")


class Document(NamedTuple):
    """Holds a text of a collection and its id."""

    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RetrievalSet:
    """Holds documents, queries, and which documents are relevant to which query.

    Attributes:
      name: for tables, such as "squad:dev-v1.1.json".
      documents: in the order of the file.
      queries: query id -> text; only queries with a relevant document.
      relevance: query id -> document id -> relevance above 0.
      ignores_own_document: whether the document with the id of a query is not a result for it; so
        in BEIR, where queries of some sets are documents.
    """

    name: str
    documents: tuple[Document, ...]
    queries: Mapping[str, str]
    relevance: Relevance
    ignores_own_document: bool = False


def read_collection(
    patterns: Sequence[str],
    *,
    encoding: str | None = None,
    errors: str | None = None,
    keep_empty: bool = False,
) -> Iterator[Document]:
    """Yields the documents of files, in the order of the sorted file names.

    A `.jsonl` file has an object with "text" on each line; "_id" or "id" is the id, and a "title"
    is put in front of the text, as in BEIR. Any other file has a text on each line. A document
    without an id gets "file name:line number".

    Args:
      patterns: names of files and glob patterns, also of `.gz` files.
      encoding, errors: as in `read_text`.
      keep_empty: whether objects without text are documents; they are left out by default, as
        empty lines always are.

    Raises:
      UserError: a pattern matches no file, a file cannot be read, a field is not text, or an id
        occurs twice.
    """
    location_by_id: dict[str, str] = {}
    for path in expand_globs(patterns):
        for location, document in _read_file(path, encoding, errors, keep_empty):
            if document.id in location_by_id:
                raise UserError(
                    f"{location}: the id {document.id!r} is already used in "
                    f"{location_by_id[document.id]}; expected different ids"
                )
            location_by_id[document.id] = location
            yield document


def _read_file(
    path: str, encoding: str | None, errors: str | None, keep_empty: bool
) -> Iterator[tuple[str, Document]]:
    if Path(uncompressed_name(path)).suffix not in (".jsonl", ".ndjson"):
        for key, text in read_documents(
            path, document_unit="line", encoding=encoding, errors=errors
        ):
            yield f"{path}, line {key.rpartition(':')[2]}", Document(key, text.strip())
        return
    for number, record in read_json_objects(path, encoding=encoding, errors=errors):
        location = f"{path}, line {number}"
        text = f"{_field(record, 'title', location)} {_field(record, 'text', location)}".strip()
        if "text" not in record:
            raise UserError(
                f"{location}: no field 'text' (found {', '.join(record) or 'none'}); expected the "
                "text, and optionally '_id' and 'title'"
            )
        if text or keep_empty:
            yield (
                location,
                Document(_record_id(record, location, f"{Path(path).name}:{number}"), text),
            )


def _field(record: Mapping[str, Any], name: str, location: str) -> str:
    value = record.get(name) or ""
    if not isinstance(value, str):
        raise UserError(
            f"{location}: the field {name!r} is a {type(value).__name__}; expected text"
        )
    return value


def _record_id(record: Mapping[str, Any], location: str, default: str) -> str:
    value = record.get("_id", record.get("id", default))
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise UserError(f"{location}: the id is {value!r}; expected text or a whole number")
    return str(value)


def read_retrieval_set(name: str) -> RetrievalSet:
    """Reads `squad:FILE` or `beir:FOLDER`.

    Raises:
      ConfigError: the name has another form.
      UserError: a file is missing or damaged, or no query has a relevant document.
    """
    form, _, path = name.partition(":")
    if form not in ("squad", "beir") or not path:
        raise ConfigError(f"{name!r} is not a retrieval set; expected squad:FILE or beir:FOLDER")
    return _read_squad(path) if form == "squad" else _read_beir(Path(path))


def _read_squad(path: str) -> RetrievalSet:
    """Makes each different paragraph a document; questions without an answer are left out."""
    ids: dict[str, str] = {}
    queries: dict[str, str] = {}
    relevance: dict[str, dict[str, int]] = {}
    for example in read_squad(Squad(test=path, version="2.0")).splits["test"]:
        assert isinstance(example, QuestionExample)
        # SQuAD repeats a paragraph for each of its questions; as several documents they would
        # compete with each other.
        document_id = ids.setdefault(example.context, str(len(ids)))
        if example.answers:
            queries[example.id] = example.question
            relevance[example.id] = {document_id: 1}
    if not queries:
        raise UserError(f"{path}: no question has an answer; expected questions with answers")
    documents = tuple(Document(document_id, text) for text, document_id in ids.items())
    return RetrievalSet(
        name=f"squad:{path}", documents=documents, queries=queries, relevance=relevance
    )


def _read_beir(folder: Path) -> RetrievalSet:
    """Reads corpus.jsonl, queries.jsonl and qrels/test.tsv (or dev, or train)."""
    judgments = [folder / "qrels" / f"{split}.tsv" for split in _BEIR_SPLITS]
    qrels = next(filter(Path.is_file, judgments), None)
    if qrels is None or not (folder / "corpus.jsonl").is_file():
        raise UserError(
            f"{folder}: {describe_folder(folder)}; expected the layout of BEIR: corpus.jsonl, "
            "queries.jsonl and qrels/test.tsv (or dev.tsv, or train.tsv)"
        )
    # Documents without text stay, because judgments may name them.
    documents = tuple(read_collection([str(folder / "corpus.jsonl")], keep_empty=True))
    texts = {query.id: query.text for query in read_collection([str(folder / "queries.jsonl")])}
    relevance = _read_qrels(qrels, {document.id for document in documents}, texts)
    if not relevance:
        raise UserError(f"{qrels}: no document is relevant to a query; expected scores above 0")
    return RetrievalSet(
        name=f"beir:{folder}",
        documents=documents,
        queries={query: texts[query] for query in relevance},
        relevance=relevance,
        ignores_own_document=True,
    )


def _read_qrels(
    path: Path, document_ids: Iterable[str], query_ids: Iterable[str]
) -> dict[str, dict[str, int]]:
    """Reads query-id, corpus-id and score of each line; scores of 0 are left out."""
    known_documents, known_queries = set(document_ids), set(query_ids)
    relevance: dict[str, dict[str, int]] = {}
    # BEIR's files have no quoting: a quotation mark is part of the id.
    table = read_tsv(str(path), quotes="literal")
    if table.columns[:3] != ("query-id", "corpus-id", "score"):
        raise UserError(
            f"{path}: the columns are {', '.join(table.columns)}; expected query-id, corpus-id and "
            "score"
        )
    for row in table.rows:
        query, document, score = (row.cells[name] for name in table.columns[:3])
        try:
            grade = int(score)
        except ValueError:
            raise UserError(
                f"{row.location}: the score is {score!r}; expected a whole number"
            ) from None
        if grade <= 0:
            continue
        if query not in known_queries or document not in known_documents:
            missing = f"query {query!r}" if query not in known_queries else f"document {document!r}"
            raise UserError(
                f"{row.location}: there is no {missing} in the files of this folder; copy the "
                "whole data set again"
            )
        relevance.setdefault(query, {})[document] = grade
    return relevance
