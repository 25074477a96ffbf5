"""Keeps a run from being resumed with other training data than it started with.

`config.json` names the files of the data, which may change between two starts: rows are relabeled,
or a corpus is prepared again. Its key "data_fingerprint" identifies what was in them.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import write_json
from bert_jax.errors import UserError
from bert_jax.runs.run_folder import CONFIG, read_run_json

_KEY = "data_fingerprint"


def check_fingerprint(folder: Path, fingerprint: str | None) -> None:
    """Checks that a run with checkpoints was trained on the data with this fingerprint.

    Args:
      folder: a run folder; runs of earlier versions have no fingerprint and are not checked.
      fingerprint: None checks nothing.

    Raises:
      UserError: the run was trained on other data.
    """
    if fingerprint is None or not (folder / CONFIG).is_file():
        return
    previous = read_run_json(folder / CONFIG).get(_KEY, fingerprint)
    if previous != fingerprint:
        raise UserError(
            f"the training data are not those that the run in {folder} was started with: found the "
            f"fingerprint {fingerprint}, expected {previous}; restore the data to resume that run, "
            "or start a new run in another folder"
        )


def write_fingerprint(folder: Path, fingerprint: str | None) -> None:
    """Writes the fingerprint of the training data into `config.json`; None writes nothing."""
    saved = read_run_json(folder / CONFIG)
    if fingerprint is not None and saved.get(_KEY) != fingerprint:
        write_json(folder / CONFIG, {**saved, _KEY: fingerprint})


def examples_fingerprint(examples: Iterable[Any]) -> str:
    """Hashes examples, which are dataclasses, in their order; returns 16 hex digits of the sha256.

    Fields of an example that have their default value are left out, so that a field that is added
    later does not change the fingerprint of earlier data. This does not hold for dataclasses in
    fields, such as answers.
    """
    digest = hashlib.sha256()
    for example in examples:
        values = (
            (each.name, getattr(example, each.name), each.default) for each in fields(example)
        )
        set_values = [(name, value) for name, value, default in values if value != default]
        digest.update(repr(set_values).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
