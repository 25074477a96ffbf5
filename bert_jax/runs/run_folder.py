"""Manages the run folder: its lock, its config, and the location of its checkpoints.

    <run folder>/config.json      resolved config, its fingerprint and the training data's
                                  (see runs/training_data.py), package versions, hardware
                 lock             locked by the process that trains here
                 checkpoints/     see checkpoints/checkpointer.py; config.json names another
                                  location if there is one
                 mixture.json     pretraining: fingerprints and quotas of several corpora
                 without.tsv      pretraining: copy of the list of documents that are not read
                 metrics.jsonl    see runs/metrics.py
                 trackers.json    ids of the tracked run, see runs/trackers.py
                 evaluation.json  results of the final evaluation
                 attempts.jsonl   see runs/attempt_log.py
                 baselines.json   pretraining: losses of n-gram models, by `bert-jax baselines`
                 minimal_pairs.json  pretraining: accuracy of each checkpoint on minimal pairs
                 analysis.json    fine-tuning: error analysis for the report and the model card
                 demonstrations.json  fine-tuning: texts and labels, if prompts have demonstrations
                 fitted_heads.json  fine-tuning: thresholds and temperatures that were chosen on dev
                 predictions/     fine-tuning: JSON lines for each split; one folder for each
                                  task in multi-task runs
                 encoder_states/  features of a frozen encoder, see train/workloads/feature_cache.py
                 compiled/        compiled programs, see train/compilation_cache.py; may be deleted
                 report.html      see report/run_report.py
                 previous/        files of a failed start, while the next one writes its own
                 data/            tables that were in memory, see api/tables.py

Imports neither jax nor TensorFlow.
"""

import contextlib
import os
import platform
import shutil
import socket
from collections.abc import Generator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import diff, fingerprint, from_json, is_same_path, to_json
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from bert_jax.io.json_io import read_json_object
from bert_jax.runs import attempt_log

CONFIG, LOCK, CHECKPOINTS, EVALUATION = "config.json", "lock", "checkpoints", "evaluation.json"
DEMONSTRATIONS, SETFIT_HEAD = "demonstrations.json", "setfit_head.json"
FITTED_HEADS, TRACKERS = "fitted_heads.json", "trackers.json"
MINIMAL_PAIRS = "minimal_pairs.json"
ANALYSIS, BASELINES, MIXTURE = "analysis.json", "baselines.json", "mixture.json"
WITHOUT = "without.tsv"
PREDICTIONS, REPORT, TABLES = "predictions", "report.html", "data"
# A key of config.json next to "config"; the location of the checkpoints does not affect results.
_CHECKPOINT_DIR_KEY = "checkpoints"
_PREVIOUS = "previous"
_PACKAGES = ("bert_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
_CONFLICT_REMEDY = (
    "to resume that run, set these fields to their saved values; to start a new run, choose "
    "another run folder (to start it from the weights of the saved run, add --init-from, or "
    "--model for `bert-jax finetune`)"
)


def package_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that affect what a run computes."""
    versions_by_package = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions_by_package[package] = metadata.version(package)
    return versions_by_package


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the resolved config of a run as JSON values.

    Raises:
      UserError: `folder` is not a run folder.
    """
    return _read_saved_config(folder / CONFIG)["config"]


@contextlib.contextmanager
def lock_run_folder(folder: Path) -> Generator[None]:
    """Creates the run folder if needed and locks it, so that no other process trains in it.

    The operating system releases the lock when the process ends for any reason, so a lock file
    left behind by a killed process does no harm. Only process 0 of a run calls this.

    Raises:
      UserError: another process trains there (the message names it), or the folder cannot be
        created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder / LOCK, owner=f"process {os.getpid()} on {socket.gethostname()}")
    except AlreadyLockedError as error:
        raise UserError(
            f"{folder} is in use: {error.owner} trains there; wait for it, stop it, "
            "or choose another run folder"
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder} cannot be used as a run folder: {error.strerror}; choose one that can be "
            "written, on a file system that supports locks"
        ) from None
    with lock:
        yield


def write_or_check_config(
    folder: Path,
    config: Any,
    *,
    mutable_fields: Sequence[str] = (),
    hardware: Mapping[str, Any] | None = None,
    external_dir: str | None = None,
) -> None:
    """Writes `config.json` into a new run folder, or checks it against the config of the run there.

    Args:
      folder: an existing run folder.
      config: the root dataclass.
      mutable_fields: glob patterns over field paths ("logging.*", "checkpoints.keep_last") that do
        not change what is computed. If only these differ, the new values are written.
      hardware: description of the hardware, recorded for a new run.
      external_dir: location of the checkpoints outside the run folder; fixed once a run started.

    Raises:
      UserError: the folder holds a run with another config (the message lists the fields with both
        values), or its checkpoints are in another place than `external_dir`.
    """
    file, resolved = folder / CONFIG, to_json(config)
    content = {
        "config": resolved,
        "fingerprint": fingerprint(config),
        "versions": package_versions(),
    }
    content |= {"hardware": dict(hardware)} if hardware else {}
    content |= {_CHECKPOINT_DIR_KEY: external_dir} if external_dir else {}
    if not file.exists():
        write_json(file, content)
        return
    saved = _read_saved_config(file)
    changes, conflicts = _config_changes(saved["config"], config, mutable_fields, str(file))
    if conflicts:
        raise UserError(
            f"{folder} holds a run with another config:{_format_changes(conflicts)}\n"
            f"{_CONFLICT_REMEDY}"
        )
    saved_dir = str(checkpoint_dir(folder))
    # A resumed run in another place would find no checkpoint and start again from step 0.
    if external_dir not in (None, saved_dir) and not is_same_path(external_dir, saved_dir):
        raise UserError(
            f"the checkpoints of {folder} are in {saved_dir}, not in {external_dir}; "
            "leave out --checkpoints, or choose another run folder"
        )
    if changes:
        write_json(file, {**saved, "config": resolved, "fingerprint": content["fingerprint"]})


def check_checkpoint_config(
    saved_config: Any, config: Any, checkpoint: str, *, mutable_fields: Sequence[str] = ()
) -> None:
    """Checks that a checkpoint was saved by a run with this config.

    Args:
      saved_config: the JSON of the config that is saved with the checkpoint.
      checkpoint: names the checkpoint in messages.
      config, mutable_fields: as in `write_or_check_config`.

    Raises:
      UserError: the message lists the fields with both values.
    """
    _, conflicts = _config_changes(saved_config, config, mutable_fields, checkpoint)
    if conflicts:
        raise UserError(
            f"{checkpoint} was saved by a run with another config:{_format_changes(conflicts)}\n"
            f"{_CONFLICT_REMEDY}"
        )


@contextlib.contextmanager
def replaced_failed_start(
    folder: Path, config: Any, *, mutable_fields: Sequence[str] = (), tokenizer_folder: str
) -> Generator[bool]:
    """Moves the config and tokenizer of a failed start with another config to a backup folder.

    Without this, a mistake in the first command, such as a wrong `--init-from`, would stay in the
    run folder, and the corrected command would be refused. They are deleted after the `with` block,
    which writes the files of the new run; if it fails, they return to their places. The caller has
    made sure that there are no checkpoints. A run that was evaluated does not change.

    Yields:
      Whether there is a run with another config.
    """
    file, conflicts = folder / CONFIG, []
    if (folder / EVALUATION).exists():
        yield False
        return
    if file.is_file():
        saved = _read_saved_config(file)
        _, conflicts = _config_changes(saved["config"], config, mutable_fields, str(file))
    names = [MIXTURE, WITHOUT]  # nothing was trained on their batches yet
    if conflicts:  # the report would show the baselines and the attempts as the new run's
        names += [
            CONFIG,
            BASELINES,
            MINIMAL_PAIRS,
            TRACKERS,
            FITTED_HEADS,
            attempt_log.FILE,
            tokenizer_folder,
        ]
    _remove(folder / _PREVIOUS)
    (folder / _PREVIOUS).mkdir()
    _move(names, folder, folder / _PREVIOUS)
    try:
        yield bool(conflicts)
    # Also after Ctrl-C, which is no Exception.
    except BaseException:
        for name in names:
            _remove(folder / name)
        _move(names, folder / _PREVIOUS, folder)
        (folder / _PREVIOUS).rmdir()
        raise
    _remove(folder / _PREVIOUS)


def _move(names: Sequence[str], source: Path, target: Path) -> None:
    for name in names:
        if (source / name).exists():
            (source / name).rename(target / name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _read_saved_config(file: Path) -> dict[str, Any]:
    saved = read_json_object(file)
    if "config" not in saved:
        raise UserError(
            f"{file} was not written by bert_jax: it has no field 'config'; choose another run "
            "folder"
        )
    return saved


_Change = tuple[str, Any, Any]


def _config_changes(
    saved_config: Any, config: Any, mutable_fields: Sequence[str], source: str
) -> tuple[list[_Change], list[_Change]]:
    """Returns the fields that differ, and the ones among them that must not."""
    # Fields added since the config was saved get their default values.
    saved = to_json(from_json(type(config), saved_config, source))
    changes = diff(saved, to_json(config))
    return changes, [
        change for change in changes if not any(fnmatchcase(change[0], p) for p in mutable_fields)
    ]


def _format_changes(changes: Sequence[_Change]) -> str:
    return "".join(f"\n  {path}: {old!r} there, {new!r} now" for path, old, new in changes)


def external_checkpoint_dir(folder: Path) -> str | None:
    """Returns the location of checkpoints outside the run folder; None: they are in the folder.

    A folder `checkpoints` in the run folder takes precedence over the location in `config.json`, so
    a run folder that was copied together with its checkpoints is complete.
    """
    if (folder / CHECKPOINTS).is_dir() or not (folder / CONFIG).is_file():
        return None
    external_dir = read_json_object(folder / CONFIG).get(_CHECKPOINT_DIR_KEY)
    if external_dir is not None and not isinstance(external_dir, str):
        raise UserError(
            f"{folder / CONFIG}: {_CHECKPOINT_DIR_KEY} is {external_dir!r}; expected the folder of "
            "the checkpoints"
        )
    return external_dir


def checkpoint_dir(folder: Path) -> Path | str:
    """Returns the folder of the checkpoints: in the run folder, or as `config.json` says."""
    return external_checkpoint_dir(folder) or folder / CHECKPOINTS


def remove_run(folder: Path, initial_model: str | None = None) -> None:
    """Removes the content of a run folder, except tables, which the next run may read.

    Does nothing if there is no such folder, or if it has only tables.

    Raises:
      UserError: it is not a run folder, another process trains in it, `initial_model` is in it, or
        its checkpoints are elsewhere.
    """
    if not folder.exists():
        return
    if folder.is_dir() and {path.name for path in folder.iterdir()} == {TABLES}:
        return
    if initial_model and Path(initial_model).resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"--overwrite: {folder} has the initial weights, {initial_model}, so nothing was "
            "removed; choose another run folder"
        )
    if not is_run_folder(folder):
        raise UserError(
            f"--overwrite: {folder} is not a run folder, so nothing was removed; choose another "
            "run folder, or remove it yourself"
        )
    if external_dir := external_checkpoint_dir(folder):
        raise UserError(
            f"--overwrite removes only the run folder, but the checkpoints of {folder} are in "
            f"{external_dir}, so nothing was removed; choose another run folder and --checkpoints, "
            "or remove both yourself"
        )
    with lock_run_folder(folder):
        for path in folder.iterdir():
            if path.name == TABLES:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def is_run_folder(folder: Path) -> bool:
    """Returns whether `folder` is a run folder, with checkpoints in it or a location for them."""
    return (folder / CHECKPOINTS).is_dir() or external_checkpoint_dir(folder) is not None


def find_run(path: Path) -> tuple[Path, int | None] | None:
    """Returns the run folder at a path, and the step if the path is one of its checkpoints.

    The result is None for a path that is neither.
    """
    if is_run_folder(path):
        return path, None
    run = path.parent.parent
    if path.name.isdigit() and path.parent.name == CHECKPOINTS and is_run_folder(run):
        return run, int(path.name)
    return None
