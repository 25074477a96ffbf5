"""Reads documents from plain text and JSON-lines files, gzipped or not.

Errors name the file and the location: the byte offset of bytes that are not text, the line number
of an invalid JSON line.
"""

import codecs
import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from bert_jax.errors import UserError

DocumentUnit = Literal["file", "blank-line", "line"]

_CHUNK_BYTES = 1 << 20
MAX_DOCUMENT_CHARACTERS = 1 << 25
"""Limit for one document: preparing takes about a hundred bytes of memory for each character."""
_MAX_TEXT_CHARACTERS = 1 << 30
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def expand_globs(patterns: Sequence[str]) -> list[str]:
    """Returns the files that match names and glob patterns, sorted, without duplicates.

    `**` matches any number of folders.

    Raises:
      UserError: a pattern matches no file.
    """
    files: set[str] = set()
    for pattern in patterns:
        # An exact name matches itself even if it contains glob characters such as brackets.
        found = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        matched = [name for name in found if os.path.isfile(name)]
        if not matched:
            if os.path.isdir(pattern):
                suggested_pattern = os.path.join(pattern, "*.txt")
                raise UserError(
                    f"{pattern} is a folder; expected files, for example '{suggested_pattern}'"
                )
            if os.path.lexists(pattern):
                kind = "not a regular file" if os.path.exists(pattern) else "a broken symbolic link"
                raise UserError(f"{pattern} is {kind}; expected the name of a text file")
            raise UserError(
                f"no file matches {pattern!r}: check the spelling and the working directory "
                "(and quote a pattern that contains **, so that the shell does not expand it)"
            )
        files.update(matched)
    return sorted(files)


def read_text(path: str | Path, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Reads a whole file as text, without a byte-order mark; decompresses it if it ends in .gz.

    Args:
      path: the file.
      encoding: any text encoding of Python.
      errors: what to do with bytes that are not text: "strict" raises, "replace", "ignore".

    Raises:
      UserError: the file is missing or unreadable, contains bytes that are not text (with their
        offset), or the encoding is unknown.
    """
    chunks, size = [], 0
    for chunk in _decode_chunks(path, encoding, errors):
        size += len(chunk)
        if size > _MAX_TEXT_CHARACTERS:
            raise UserError(
                f"{path}: the file has more than {_MAX_TEXT_CHARACTERS:,} characters, which do not "
                "fit into memory at once; split the file"
            )
        chunks.append(chunk)
    return "".join(chunks)


def read_documents(
    path: str | Path,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    json_field: str = "text",
    document_unit: DocumentUnit = "file",
) -> Iterator[tuple[str, str]]:
    """Yields the documents of one file, in order; empty documents are left out.

    Args:
      path: `.jsonl` or `.ndjson` (each line is a JSON object with one document), else plain text;
        both may also end in `.gz`.
      encoding, errors: as in `read_text`.
      json_field: the field of a JSON object that contains the text.
      document_unit: what a document is in plain text: the whole file, a block of lines between
        blank lines, or a line.

    Yields:
      (key, text); the key is "file name:number". The number counts JSON lines, blocks or lines
      from 1.

    Raises:
      UserError: as `read_text`; or a line is not a JSON object or does not have the field.
    """
    name = os.path.basename(path)
    if name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
        lines = _read_lines(path, encoding, errors)
        documents = ((n, _json_text(path, n, line, json_field, errors)) for n, line in lines)
    elif document_unit == "file":
        documents = iter([(1, _read_document(path, encoding, errors))])
    elif document_unit == "line":
        documents = _read_lines(path, encoding, errors)
    else:
        documents = enumerate(_split_blocks(path, _read_lines(path, encoding, errors)), start=1)
    for number, text in documents:
        if text and not text.isspace():
            yield f"{name}:{number}", text


def parse_json_line(path: str | Path, number: int, line: str, errors: str = "strict") -> Any:
    """Parses a line of a JSON-lines file.

    A lone surrogate, as in "\\udc00", is not a character: it is an error with `errors` "strict",
    and is replaced or left out with "replace" or "ignore".

    Raises:
      UserError: the line is not JSON; names the file, the line and the column.
    """
    try:
        record = json.loads(line)
        if "\\ud" in line.lower() and errors != "strict":
            text = json.dumps(record, ensure_ascii=False)
            record = json.loads(text.encode("utf-8", errors).decode())
        elif "\\ud" in line.lower():
            json.dumps(record, ensure_ascii=False).encode()
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


def _json_text(path: str | Path, number: int, line: str, field: str, errors: str) -> str:
    if not line.strip():
        return ""
    record = parse_json_line(path, number, line, errors)
    if not isinstance(record, dict):
        found = f"a {type(record).__name__} instead of an object"
    elif field not in record:
        found = f"fields {sorted(record)}"
    elif isinstance(record[field], str):
        return record[field]
    else:
        raise UserError(
            f"{path}, line {number}: the field {field!r} is a {type(record[field]).__name__}; "
            "expected text"
        )
    raise UserError(
        f"{path}, line {number}: no text in the field {field!r} (found {found}); "
        "set --json-field to the field that contains the text"
    )


def _read_document(path: str | Path, encoding: str, errors: str) -> str:
    chunks, size = [], 0
    for chunk in _decode_chunks(path, encoding, errors):
        size += len(chunk)
        _check_document_size(path, 1, size)
        chunks.append(chunk)
    return "".join(chunks)


def _split_blocks(path: str | Path, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    block: list[str] = []
    size = 0
    for number, line in lines:
        if line.strip():
            size += len(line)
            _check_document_size(path, number, size)
            block.append(line)
        elif block:
            yield "\n".join(block)
            block, size = [], 0
    if block:
        yield "\n".join(block)


def _check_document_size(path: str | Path, number: int, size: int) -> None:
    if size > MAX_DOCUMENT_CHARACTERS:
        raise UserError(
            f"{path}, line {number}: a document of more than {MAX_DOCUMENT_CHARACTERS:,} "
            "characters, which would need gigabytes of memory; use --document-unit line or "
            "blank-line, or split the file"
        )


def _read_lines(path: str | Path, encoding: str, errors: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) without loading the whole file."""
    number, size = 0, 0
    unfinished: list[str] = []  # joined once, because a line may span many chunks
    for chunk in _decode_chunks(path, encoding, errors):
        *complete_lines, rest = chunk.split("\n")
        for line in complete_lines:
            number += 1
            unfinished.append(line)
            yield number, "".join(unfinished).removesuffix("\r")
            unfinished, size = [], 0
        size += len(rest)
        _check_document_size(path, number + 1, size)
        unfinished.append(rest)
    if size:
        yield number + 1, "".join(unfinished).removesuffix("\r")


def _decode_chunks(path: str | Path, encoding: str, errors: str) -> Iterator[str]:
    """Yields chunks of decoded text; errors name the byte offset in the whole file."""
    try:
        # str.encode accepts text encodings only; getincrementaldecoder alone would accept "hex".
        "".encode(encoding)
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        codecs.lookup_error(errors)
    except (LookupError, UnicodeError) as error:
        raise UserError(
            f"{error}: expected an encoding such as utf-8, latin-1 or cp1252, and strict, replace "
            "or ignore for --errors"
        ) from None
    bytes_read, first = 0, True
    for raw in _read_chunks(path):
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise _decode_error(
                path, encoding, bytes_read - pending + error.start, error, raw
            ) from None
        except UnicodeError as error:
            byte_order = encoding.lower() in ("utf-16", "utf-32", "utf16", "utf32")
            hint = f"; use {encoding}-le or {encoding}-be" if byte_order else ""
            raise UserError(f"{path}: not {encoding} text ({error}){hint}") from None
        bytes_read += len(raw)
        if first and text:
            text, first = text.removeprefix("\ufeff"), False
        yield text


def _decode_error(
    path: str | Path, encoding: str, offset: int, error: UnicodeDecodeError, raw: bytes
) -> UserError:
    location = f"byte {offset}" + (" (after unzipping)" if str(path).endswith(".gz") else "")
    value = error.object[error.start] if error.start < len(error.object) else 0
    hint = "latin-1"
    if offset == 0 and raw.startswith(_UTF16_MARKS):
        hint = "utf-16"
    return UserError(
        f"{path}: not {encoding} text at {location}: 0x{value:02x}, {error.reason}. If the file "
        f"has another encoding, set it with --encoding {hint}; to replace such bytes by a "
        "replacement character, use --errors replace. If the command has no such flags, convert "
        f"the file: iconv -f {hint} -t utf-8 FILE > NEW_FILE"
    )


def _read_chunks(path: str | Path) -> Iterator[bytes]:
    """Yields the decompressed bytes of a file; the last chunk is empty."""
    try:
        with gzip.open(path) if str(path).endswith(".gz") else open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
            yield b""
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); download it again") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
