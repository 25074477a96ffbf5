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


def write_or_check_fingerprint(folder: Path, fingerprint: str, *, has_checkpoints: bool) -> None:
    """Writes the fingerprint of the training data into `config.json`, or compares it.

    Args:
      folder: a run folder with a `config.json`.
      has_checkpoints: whether the run has trained on the data; until then, they may change.

    Raises:
      UserError: the run has trained on other data.
    """
    saved = read_run_json(folder / CONFIG)
    previous = saved.get(_KEY, fingerprint)  # runs of earlier versions have none
    if has_checkpoints and previous != fingerprint:
        raise UserError(
            f"the training data of {folder} have changed since it started (fingerprint {previous} "
            f"there, {fingerprint} now); restore the data to resume that run, or choose another "
            "run folder"
        )
    if saved.get(_KEY) != fingerprint:
        write_json(folder / CONFIG, {**saved, _KEY: fingerprint})


def examples_fingerprint(examples: Iterable[Any]) -> str:
    """Hashes examples, which are dataclasses, in their order; returns 16 hex digits of the sha256.

    Fields that have their default value are left out, so that a field that is added later does not
    change the fingerprint of earlier data.
    """
    digest = hashlib.sha256()
    for example in examples:
        values = (
            (each.name, getattr(example, each.name), each.default) for each in fields(example)
        )
        set_values = [(name, value) for name, value, default in values if value != default]
        digest.update(repr(set_values).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
