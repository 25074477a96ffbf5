"""Writes tables that are in memory to files, because a run reads its data from files.

So a run can be resumed, and its config says which data it was trained on.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write

# Method that returns the rows of a table as dicts -> its arguments, by the class that has it.
_ROWS_OF = {
    "to_dicts": {},  # Polars
    "to_pylist": {},  # PyArrow
    "to_list": {},  # datasets.Dataset
    "to_dict": {"orient": "records"},  # pandas
}
_EXPECTED = (
    "expected a path, a list of dicts, or a table of pandas, Polars, PyArrow or Hugging Face "
    "datasets"
)


def split_tables(splits: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given splits; those of a `datasets.DatasetDict` given as "train" are added.

    Its split "validation" is "dev" here.

    Args:
      splits: tables by split, None for absent ones.
    """
    given = {name: table for name, table in splits.items() if table is not None}
    train = given.get("train")
    if not isinstance(train, Mapping):
        return given
    names = {"validation": "dev"}
    found = {names.get(name, name): table for name, table in train.items()}
    if "train" not in found:
        raise UserError(
            f"train has the splits {', '.join(map(str, train))}; expected one called train"
        )
    return {
        **{name: found[name] for name in splits if name in found},
        **given,
        "train": found["train"],
    }


def table_file(table: Any, folder: Path, split: str) -> str:
    """Returns the path of a table; one in memory is written to `folder` as JSON lines.

    The name of the file contains a hash of its content, so that other data has another path.

    Args:
      table: a path, a list of dicts, or a table of pandas, Polars, PyArrow or datasets.
      split: the name of the split, for the name of the file and for messages.

    Raises:
      UserError: it is something else, has no rows, or a value is not plain text, number or list.
    """
    if isinstance(table, (str, os.PathLike)):
        return os.fspath(table)
    rows = _rows(table, split)
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            lines.append(json.dumps(_plain(row), ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{split}, row {number}: {error}; expected texts, numbers, or lists of these"
            ) from None
    content = "\n".join(lines) + "\n"
    digest = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:12]
    file = folder / f"{split}-{digest}.jsonl"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, content)
    return str(file)


def _rows(table: Any, split: str) -> Sequence[Mapping[str, Any]]:
    for method, arguments in _ROWS_OF.items():
        if hasattr(table, method):
            rows = getattr(table, method)(**arguments)
            rows = _with_class_names(rows, getattr(table, "features", None))
            break
    else:
        rows = table
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        raise UserError(f"{split} is a {type(table).__name__}; {_EXPECTED}")
    if not rows:
        raise UserError(f"{split} has no rows; expected at least one")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"{split}, row {number} is a {type(row).__name__}; {_EXPECTED}")
    return rows


def _with_class_names(rows: Any, features: Any) -> Any:
    """Replaces class ids by names in the columns of a `datasets.Dataset` that have names."""
    if not isinstance(features, Mapping):
        return rows
    # A list of classes has the names in the feature of its items.
    names = {
        key: getattr(getattr(feature, "feature", feature), "names", None)
        for key, feature in features.items()
    }
    return [{key: _named(value, names.get(key)) for key, value in row.items()} for row in rows]


def _named(value: Any, names: Sequence[str] | None) -> Any:
    if names is None:
        return value
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names[value] if isinstance(value, int) and value >= 0 else value


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: NumPy's values as numbers and lists, NaN as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
