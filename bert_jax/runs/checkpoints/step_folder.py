"""Reads checkpoint folders: which steps there are, which are valid, and what is in them.

The layout is described in `checkpointer.py`.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.errors import UserError
from bert_jax.params import paths
from bert_jax.runs.checkpoints import checksums

logger = logging.getLogger(__name__)

if find_spec("gcsfs") is not None:
    # By default epath imports TensorFlow to read gs:// paths. It decides at the first path of any
    # kind, so this must be set at import time.
    os.environ.setdefault("EPATH_USE_TF", "0")

PARAMS, TRAINING, INFO = "params", "training", "info"


def read_info(step_folder: epath.Path) -> dict[str, Any]:
    """Returns the JSON values saved with one step."""
    return dict(ocp.JsonCheckpointHandler().restore(step_folder / INFO))


def absolute_path(folder: epath.PathLike) -> epath.Path:
    """Returns `folder` as an absolute path, as orbax requires; gs:// paths do not change.

    Raises:
      UserError: a gs:// path, and gcsfs is not installed.
    """
    text = os.fspath(folder)
    if "://" not in text:
        return epath.Path(os.path.abspath(text))
    if find_spec("gcsfs") is None:
        raise UserError(f"{text} needs gcsfs, which is not installed: pip install 'bert_jax[tpu]'")
    return epath.Path(text)


def list_steps(folder: epath.Path) -> list[int]:
    """Returns the steps in `folder` in ascending order; raises UserError if it is not a folder."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; expected one that holds checkpoints")
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def latest_valid_step(
    folder: epath.Path, steps: Sequence[int], file_prefixes: tuple[str, ...] = ("",)
) -> int | None:
    """Returns the newest valid step, and logs a warning for each damaged one after it.

    Args:
      file_prefixes: check only files whose name starts with one of these.

    Returns:
      The step; None if `steps` is empty.

    Raises:
      UserError: there are steps, but none is valid; the message names the files.
    """
    rejections: list[str] = []
    # Newest first, and the first valid one ends the search, because hashing reads every byte of a
    # checkpoint.
    for step in sorted(steps, reverse=True):
        problems = checksums.find_problems(folder / str(step), file_prefixes)
        if not problems:
            for line in rejections:
                logger.warning("checkpoint %s; using step %d instead", line, step)
            return step
        rejections.append(f"step {step} is not valid: {_first_lines(problems)}")
    if rejections:
        raise UserError(
            f"no valid checkpoint in {folder}: {'; '.join(rejections)}; "
            "restore these files from a copy, or move the folder away to start again"
        )
    return None


def verify_step(step_folder: epath.Path, file_prefixes: tuple[str, ...] = ("",)) -> None:
    """Raises UserError with the names of the files if a file of this step is damaged."""
    problems = checksums.find_problems(step_folder, file_prefixes)
    if problems:
        raise UserError(f"the checkpoint {step_folder} is not valid: {_first_lines(problems)}")


def check_compatible(step_folder: epath.Path, expected_arrays: Mapping[str, Any]) -> None:
    """Raises UserError unless the checkpoint holds exactly these paths, shapes and dtypes."""
    saved_arrays = {
        f"{PARAMS}/{path}": a for path, a in array_metadata(step_folder / PARAMS).items()
    }
    saved_arrays.update(array_metadata(step_folder / TRAINING))
    differences = [
        f"{path}: only in the checkpoint" for path in saved_arrays.keys() - expected_arrays.keys()
    ]
    differences += [
        f"{path}: not in the checkpoint" for path in expected_arrays.keys() - saved_arrays.keys()
    ]
    for path in saved_arrays.keys() & expected_arrays.keys():
        saved_spec = (tuple(saved_arrays[path].shape), np.dtype(saved_arrays[path].dtype))
        expected_spec = (tuple(expected_arrays[path].shape), np.dtype(expected_arrays[path].dtype))
        if saved_spec != expected_spec:
            differences.append(
                f"{path}: {saved_spec[1]}{list(saved_spec[0])} there, "
                f"{expected_spec[1]}{list(expected_spec[0])} here"
            )
    if differences:
        raise UserError(
            f"the checkpoint {step_folder} belongs to another model or optimizer: "
            f"{_first_lines(sorted(differences))}; use the config it was made with "
            "(config.json of its run)"
        )


def array_metadata(item_folder: epath.Path) -> dict[str, Any]:
    """Returns {path: metadata with shape and dtype} of the arrays saved in one item."""
    return paths.flatten(ocp.StandardCheckpointHandler().metadata(item_folder).tree)


def by_path(tree: Any) -> dict[str, Any]:
    """Flattens a pytree to {"opt_state/0/mu/encoder/kernel": leaf}."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def by_item(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Splits a flattened state into the two nested dicts that are saved separately."""
    prefix = f"{PARAMS}/"
    params = {p.removeprefix(prefix): leaf for p, leaf in flat.items() if p.startswith(prefix)}
    training_state = {path: leaf for path, leaf in flat.items() if not path.startswith(prefix)}
    return {PARAMS: paths.unflatten(params), TRAINING: paths.unflatten(training_state)}


def _first_lines(lines: list[str]) -> str:
    suffix = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return ", ".join(lines[:3]) + suffix


def restore_params(
    folder: epath.PathLike, step: int | None = None
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Reads only the parameters, as NumPy arrays, on every process that calls it.

    Args:
      folder: a folder of checkpoints, as given to `Checkpointer`; nothing in it is changed.
      step: the step to read; None: the newest valid one.

    Returns:
      (params, info, step); `params` is a nested dict with string keys.

    Raises:
      UserError: the folder does not exist, or contains no valid checkpoint.
    """
    root = absolute_path(folder)
    steps, required_files = list_steps(root), (f"{PARAMS}/", f"{INFO}/")
    if step is None:
        step = latest_valid_step(root, steps, file_prefixes=required_files)
    elif step not in steps:
        raise UserError(f"{root} has no step {step}; steps there: {steps}")
    else:
        verify_step(root / str(step), file_prefixes=required_files)
    if step is None:
        raise UserError(
            f"{root} holds no checkpoint: the run was stopped before it saved one, or has only "
            "begun. If it is no longer running, start it again with the same command"
        )
    step_path = root / str(step)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        array_names = array_metadata(step_path / PARAMS)
        restore_args = paths.unflatten(
            {n: ocp.RestoreArgs(restore_type=np.ndarray) for n in array_names}
        )
        params = reader.restore(
            step_path / PARAMS, args=ocp.args.PyTreeRestore(restore_args=restore_args)
        )
    return params, read_info(step_path), step
