"""The folder of one run: who may train there, and with which config.

    <run folder>/config.json      resolved config, its fingerprint, package versions, hardware
                 lock             held by the process that trains here
                 checkpoints/     see checkpoint.py; or elsewhere, as config.json then says
                 metrics.jsonl    see metrics_log.py
                 evaluation.json  results of the final evaluation
                 analysis.json    of fine-tuning: what report and model card say beyond metrics
                 predictions/     of fine-tuning: each split's, as JSON lines; of several tasks
                                  in a folder for each
                 encoder_states/  of an encoder that reads once, see encoder_states.py
                 compiled/        programs, see compilation_cache.py; may be deleted
                 report.html      see report.py

Imports neither jax nor TensorFlow.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import write_json
from bert_jax.config_lib import diff, fingerprint, from_json, to_json
from bert_jax.errors import UserError
from bert_jax.legacy_names import upgrade_analysis, upgrade_config

CONFIG, LOCK, CHECKPOINTS, EVALUATION = "config.json", "lock", "checkpoints", "evaluation.json"
ANALYSIS = "analysis.json"
# A key of config.json, beside "config": no part of what is computed.
_CHECKPOINT_DIR_KEY = "checkpoints"
_PACKAGES = ("bert_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run computes."""
    versions_by_package = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions_by_package[package] = metadata.version(package)
    return versions_by_package


def read_json(file: Path) -> Any:
    """Reads JSON.

    Raises:
      UserError: the file is absent, or not JSON (with the line).
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; expected the folder of a run there") from None
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}; restore it from a copy") from None
    if file.name == CONFIG:
        return upgrade_config(data)
    return upgrade_analysis(data) if file.name == ANALYSIS else data


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the resolved config of a run as JSON.

    Raises:
      UserError: `folder` is not a run folder.
    """
    content = read_json(folder / CONFIG)
    if not isinstance(content, dict) or "config" not in content:
        raise UserError(f"{folder / CONFIG} was not written by bert_jax; expected a run folder")
    return content["config"]


@contextlib.contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Makes the run folder if absent and keeps every other process from training in it.

    The system frees the lock when its holder ends, however it ends, so a lock file left behind by
    a dead process is no obstacle. Only process 0 of a run calls this.

    Raises:
      UserError: another process trains there (named), or the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder} cannot be used as a run folder: {error.strerror}") from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise UserError(
                    f"{folder / LOCK} cannot be locked: {error.strerror}; "
                    "choose a run folder on a file system that has locks"
                ) from None
            stream.seek(0)
            holder = stream.read().strip() or "another process"
            raise UserError(
                f"{folder} is in use: {holder} trains there; wait for it, stop it, "
                "or choose another run folder"
            ) from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        yield


def write_or_check_config(
    folder: Path,
    config: Any,
    *,
    mutable_fields: Sequence[str] = (),
    hardware: Mapping[str, Any] | None = None,
    external_dir: str | None = None,
) -> None:
    """Writes `config.json` into a new run folder; in a used one, insists on the same config.

    Args:
      folder: an existing run folder.
      config: the root dataclass.
      may_differ: glob patterns over field paths ("logging.*", "checkpoints.keep_last") that do not
        change what is computed. When only these differ, the new values are written.
      hardware: what a new run starts on, for the record.
      checkpoints: where they are to be, if not in the folder; a used folder keeps to its place.

    Raises:
      UserError: another config was used here; names the fields with both values. Or the
        checkpoints are elsewhere.
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
    saved = read_json(file)
    if not isinstance(saved, dict) or "config" not in saved:
        raise UserError(f"{file} was not written by bert_jax; choose another run folder")
    # Fields that came into being after the folder was written have their defaults there.
    saved_config = to_json(from_json(type(config), saved["config"], str(file)))
    changes = diff(saved_config, resolved)
    conflicts = [
        change for change in changes if not any(fnmatchcase(change[0], p) for p in mutable_fields)
    ]
    if conflicts:
        lines = "".join(f"\n  {path}: {old!r} there, {new!r} now" for path, old, new in conflicts)
        raise UserError(
            f"{folder} holds a run with another config:{lines}\n"
            "take these values back, or choose another run folder"
        )
    if external_dir is not None and external_dir != str(checkpoint_dir(folder)):
        raise UserError(
            f"the checkpoints of {folder} are in {checkpoint_dir(folder)}, not in {external_dir}; "
            "leave out --checkpoints, or choose another run folder"
        )
    if changes:
        write_json(file, {**saved, "config": resolved, "fingerprint": content["fingerprint"]})


def external_checkpoint_dir(folder: Path) -> str | None:
    """Where the checkpoints of a run are, if not in its folder; None: there.

    Those in the folder come first: a run's folder that was copied with them is a whole one.
    """
    if (folder / CHECKPOINTS).is_dir() or not (folder / CONFIG).is_file():
        return None
    saved = read_json(folder / CONFIG)
    return saved.get(_CHECKPOINT_DIR_KEY) if isinstance(saved, dict) else None


def checkpoint_dir(folder: Path) -> Path | str:
    """Where the checkpoints of a run are: in its folder, or where its config.json says."""
    return external_checkpoint_dir(folder) or folder / CHECKPOINTS


def is_run_folder(folder: Path) -> bool:
    """Whether a folder is that of a run that has checkpoints, or has said where they will be."""
    return (folder / CHECKPOINTS).is_dir() or external_checkpoint_dir(folder) is not None
