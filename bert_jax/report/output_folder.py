"""Writes the results of an analysis as JSON and as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.io.atomic_io import atomic_write, make_folder, write_json


def write_results(folder: Path, name: str, results: Mapping[str, Any], page: str) -> None:
    """Writes NAME.json and NAME.html into a folder, which is made if it does not exist.

    Raises:
      UserError: the folder or a file cannot be written.
    """
    make_folder(folder)
    write_json(folder / f"{name}.json", results)
    atomic_write(folder / f"{name}.html", page)
