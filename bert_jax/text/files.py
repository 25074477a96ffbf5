"""Reads text files, compressed or not (`.gz`, `.bz2`, `.zst` by the name of the file).

Files of several members, which `pigz`, `pbzip2` and dumps of Wikipedia consist of, are read whole.

Errors name the file and the location: the byte offset of bytes that are not text, the line number
of an invalid JSON line.
"""

import bz2
import codecs
import glob
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from bert_jax.errors import MissingExtraError, UserError, near_files
from bert_jax.text.json_lines import json_document, json_object, json_text

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
CHUNK_BYTES = 1 << 20


class DamagedFileError(UserError):
    """Reports a compressed file that is cut off, or that is not of the format of its name."""


def uncompressed_name(path: str | Path) -> str:
    """Returns the path without a suffix of compression: "a.jsonl" for "a.jsonl.gz"."""
    name = str(path)
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_compressed(path: str | Path) -> bool:
    """Returns whether the name of a file ends in a suffix of compression."""
    return str(path).endswith(COMPRESSED_SUFFIXES)


def open_binary(path: str | Path) -> BinaryIO:
    """Opens a file for reading its decompressed bytes.

    Raises:
      OSError: the file cannot be opened.
      MissingExtraError: the file ends in .zst, and pyarrow is not installed.
    """
    name = str(path)
    if name.endswith(".gz"):
        return cast(BinaryIO, gzip.open(name))
    if name.endswith(".bz2"):
        return cast(BinaryIO, bz2.open(name))
    if name.endswith(".zst"):
        return cast(BinaryIO, _open_zstandard(name))
    return open(name, "rb")


def read_chunks(path: str | Path) -> Iterator[bytes]:
    """Yields the decompressed bytes of a file; the last chunk is empty.

    Raises:
      UserError: the file is missing or unreadable. DamagedFileError if its compression is damaged;
        the bytes before the damage have been yielded.
    """
    try:
        with open_binary(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
            yield b""
    # BadGzipFile is an OSError, so it must be caught before the general one.
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, error) from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {near_files(path)}check the spelling") from None
    except OSError as error:
        # Errors of bz2 and of pyarrow about the content have no number of the operating system.
        if error.errno is None:
            raise _damaged(path, error) from None
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _damaged(path: str | Path, error: Exception) -> DamagedFileError:
    kinds = {".gz": "gzip", ".bz2": "bzip2", ".zst": "Zstandard"}
    kind = kinds.get(Path(path).suffix, "compressed")
    return DamagedFileError(f"{path}: damaged {kind} file ({error}); download it again")


def _open_zstandard(path: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError(f"{path}: reading .zst files needs pyarrow", "curate") from None
    return pyarrow.input_stream(path, compression="zstd", buffer_size=CHUNK_BYTES)


DocumentUnit = Literal["file", "blank-line", "line"]

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
                f"no file matches {pattern!r}: {near_files(pattern)}check the spelling and the "
                "working directory (and quote a pattern that contains **, so that the shell does "
                "not expand it)"
            )
        files.update(matched)
    return sorted(files)


def read_text(path: str | Path, *, encoding: str | None = None, errors: str | None = None) -> str:
    """Reads a whole file as text, without a byte-order mark; decompresses .gz, .bz2 and .zst.

    Args:
      path: the file.
      encoding: any text encoding of Python. None for UTF-8, if the verb has no flag --encoding
        that an error message could suggest.
      errors: what to do with bytes that are not text: "strict" raises, "replace", "ignore". None
        for "strict", if the verb has no flag --errors.

    Raises:
      UserError: the file is missing or unreadable, contains bytes that are not text (with their
        offset), or the encoding is unknown.
    """

    def check_size(size: int) -> None:
        if size > _MAX_TEXT_CHARACTERS:
            raise UserError(
                f"{path}: the file has more than {_MAX_TEXT_CHARACTERS:,} characters, which do not "
                "fit into memory at once; split the file"
            )

    return _join_chunks(_text_chunks(path, encoding, errors), check_size)


def read_documents(
    path: str | Path,
    *,
    encoding: str | None = None,
    errors: str | None = None,
    json_field: str | None = None,
    document_unit: DocumentUnit = "file",
    keep_empty: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yields the documents of one file, in order.

    Args:
      path: `.jsonl` or `.ndjson` (each line is a JSON object with one document), else plain text;
        both may also end in `.gz`, `.bz2` or `.zst`.
      encoding, errors: as in `read_text`.
      json_field: the field of a JSON object that contains the text. None for "text", if the verb
        has no flag --json-field.
      document_unit: what a document is in plain text: the whole file, a block of lines between
        blank lines, or a line.
      keep_empty: whether documents without text are yielded; they are left out by default.

    Yields:
      (key, text); the key is "file name:number". The number counts JSON lines, blocks or lines
      from 1.

    Raises:
      UserError: as `read_text`; or a line is not a JSON object or does not have the field.
    """
    name = os.path.basename(path)
    chunks = _text_chunks(path, encoding, errors)
    check_size = partial(_check_document_size, path)
    if is_json_lines(path):
        lines = _split_lines(path, chunks)
        documents = ((n, json_text(path, n, line, json_field, errors)) for n, line in lines)
    elif document_unit == "file":
        documents = iter([(1, _join_chunks(chunks, partial(check_size, 1)))])
    elif document_unit == "line":
        documents = _split_lines(path, chunks)
    else:
        documents = enumerate(_split_blocks(_split_lines(path, chunks), check_size), start=1)
    for number, text in documents:
        if keep_empty or (text and not text.isspace()):
            yield f"{name}:{number}", text


def is_json_lines(path: str | Path) -> bool:
    """Returns whether a file is read as JSON lines, by its name."""
    return uncompressed_name(os.path.basename(path)).endswith((".jsonl", ".ndjson"))


def read_json_documents(
    path: str | Path,
    *,
    encoding: str | None = None,
    errors: str | None = None,
    json_field: str | None = None,
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yields (line number from 1, text, other fields) for the lines of a JSON-lines file, in order.

    The arguments and errors are as in `read_documents`. Empty lines have the text "".
    """
    for number, line in _split_lines(path, _text_chunks(path, encoding, errors)):
        yield number, *json_document(path, number, line, json_field, errors)


def read_json_objects(
    path: str | Path, *, encoding: str | None = None, errors: str | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, JSON object) for the lines of a JSON-lines file, in order.

    Args:
      encoding, errors: as in `read_text`.

    Raises:
      UserError: as `read_text`; or a line that is not empty is not a JSON object.
    """
    for number, line in _split_lines(path, _text_chunks(path, encoding, errors)):
        if line and not line.isspace():
            yield number, json_object(path, number, line, errors)


def read_stream_lines(
    stream: BinaryIO, name: str, *, encoding: str | None = None, errors: str | None = None
) -> Iterator[str]:
    """Yields the lines of a stream as soon as they can be read, as from a terminal or a pipe.

    Args:
      name: the name of the stream, for messages.
      encoding, errors: as in `read_text`.

    Raises:
      UserError: the stream cannot be read or contains bytes that are not text (with their offset),
        the encoding is unknown, or a line does not fit into memory.
    """
    # Not `read`, which would wait for a full chunk; the empty chunk at the end is for the decoder.
    raw_chunks = chain(iter(lambda: stream.readline(CHUNK_BYTES), b""), [b""])
    try:
        for _, line in _split_lines(name, _decode_chunks(name, raw_chunks, encoding, errors)):
            yield line
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})") from None


def _join_chunks(chunks: Iterable[str], check_size: Callable[[int], None]) -> str:
    """Joins chunks; `check_size` receives the number of characters after each, and may raise."""
    parts, size = [], 0
    for chunk in chunks:
        size += len(chunk)
        check_size(size)
        parts.append(chunk)
    return "".join(parts)


def _split_blocks(
    lines: Iterator[tuple[int, str]], check_size: Callable[[int, int], None]
) -> Iterator[str]:
    block: list[str] = []
    size = 0
    for number, line in lines:
        if line.strip():
            size += len(line)
            check_size(number, size)
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
            "characters, which would need gigabytes of memory; use "
            "--document-unit line or blank-line, or split the file"
        )


def _split_lines(name: str | Path, chunks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of decoded text."""
    # Not `splitlines`, which also breaks lines at form feeds and U+2028; these may be part of a
    # JSON string or of a text.
    number, rest = 0, ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            number += 1
            yield number, line.removesuffix("\r")
        if len(rest) > MAX_DOCUMENT_CHARACTERS:
            raise UserError(
                f"{name}, line {number + 1}: a line of more than {MAX_DOCUMENT_CHARACTERS:,} "
                "characters, which would need gigabytes of memory; break it into several lines"
            )
    if rest:
        yield number + 1, rest.removesuffix("\r")


def _text_chunks(path: str | Path, encoding: str | None, errors: str | None) -> Iterator[str]:
    return _decode_chunks(path, read_chunks(path), encoding, errors)


def _decode_chunks(
    name: str | Path,
    raw_chunks: Iterable[bytes],
    encoding: str | None,
    errors: str | None,
) -> Iterator[str]:
    """Yields chunks of decoded text; errors name the byte offset from the first chunk.

    Args:
      name: the file or stream, for messages.
      raw_chunks: bytes; the last chunk is empty.
      encoding, errors: as in `read_text`.
    """
    advice = "convert the file: iconv -f {} -t utf-8 FILE > NEW_FILE"
    if encoding is not None:
        advice = "if the text has another encoding, set it with --encoding {}"
    if errors is not None:
        advice += "; to replace such bytes, use --errors replace"
    expected = ", and strict, replace or ignore for such bytes" if errors else ""
    encoding, errors = encoding or "utf-8", errors or "strict"
    try:
        # str.encode accepts text encodings only; getincrementaldecoder alone would accept "hex".
        "".encode(encoding)
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        codecs.lookup_error(errors)
    except (LookupError, UnicodeError) as error:
        raise UserError(
            f"{error}: expected an encoding such as utf-8, latin-1 or cp1252{expected}"
        ) from None
    bytes_read, first = 0, True
    for raw in raw_chunks:
        # A character may begin in the chunk before; its bytes belong to the offset in the message.
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeError as error:
            is_utf = encoding.lower() in ("utf-16", "utf-32", "utf16", "utf32")
            # A missing byte-order mark is a UnicodeDecodeError since Python 3.13.
            if not isinstance(error, UnicodeDecodeError) or (is_utf and "BOM" in error.reason):
                hint = f"; use {encoding}-le or {encoding}-be" if is_utf else ""
                raise UserError(f"{name}: not {encoding} text ({error}){hint}") from None
            offset = bytes_read - pending + error.start
            hint = "utf-16" if offset == 0 and raw.startswith(_UTF16_MARKS) else "latin-1"
            location = f"byte {offset}" + " (after unzipping)" * is_compressed(name)
            value = error.object[error.start] if error.start < len(error.object) else 0
            raise UserError(
                f"{name}: not {encoding} text at {location}: 0x{value:02x}, {error.reason}; "
                + advice.format(hint)
            ) from None
        bytes_read += len(raw)
        if first and text:
            # The codec "utf-8" keeps a byte-order mark, which would become a part of the first
            # word.
            text, first = text.removeprefix("\ufeff"), False
        yield text
