"""Reads and formats JSON files; a damaged file is a UserError that names the file and the line."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
      UserError: the file does not exist, cannot be read, is not JSON, or has an object in which a
        key occurs twice.
    """
    try:
        # Some editors begin a file with a byte-order mark, which utf-8-sig leaves out.
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; expected a JSON file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(
            f"{path}: not valid JSON ({error}); download, copy or write the file again"
        ) from None
    return parse_json(text, path)


def parse_json(text: str, path: str | Path) -> Any:
    """Parses the content of a JSON file; `path` is for messages.

    Raises:
      UserError: it is not JSON, or has an object in which a key occurs twice.
    """

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Python's parser keeps the last of two equal keys without an error.
        table = dict(pairs)
        if len(table) < len(pairs):
            ((duplicate, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise UserError(f"{path}: the key {duplicate!r} occurs twice; expected each key once")
        return table

    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); "
            "the file may be cut off: download, copy or write it again"
        ) from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or too many nested brackets.
        raise UserError(
            f"{path}: not valid JSON ({error}); download, copy or write the file again"
        ) from None


def parse_json_line(path: str | Path, number: int, line: str, errors: str = "strict") -> Any:
    """Parses a line of a JSON-lines file.

    A lone surrogate, as in "\\udc00", is not a character: it is an error with `errors` "strict",
    and is replaced or left out with "replace" or "ignore".

    Raises:
      UserError: the line is not JSON; names the file, the line and the column.
    """
    try:
        record = json.loads(line)
        # Python's parser accepts a lone surrogate, and the error would come later, where the text
        # is tokenized or written.
        if "\\ud" in line or "\\uD" in line:  # half of a surrogate pair, or a whole one
            text = json.dumps(record, ensure_ascii=False)
            record = json.loads(text.encode("utf-8", errors).decode())
        return record
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not valid JSON ({error.msg} at column {error.colno}); "
            "expected one JSON object on each line"
        ) from None
    except UnicodeEncodeError as error:
        raise UserError(
            f"{path}, line {number}: {error.object[error.start]!r} is half of a surrogate pair and "
            "no character; correct the line"
        ) from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or too many nested brackets.
        raise UserError(f"{path}, line {number}: not valid JSON ({error})") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file whose content is an object; any other content is a UserError."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(content).__name__}")
    return content


def format_json(value: Any) -> str:
    """Returns a value as indented JSON that ends in a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
