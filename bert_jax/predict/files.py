"""Files to predict on, as inputs of a `Predictor`; labels in them are not looked at."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from bert_jax.data.labelled.columns import cell_text, read_columns, require_columns
from bert_jax.data.labelled.config import Columns, Conll, Squad, Swag
from bert_jax.data.labelled.conll import read_conll
from bert_jax.data.labelled.example import QuestionExample
from bert_jax.data.labelled.squad import read_squad
from bert_jax.data.labelled.swag import read_swag
from bert_jax.data.labelled.tables import ENDINGS, read_table
from bert_jax.data.labelled.task import Kind
from bert_jax.errors import ConfigError, UserError
from bert_jax.predict.inputs import Input
from bert_jax.text.files import read_documents

Format = Literal["lines", "table", "conll", "squad", "swag"]
FORMATS: tuple[Format, ...] = get_args(Format)
CONLL_ENDINGS = (".conll", ".iob", ".iob2", ".bio")

# The columns that a table's rows are read from, and their names where none are given.
_COLUMNS: dict[Kind, dict[str, str | None]] = {
    "classification": {"text": "text", "text_pair": None, "id": None},
    "regression": {"text": "text", "text_pair": None, "id": None},
    "tagging": {"text": "text", "id": None},
    "question_answering": {"question": "question", "context": "context", "id": None},
    "multiple_choice": {},
}
_SPLIT = "test"


def read_inputs(
    path: str,
    kind: Kind,
    *,
    form: Format | None = None,
    columns: Mapping[str, str] = {},
    pairs: bool = False,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[Input]:
    """All inputs in a file.

    Args:
      kind: what the model predicts.
      form: None to see it from the name: tables end in .csv, .tsv, .jsonl, .parquet (with endings
        to choose from for multiple choice), SQuAD's files in .json, CoNLL's in .conll, .iob, .bio,
        and all others have a text on each line.
      columns: "text", "text_pair", "question", "context", "id": the names of a table's columns.
      pairs: whether a line holds two texts, with a tab between them.
      encoding, errors: of lines, as in `read_text`.

    Raises:
      UserError: a file that is missing or damaged, a column that does not exist (the nearest is
        named), an empty text; or the file does not go with the model.
    """
    form = form or _format(path, kind)
    if columns and form != "table":
        raise ConfigError(f"{path}: --{_flag(columns)} goes with a table, not with {form}")
    if pairs and form != "lines":
        raise ConfigError(f"{path}: --pairs goes with lines; a table's second text has a column")
    match form:
        case "lines":
            lines = read_documents(path, documents_by="line", encoding=encoding, errors=errors)
            return [from_line(text, kind, pairs) for _, text in lines]
        case "table":
            return _rows(path, kind, columns)
        case "conll":
            return [*read_conll(Conll(test=path)).splits[_SPLIT]]
        case "squad":
            return [*read_squad(Squad(test=path, version="2.0")).splits[_SPLIT]]
        case "swag":
            return [*read_swag(Swag(test=path)).splits[_SPLIT]]


def from_line(line: str, kind: Kind, pairs: bool) -> Input:
    """A line as an input: several texts, where the model reads several, have tabs between them."""
    if pairs or kind in ("question_answering", "multiple_choice"):
        return tuple(part.strip() for part in line.split("\t"))
    return line.strip()


def from_arguments(texts: Sequence[str], kind: Kind, pairs: bool) -> list[Input]:
    """Texts one after another as inputs: each, every two, or all as a context and its choices.

    Raises:
      ConfigError: one text of a pair is missing.
    """
    if kind == "multiple_choice":
        return [tuple(texts)]
    if not (pairs or kind == "question_answering"):
        return list(texts)
    if len(texts) % 2:
        what = "question, context" if kind == "question_answering" else "first text, second text"
        raise ConfigError(f"{len(texts)} texts; expected pairs one after another: {what}, ...")
    return list(zip(texts[::2], texts[1::2], strict=True))


def _format(path: str, kind: Kind) -> Format:
    ending = Path(path.removesuffix(".gz")).suffix.lower()
    if ending in ENDINGS:
        return "swag" if kind == "multiple_choice" else "table"
    if ending == ".json":
        return "squad"
    if ending in CONLL_ENDINGS:
        return "conll"
    if kind == "tagging":
        raise UserError(
            f"{path}: its name does not tell whether it has a text or a word on each line; say "
            "--format lines or --format conll"
        )
    return "lines"


def _rows(path: str, kind: Kind, columns: Mapping[str, str]) -> list[Input]:
    possible = _COLUMNS[kind]
    if foreign := [name for name in columns if name not in possible]:
        takes = ", ".join(f"--{_flag([name])}" for name in possible) or "--format swag"
        raise ConfigError(
            f"--{_flag(foreign)} does not go with a model for {kind}, which takes {takes}"
        )
    names = {**possible, **columns}
    if kind == "question_answering":
        return [*_questions(path, str(names["question"]), str(names["context"]), names["id"])]
    if kind == "multiple_choice":
        raise ConfigError(f"{path}: a model for {kind} reads tables as --format swag")
    config = Columns(
        test=path, text=str(names["text"]), text_pair=names.get("text_pair"), id=names["id"]
    )
    return [*read_columns(config).splits[_SPLIT]]


def _questions(path: str, question: str, context: str, id: str | None) -> list[QuestionExample]:
    table = read_table(path)
    require_columns(table, path, [question, context, id])
    if not table.rows:
        raise UserError(f"{path}: no rows; expected at least one")
    return [
        QuestionExample(
            id=str(number) if id is None else cell_text(row, id, "id"),
            question=cell_text(row, question, "question"),
            context=cell_text(row, context, "context"),
        )
        for number, row in enumerate(table.rows)
    ]


def _flag(names: Iterable[str]) -> str:
    return next(iter(names)).replace("_", "-")
