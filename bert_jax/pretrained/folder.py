"""Finds the local folder of a model that a user names. Imports neither jax nor TensorFlow."""

import os
from pathlib import Path

from bert_jax.errors import UserError, near_files
from bert_jax.runs.run_folder import CHECKPOINTS, find_run


def resolve_model_folder(name: str | os.PathLike[str]) -> Path:
    """Returns the local folder of the model that a flag, a config or an argument names.

    Every command and function that reads a model calls this first, so that all of them accept the
    same names: `--model`, `init_from`, a teacher, the base of an adapter, `load_model`.

    Args:
      name: the path of a run folder, of one checkpoint of a run, of a folder with files of a model,
        or the prefix of the files of a Google TF1 checkpoint.

    Returns:
      The path; it is not known yet which kind of model is there. A prefix, and a checkpoint of a
      run that saves to another place, are no folders.

    Raises:
      UserError: there is nothing at the path.
    """
    path = Path(name)
    # `find_run` accepts a checkpoint that is not here, because a run may save to a bucket.
    if path.exists() or find_run(path) or Path(f"{path}.index").is_file():
        return path
    raise UserError(
        f"{name}: no such folder; {near_files(name)}expected a run folder with {CHECKPOINTS}/, "
        "a Hugging Face folder with config.json, an adapter folder of peft, or a Google TF1 "
        "checkpoint"
    )
