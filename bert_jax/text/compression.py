"""Reads the bytes of files that may be compressed: `.gz`, `.bz2` and `.zst`, by the file name.

Files of several members, which `pigz`, `pbzip2` and dumps of Wikipedia consist of, are read whole.
"""

import bz2
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from bert_jax.errors import MissingExtraError, UserError, near_files

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
