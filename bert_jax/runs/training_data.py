"""Keeps a run from being resumed with other training data than it started with.

`config.json` names the files of the data, which may change between two starts: rows are relabeled,
or a corpus is prepared again. Its key "data_fingerprint" identifies what was in them.
"""

from pathlib import Path

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
