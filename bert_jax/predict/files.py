"""Files to predict on, as inputs of a `Predictor`; labels in them are not looked at."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from bert_jax.data.finetuning.config import Columns, Conll, Squad, Swag
from bert_jax.data.finetuning.example import QuestionExample
from bert_jax.data.finetuning.readers.columns import cell_text, read_columns, require_columns
from bert_jax.data.finetuning.readers.conll import read_conll
from bert_jax.data.finetuning.readers.squad import read_squad
from bert_jax.data.finetuning.readers.swag import read_swag
from bert_jax.data.finetuning.readers.tabular_files import FILE_EXTENSIONS, read_table
from bert_jax.errors import ConfigError, UserError
from bert_jax.tasks.base import AnyTaskKind, FileFormat, ModelInput
from bert_jax.text.files import read_documents

FILE_FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)
CONLL_SUFFIXES = (".conll", ".iob", ".iob2", ".bio")

_SPLIT = "test"


def read_inputs(
    path: str,
    kind: AnyTaskKind,
    *,
    file_format: FileFormat | None = None,
    columns: Mapping[str, str] = {},
    pairs: bool = False,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[ModelInput]:
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
    file_format = file_format or _infer_format(path, kind)
    if columns and file_format != "table":
        raise ConfigError(f"{path}: --{_flag(columns)} goes with a table, not with {file_format}")
    if pairs and file_format != "lines":
        raise ConfigError(f"{path}: --pairs goes with lines; a table's second text has a column")
    match file_format:
        case "lines":
            lines = read_documents(path, document_unit="line", encoding=encoding, errors=errors)
            return [parse_line(text, kind, pairs) for _, text in lines]
        case "table":
            return _read_table_inputs(path, kind, columns)
        case "conll":
            return [*read_conll(Conll(test=path)).splits[_SPLIT]]
        case "squad":
            return [*read_squad(Squad(test=path, version="2.0")).splits[_SPLIT]]
        case "swag":
            return [*read_swag(Swag(test=path)).splits[_SPLIT]]


def parse_line(line: str, kind: AnyTaskKind, pairs: bool) -> ModelInput:
    """A line as an input: several texts, where the model reads several, have tabs between them."""
    if pairs or kind.num_texts != 1:
        return tuple(part.strip() for part in line.split("\t"))
    return line.strip()


def group_arguments(texts: Sequence[str], kind: AnyTaskKind, pairs: bool) -> list[ModelInput]:
    """Texts one after another as inputs: each, every two, or all as a context and its choices.

    Raises:
      ConfigError: one text of a pair is missing.
    """
    if kind.num_texts is None:
        return [tuple(texts)]
    if not pairs and kind.num_texts == 1:
        return list(texts)
    if len(texts) % 2:
        expected_pair = ", ".join(kind.description.text_names)
        raise ConfigError(
            f"{len(texts)} texts; expected pairs one after another: {expected_pair}, ..."
        )
    return list(zip(texts[::2], texts[1::2], strict=True))


def _infer_format(path: str, kind: AnyTaskKind) -> FileFormat:
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    if suffix in FILE_EXTENSIONS:
        return kind.table_format
    if suffix == ".json":
        return "squad"
    if suffix in CONLL_SUFFIXES:
        return "conll"
    if kind.line_format is None:
        raise UserError(
            f"{path}: its name does not tell whether it has a text or a word on each line; say "
            "--format lines or --format conll"
        )
    return kind.line_format


def _read_table_inputs(
    path: str, kind: AnyTaskKind, columns: Mapping[str, str]
) -> list[ModelInput]:
    allowed_columns = kind.table_columns
    if unknown_columns := [name for name in columns if name not in allowed_columns]:
        allowed_flags = (
            ", ".join(f"--{_flag([name])}" for name in allowed_columns) or "--format swag"
        )
        raise ConfigError(
            f"--{_flag(unknown_columns)} does not go with a model for {kind.name}, which takes "
            f"{allowed_flags}"
        )
    names = {**allowed_columns, **columns}
    if "question" in names:
        return [*_read_questions(path, str(names["question"]), str(names["context"]), names["id"])]
    if not names:
        raise ConfigError(f"{path}: a model for {kind.name} reads tables as --format swag")
    config = Columns(
        test=path, text=str(names["text"]), text_pair=names.get("text_pair"), id=names["id"]
    )
    return [*read_columns(config).splits[_SPLIT]]


def _read_questions(
    path: str, question_column: str, context_column: str, id_column: str | None
) -> list[QuestionExample]:
    table = read_table(path)
    require_columns(table, path, [question_column, context_column, id_column])
    if not table.rows:
        raise UserError(f"{path}: no rows; expected at least one")
    return [
        QuestionExample(
            id=str(number) if id_column is None else cell_text(row, id_column, "id"),
            question=cell_text(row, question_column, "question"),
            context=cell_text(row, context_column, "context"),
        )
        for number, row in enumerate(table.rows)
    ]


def _flag(names: Iterable[str]) -> str:
    return next(iter(names)).replace("_", "-")
