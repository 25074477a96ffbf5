"""Reads the inputs of a `Predictor` from files; labels in the files are ignored."""

from collections.abc import Iterable, Mapping, Sequence

from bert_jax.config.labeled_data import Columns, Conll, Squad, Swag
from bert_jax.data.finetuning.example import QuestionExample
from bert_jax.data.finetuning.readers.columns import (
    cell_text,
    read_columns,
    read_swag,
    require_columns,
)
from bert_jax.data.finetuning.readers.conll import read_conll
from bert_jax.data.finetuning.readers.squad import read_squad
from bert_jax.data.finetuning.readers.tabular_files import (
    FILE_EXTENSIONS,
    file_extension,
    read_table,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.tasks.base import AnyTaskKind, FileFormat, ModelInput
from bert_jax.text.files import read_documents

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
    """Reads all inputs in a file; an empty line is an empty text.

    Args:
      kind: the kind of task that the model was trained for.
      file_format: None to infer it from the file extension: .csv, .tsv, .jsonl and .parquet are
        tables (in the format of SWAG for multiple choice), .json is SQuAD's format, .conll, .iob
        and .bio are CoNLL's, and other files have one text on each line.
      columns: names of a table's columns, for the keys "text", "text_pair", "question", "context"
        and "id".
      pairs: whether each line has two texts, separated by a tab.
      encoding: the encoding of the file; SQuAD's JSON and Parquet are always UTF-8.
      errors: as in `read_text`, for a file with one text on each line.

    Raises:
      UserError: the file is missing or damaged, a column does not exist (the message names the
        nearest one), or a text is empty.
      ConfigError: the arguments do not apply to this kind of task or to the format of the file.
    """
    file_format = file_format or _infer_format(path, kind)
    _check_flags(path, kind, file_format, columns, pairs)
    if errors != "strict" and file_format != "lines":
        raise ConfigError(
            f"{path}: --errors is for files with a text on each line, but the format is "
            f"{file_format}; remove --errors"
        )
    if encoding != "utf-8" and file_format == "squad":
        raise ConfigError(
            f"{path}: --encoding is {encoding}, but JSON files are always utf-8; convert the file: "
            f"iconv -f {encoding} -t utf-8 {path} > NEW_FILE"
        )
    match file_format:
        case "lines":
            lines = read_documents(
                path, document_unit="line", encoding=encoding, errors=errors, keep_empty=True
            )
            return [parse_line(text, kind, pairs) for _, text in lines]
        case "table":
            return _read_table_inputs(path, kind, columns, encoding)
        case "conll":
            return [*read_conll(Conll(test=path, encoding=encoding)).splits[_SPLIT]]
        case "squad":
            return [*read_squad(Squad(test=path, version="2.0")).splits[_SPLIT]]
        case "swag":
            return [*read_swag(Swag(test=path, encoding=encoding)).splits[_SPLIT]]


def _check_flags(
    path: str,
    kind: AnyTaskKind,
    file_format: FileFormat,
    columns: Mapping[str, str],
    pairs: bool,
) -> None:
    """Raises a ConfigError if column names or --pairs do not apply to the format of a file."""
    if columns and file_format != "table":
        flags = _join_flags(columns)
        can_be_table = bool(kind.table_columns) and file_extension(path) in FILE_EXTENSIONS
        raise ConfigError(
            f"{path}: {flags} {'selects a column' if len(columns) == 1 else 'select columns'}, but "
            f"the format is {file_format}, not table; remove {flags}"
            + (" or give --format table" if can_be_table else "")
        )
    if pairs and file_format != "lines":
        has_pair_column = file_format == "table" and "text_pair" in kind.table_columns
        raise ConfigError(
            f"{path}: --pairs splits lines of text at a tab, but the format is {file_format}, not "
            "lines; remove --pairs"
            + (" and select the column of the second text with --text-pair" * has_pair_column)
        )


def parse_line(line: str, kind: AnyTaskKind, pairs: bool) -> ModelInput:
    """Converts a line to an input; if an input has several texts, tabs separate them.

    An empty line becomes an empty text for every kind, so that it keeps its place in the output.
    """
    if (pairs or kind.num_texts != 1) and line.strip():
        return tuple(part.strip() for part in line.split("\t"))
    return line.strip()


def group_arguments(texts: Sequence[str], kind: AnyTaskKind, pairs: bool) -> list[ModelInput]:
    """Groups texts into inputs: one each, two each, or all as a context and its choices.

    Raises:
      ConfigError: the number of texts is odd, but an input has two.
    """
    if kind.num_texts is None:
        return [tuple(texts)]
    if not pairs and kind.num_texts == 1:
        return list(texts)
    if len(texts) % 2:
        expected_pair = ", ".join(kind.description.text_names)
        raise ConfigError(
            f"number of texts is {len(texts)}; expected pairs, an even number: {expected_pair}"
        )
    return list(zip(texts[::2], texts[1::2], strict=True))


def _infer_format(path: str, kind: AnyTaskKind) -> FileFormat:
    suffix = file_extension(path)
    if suffix in FILE_EXTENSIONS:
        return kind.table_format
    if suffix == ".json":
        return "squad"
    if suffix in CONLL_SUFFIXES:
        return "conll"
    if kind.line_format is None:
        raise UserError(
            f"{path}: the extension does not show whether each line has a text or a single word; "
            "give --format lines or --format conll"
        )
    return kind.line_format


def _read_table_inputs(
    path: str, kind: AnyTaskKind, columns: Mapping[str, str], encoding: str
) -> list[ModelInput]:
    allowed_columns = kind.table_columns
    if not allowed_columns:
        raise ConfigError(
            f"{path}: --format table is not supported for {kind.name} models; use --format swag "
            "(columns sent1, sent2, ending0, ending1, ...)"
        )
    if unknown_columns := [name for name in columns if name not in allowed_columns]:
        raise ConfigError(
            f"{path}: {_join_flags(unknown_columns)} cannot be used with a {kind.name} model; "
            f"select the columns of its tables with {_join_flags(allowed_columns)}"
        )
    names = {**allowed_columns, **columns}
    if "question" in names:
        return [*_read_questions(path, names, encoding)]
    config = Columns(
        test=path,
        text=str(names["text"]),
        text_pair=names.get("text_pair"),
        id=names["id"],
        encoding=encoding,
    )
    return [*read_columns(config).splits[_SPLIT]]


def _read_questions(
    path: str, names: Mapping[str, str | None], encoding: str
) -> list[QuestionExample]:
    question_column, context_column = str(names["question"]), str(names["context"])
    id_column = names["id"]
    table = read_table(path, encoding)
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


def _join_flags(names: Iterable[str]) -> str:
    """Returns the flags of column names as a list in a sentence: "--text, --text-pair and --id"."""
    *others, last = (f"--{name.replace('_', '-')}" for name in names)
    return f"{', '.join(others)} and {last}" if others else last
