"""Reads single lines of JSON-lines files: an object, or the text in one of its fields."""

from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.json_io import parse_json_line


def json_object(
    path: str | Path, number: int, line: str, errors: str | None = None
) -> dict[str, Any]:
    """Parses a line that has a JSON object.

    Args:
      path, number: the file and the number of the line, for messages.
      errors: as in `read_text` of `files.py`.

    Raises:
      UserError: the line is not a JSON object.
    """
    record = parse_json_line(path, number, line, errors or "strict")
    if not isinstance(record, dict):
        raise UserError(
            f"{path}, line {number}: expected a JSON object, found a {type(record).__name__}"
        )
    return record


def json_text(
    path: str | Path,
    number: int,
    line: str,
    json_field: str | None,
    errors: str | None,
) -> str:
    """Returns the text in a field of a line that has a JSON object; "" for an empty line.

    The arguments and errors are as in `json_document`.
    """
    return json_document(path, number, line, json_field, errors)[0]


def json_document(
    path: str | Path,
    number: int,
    line: str,
    json_field: str | None,
    errors: str | None,
) -> tuple[str, dict[str, Any]]:
    """Returns the text and the other fields of a line that has a JSON object.

    An empty line has the text "" and no fields.

    Args:
      json_field: the field; None for "text", if the verb has no flag --json-field.
      path, number, errors: as in `json_object`.

    Raises:
      UserError: the line is not a JSON object, or the field is missing or not text.
    """
    if not line.strip():
        return "", {}
    field, record = json_field or "text", parse_json_line(path, number, line, errors or "strict")
    if not isinstance(record, dict):
        found = f"a {type(record).__name__} instead of an object"
    elif field not in record:
        found = f"fields {sorted(record)}"
    elif isinstance(record[field], str):
        return record[field], {key: value for key, value in record.items() if key != field}
    else:
        raise UserError(
            f"{path}, line {number}: the field {field!r} is a {type(record[field]).__name__}; "
            "expected text"
        )
    raise UserError(
        f"{path}, line {number}: no text in the field {field!r} (found {found}); "
        + (
            "set --json-field to the field that contains the text"
            if json_field
            else "expected this field"
        )
    )
