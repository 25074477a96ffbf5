"""Finds the local folder of a model that a user names. Imports neither jax nor TensorFlow."""

import os
from pathlib import Path

from bert_jax.errors import UserError, near_files
from bert_jax.io import hub
from bert_jax.runs.run_folder import CHECKPOINTS, find_run


def resolve_model_folder(name: str | os.PathLike[str]) -> Path:
    """Returns the local folder of the model that a flag, a config or an argument names.

    Every command and function that reads a model calls this first, so that all of them accept the
    same names: `--model`, `init_from`, a teacher, the base of an adapter, `load_model`.

    Args:
      name: the path of a run folder, of one checkpoint of a run, of a folder with files of a model,
        or the prefix of the files of a Google TF1 checkpoint; or "org/name" or "org/name@revision",
        a model of the Hugging Face hub, which is downloaded.

    Returns:
      The path; it is not known yet which kind of model is there. A prefix, and a checkpoint of a
      run that saves to another place, are no folders.

    Raises:
      UserError: there is nothing at the path, and no such model on the hub, or it cannot be
        reached.
    """
    path = Path(name)
    # `find_run` accepts a checkpoint that is not here, because a run may save to a bucket.
    if path.exists() or find_run(path) or Path(f"{path}.index").is_file():
        return path
    model = hub.parse_model(str(name))
    if model is not None:
        try:
            return hub.download_model(model)
        except UserError as error:
            reason = f"no such folder; {near_files(name)}as a name of a model: {error}"
            raise UserError(f"{name}: {reason}") from None
    raise UserError(
        f"{name}: no such folder; {near_files(name)}expected a run folder with {CHECKPOINTS}/, "
        "a Hugging Face folder with config.json, an adapter folder of peft, a Google TF1 "
        "checkpoint, or ORG/NAME, a model of the Hugging Face hub"
    )


def pin_revision(name: str) -> str:
    """Returns the name of a model of the hub with its commit, "org/name@hash"; others unchanged.

    Raises:
      UserError: as `resolve_model_folder`.
    """
    model = hub.parse_model(name)
    if model is None or Path(name).exists() or find_run(Path(name)):
        return name
    return f"{model.id}@{resolve_model_folder(name).name}"
