"""Saving and restoring a run: orbax beneath; names, checksums and clear errors from here.

One step is one folder, committed by a rename:

    <folder>/<step>/params/        the parameters, so that they can be read without the rest
                    training/      everything else of the state: step, optimizer state
                    info/          JSON: data position, resolved config, versions, metrics
                    checksums.json one sum for each file, written before the rename

Every array is kept under its path in the state as a string ("opt_state/0/mu/encoder/..."), so a
checkpoint knows neither optax's classes nor the mesh or the number of processes that wrote it.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bert_jax import paths
from bert_jax.errors import UserError
from bert_jax.train import checkpoint_folder, checksums
from bert_jax.train.checkpoint_folder import INFO, PARAMS, TRAINING
from bert_jax.train.distributed import agree

SET_ASIDE = ".damaged"
_TEMPORARY = ".orbax-checkpoint-tmp"


class Checkpointer:
    """The checkpoints of one run. Every process makes one and calls every method; use `with`.

    Args:
      folder: holds one folder for each step; made if absent; may be a gs:// path.
      keep_last: this many newest checkpoints are kept.
      keep_best: name of a metric given to `save`; the checkpoint best in it is kept as well.
      best_mode: whether a small or a large value of that metric is best.
    """

    def __init__(
        self,
        folder: epath.PathLike,
        *,
        keep_last: int = 3,
        keep_best: str | None = None,
        best_mode: Literal["min", "max"] = "min",
    ):
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}; at least 1 checkpoint must be kept")
        self.folder = checkpoint_folder.absolute(folder)
        if agree(lambda: self.folder.exists() and not self.folder.is_dir()):
            raise UserError(f"{self.folder} is a file; checkpoints need a folder there")
        self._metric = keep_best
        self._saving: int | None = None
        self._usable: int | None = None
        _hide_tracebacks_of_background_saves()
        self._manager = ocp.CheckpointManager(
            self.folder, options=self._options(keep_last, best_mode)
        )

    def _options(self, keep_last: int, best_mode: str) -> ocp.CheckpointManagerOptions:
        worst = math.inf if best_mode == "min" else -math.inf
        policies: list[Any] = [preservation_policy.LatestN(keep_last)]

        def metric(metrics: Mapping[str, float] | None) -> float:
            return (metrics or {}).get(self._metric or "", worst)

        if self._metric:
            best = preservation_policy.BestN(
                get_metric_fn=metric,
                reverse=best_mode == "min",
                n=1,
                keep_checkpoints_without_metrics=False,
            )
            policies.append(best)
        return ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
            best_fn=metric if self._metric else None,
            best_mode=best_mode,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_checksums),
        )

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        info: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """Starts saving; returns as soon as `state` may be donated, and writes beside training.

        Args:
          step: number of updates done; the checkpoint's name.
          state: a dict of pytrees of arrays with the key "params".
          info: JSON values: position, config, versions, metrics.
          metrics: the values that `keep_best` chooses among.

        Returns:
          False when this step is saved already (nothing is written), else True.

        Raises:
          UserError: this save, or the one before it, could not be written.
        """
        self.wait()
        if step in self._manager.all_steps():
            return False
        ranked = {
            name: float(value)
            for name, value in (metrics or {}).items()
            if name == self._metric and math.isfinite(value)
        }
        trees = checkpoint_folder.by_item(checkpoint_folder.by_path(state))
        items = {item: ocp.args.StandardSave(tree) for item, tree in trees.items()}
        json.dumps(info)  # a value that is not JSON is our own mistake: let it raise as such
        composite = ocp.args.Composite(**items, info=ocp.args.JsonSave(dict(info)))
        self._saving, self._usable = step, None
        with self._clear_errors():
            self._manager.save(
                step, args=composite, metrics=ranked if self._metric else None, force=True
            )
        return True

    def wait(self) -> None:
        """Blocks until the save in progress, if any, is on disk.

        Raises:
          UserError: it could not be written.
        """
        with self._clear_errors():
            self._manager.wait_until_finished()
        self._saving = None

    def close(self) -> None:
        """Waits, then frees the background threads."""
        with self._clear_errors():
            self._manager.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest_verified(self) -> int | None:
        """The newest step whose files are as they were written; None if nothing was ever saved.

        Steps passed over are warned about, with the names of the files.

        Raises:
          UserError: there are checkpoints, but none is usable; or the save in progress failed.
        """
        self.wait()
        self._usable = agree(
            lambda: checkpoint_folder.newest_usable(self.folder, self._manager.all_steps())
        )
        return self._usable

    def restore(
        self, abstract_state: Mapping[str, Any], step: int | None = None
    ) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Reads a checkpoint straight into the shardings of `abstract_state`.

        The mesh and the number of processes may differ from those that saved. Without `step`, the
        newest usable one is taken, and unusable ones after it are renamed to <step>.damaged, so
        that the run can save under these numbers again.

        Args:
          abstract_state: the state's structure, with `jax.ShapeDtypeStruct(..., sharding=...)`.
          step: a certain step instead of the newest usable one.

        Returns:
          (state, info, step), `state` with the structure, shapes and dtypes of `abstract_state`.

        Raises:
          UserError: no usable checkpoint, or one of another model or optimizer.
        """
        self.wait()
        if step is None:
            step = self._usable if self._usable is not None else self.latest_verified()
            if step is None:
                raise UserError(f"{self.folder} holds no checkpoint to restore")
            self._set_aside_after(step)
        else:
            agree(lambda: checkpoint_folder.require_usable(self.folder / str(step)))
        wanted = checkpoint_folder.by_path(abstract_state)
        agree(lambda: checkpoint_folder.require_same_arrays(self.folder / str(step), wanted))
        trees = checkpoint_folder.by_item(wanted)
        items = {item: ocp.args.StandardRestore(tree) for item, tree in trees.items()}
        restored = self._manager.restore(
            step, args=ocp.args.Composite(**items, info=ocp.args.JsonRestore())
        )
        found = paths.flatten({**restored[TRAINING], PARAMS: restored[PARAMS]})
        leaves = [found[path] for path in wanted]
        state = jax.tree.unflatten(jax.tree.structure(abstract_state), leaves)
        return state, restored[INFO], step

    def _set_aside_after(self, step: int) -> None:
        newer = [other for other in self._manager.all_steps() if other > step]

        def rename() -> None:
            for other in newer:
                target, number = self.folder / f"{other}{SET_ASIDE}", 2
                while target.exists():
                    target, number = self.folder / f"{other}{SET_ASIDE}-{number}", number + 1
                (self.folder / str(other)).rename(target)

        if newer:
            agree(rename)
            self._manager.reload()

    def _write_checksums(self) -> None:
        """Called in the saving thread, when all files are written and none is committed."""
        if jax.process_index() != 0 or self._saving is None:
            return
        aside = self.folder / f"{self._saving}{_TEMPORARY}"
        checksums.write(aside if aside.exists() else self.folder / str(self._saving))

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the storage layers beneath raise
            step, self._saving = self._saving, None
            self._manager.reload()
            good = max(self._manager.all_steps(), default=None)
            state = "nothing was saved before" if good is None else f"step {good} is the last good"
            raise UserError(
                f"the checkpoint of step {step} could not be written in {self.folder}: "
                f"{_reason(error)}; {state}; look at the space, quota and rights there, then run "
                "the same command to go on"
            ) from error


def restore_params(
    folder: epath.PathLike, step: int | None = None
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Reads the parameters alone, as NumPy arrays, on every process that calls it.

    Args:
      folder: a folder of checkpoints, as given to `Checkpointer`. Nothing in it is changed.
      step: a certain step instead of the newest usable one.

    Returns:
      (params, info, step); `params` is a nested dict with string keys.

    Raises:
      UserError: no such folder, no checkpoint in it, or none that is usable.
    """
    root = checkpoint_folder.absolute(folder)
    steps, needed = checkpoint_folder.steps(root), (f"{PARAMS}/", f"{INFO}/")
    if step is None:
        step = checkpoint_folder.newest_usable(root, steps, only=needed)
    elif step not in steps:
        raise UserError(f"{root} has no step {step}; steps there: {steps}")
    else:
        checkpoint_folder.require_usable(root / str(step), only=needed)
    if step is None:
        raise UserError(f"{root} holds no checkpoint")
    here = root / str(step)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        names = checkpoint_folder.arrays(here / PARAMS)
        args = paths.unflatten({n: ocp.RestoreArgs(restore_type=np.ndarray) for n in names})
        params = reader.restore(here / PARAMS, args=ocp.args.PyTreeRestore(restore_args=args))
    return params, checkpoint_folder.read_info(here), step


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else f"{text[:140]} ... {text[-140:]}"


def _hide_tracebacks_of_background_saves() -> None:
    """Orbax logs a failed save with its traceback; we raise the same failure as one message."""

    def keep(record: logging.LogRecord) -> bool:
        return not ("orbax" in record.pathname and record.exc_info)

    logger = logging.getLogger("absl")
    if not any(getattr(f, "__name__", "") == keep.__name__ for f in logger.filters):
        logger.addFilter(keep)
