"""Keeps a run from being resumed with other training data than it started with.

`config.json` names the files of the data, which may change between two starts: rows are relabeled,
or a corpus is prepared again. Its key "data_fingerprint" is a hash of their contents.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.runs.run_folder import CONFIG

_KEY = "data_fingerprint"


def check_fingerprint(folder: Path, fingerprint: str | None) -> None:
    """Checks that a run was started with the data that has this fingerprint.

    Args:
      folder: a run folder; a run of an earlier version has no fingerprint and is not checked.
      fingerprint: None if the source of the data compares it itself; nothing is checked then.

    Raises:
      UserError: the run was trained on other data.
    """
    if fingerprint is None or not (folder / CONFIG).is_file():
        return
    previous = read_json_object(folder / CONFIG).get(_KEY, fingerprint)
    if previous != fingerprint:
        raise UserError(
            f"the training data has changed since the run in {folder} was started: examples were "
            "edited, reordered, added or removed, or a corpus was prepared again; found the data "
            f"fingerprint {fingerprint}, expected {previous} ({_KEY} in {CONFIG}); restore the "
            "original data to resume the run, or start a new run in another folder"
        )


def write_fingerprint(folder: Path, fingerprint: str | None) -> None:
    """Writes the fingerprint of the training data into `config.json`; None writes nothing."""
    saved = read_json_object(folder / CONFIG)
    if fingerprint is not None and saved.get(_KEY) != fingerprint:
        write_json(folder / CONFIG, {**saved, _KEY: fingerprint})


def examples_fingerprint(examples: Iterable[Any]) -> str:
    """Hashes examples, which are dataclasses, in their order; returns 16 hex digits of the sha256.

    Fields of an example that have their default value are left out, so that a field that is added
    later does not change the fingerprint of earlier data. A new field of a nested dataclass, such
    as `Answer`, does change it.
    """
    digest = hashlib.sha256()
    for example in examples:
        values = (
            (each.name, getattr(example, each.name), each.default) for each in fields(example)
        )
        set_values = [(name, value) for name, value, default in values if value != default]
        digest.update(repr(set_values).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
