"""Appends rows to .npy files, and memory-maps them."""

import os
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError


class GrowingArray:
    """Writes a .npy file whose number of rows is not known in advance.

    NumPy leaves space in the header of a file for any number of rows, so the header is written
    again when rows were added.
    """

    def __init__(self, path: Path, num_rows: int, rows: np.ndarray):
        """Opens a file for appending.

        Args:
          num_rows: rows of the existing file to keep; 0 starts a new file. Rows after them, of an
            interrupted process, are removed.
          rows: an array with the dtype and the shape of the rows.

        Raises:
          UserError: the existing file is damaged, or has other rows.
        """
        self._dtype, self._row_shape = rows.dtype, rows.shape[1:]
        self.num_rows = num_rows
        if not num_rows:
            self._file = path.open("wb+")
            self._write_header()
            return
        existing = open_array(path)
        same = existing.dtype == rows.dtype and existing.shape[1:] == rows.shape[1:]
        if len(existing) < num_rows or not same:
            raise UserError(
                f"{path} has {len(existing):,} rows of the shape {list(existing.shape[1:])}; "
                f"expected at least {num_rows:,} of {list(rows.shape[1:])}; remove {path.parent}"
            )
        self._file = path.open("rb+")
        self._write_header()
        self._file.truncate(self._file.tell() + num_rows * rows.dtype.itemsize * self._row_size)

    @property
    def _row_size(self) -> int:
        return int(np.prod(self._row_shape))

    def append(self, rows: np.ndarray) -> None:
        """Adds rows, which are complete on disk after `flush`."""
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        self.num_rows += len(rows)

    def flush(self) -> None:
        """Writes the rows and their number."""
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write_header(self) -> None:
        self._file.seek(0)
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.num_rows, *self._row_shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def close(self) -> None:
        """Closes the file; rows after the last `flush` are not counted."""
        self._file.close()


def open_array(path: Path) -> np.ndarray:
    """Memory-maps a .npy file.

    Raises:
      UserError: it is missing or damaged.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {error}; index the texts again") from None
