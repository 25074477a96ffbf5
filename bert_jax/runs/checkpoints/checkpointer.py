"""Saves and restores checkpoints with orbax, adding checksums and readable errors.

Orbax splits an array of which several devices have a copy, and each of them writes one slice. That
is faster for large arrays. For a bias, compiling and running the slicing takes longer than writing
the array, so arrays with small slices are written by one device. The format on disk is the same:
checkpoints of `ocp.StandardCheckpointHandler`, which earlier versions used, are read by these
handlers, too.

Each step is a folder that becomes visible by a rename when it is complete:

    <folder>/<step>/params/        the parameters, which can be read without the rest
                    training/      the rest of the state: step and optimizer state
                    info/          JSON: data position, resolved config, versions, metrics
                    checksums.json a checksum for each file, written before the rename

Arrays are saved under their path in the state ("opt_state/0/mu/encoder/..."). A checkpoint
therefore does not depend on optax's classes, on the mesh, or on the number of processes.
"""

import json
import logging
import math
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, Literal

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bert_jax.errors import UserError
from bert_jax.parallel.processes import run_on_process_0
from bert_jax.params import paths
from bert_jax.runs.checkpoints import checksums, step_folder
from bert_jax.runs.checkpoints.step_folder import INFO, PARAMS, TRAINING

MIN_SLICE_BYTES = 1 << 20
"""The smallest slice of an array that a device writes."""


# By default orbax slices every array of which several devices have a copy. For small arrays that
# takes longer than writing: 64 arrays of 2 kB on 8 CPU devices are saved in 0.34 s instead of 0.77
# s (mean of 10, two busy cores of an AMD EPYC).
def make_handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """Returns the handlers of all items, for `ocp.CheckpointManager`.

    Unlike orbax's default, they write no array metadata. Only typed PRNG keys and custom chunks
    need it, and a state has neither. They save arrays and NumPy numbers, but no Python numbers.
    """
    types = ocp.type_handlers.create_type_handler_registry(
        (
            jax.Array,
            ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=MIN_SLICE_BYTES),
        ),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
        (np.number, ocp.type_handlers.ScalarHandler()),
    )
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item in (PARAMS, TRAINING):
        handler = ocp.PyTreeCheckpointHandler(type_handler_registry=types)
        handlers.add(item, ocp.args.PyTreeSave, handler)
        handlers.add(item, ocp.args.PyTreeRestore, handler)
    json_handler = ocp.JsonCheckpointHandler()
    handlers.add(INFO, ocp.args.JsonSave, json_handler)
    handlers.add(INFO, ocp.args.JsonRestore, json_handler)
    return handlers


DAMAGED_SUFFIX = ".damaged"
_TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"


class Checkpointer:
    """Saves and restores the checkpoints of one run; a context manager.

    With several processes, every process creates one and calls every method.

    Args:
      folder: contains a folder for each step; created if needed; may be a gs:// path.
      keep_last: number of newest checkpoints to keep.
      best_metric: name of a metric given to `save`; the best checkpoint is kept as well.
      best_mode: whether the smallest or the largest value of that metric is the best.
    """

    def __init__(
        self,
        folder: epath.PathLike,
        *,
        keep_last: int = 3,
        best_metric: str | None = None,
        best_mode: Literal["min", "max"] = "min",
    ):
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}; at least 1 checkpoint must be kept")
        self.folder = step_folder.absolute_path(folder)
        if run_on_process_0(lambda: self.folder.exists() and not self.folder.is_dir()):
            raise UserError(f"{self.folder} is a file; expected a folder for the checkpoints")
        self._best_metric = best_metric
        self._saving_step: int | None = None
        self._valid_step: int | None = None
        _hide_tracebacks_of_background_saves()
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=self._options(keep_last, best_mode),
            handler_registry=make_handlers(),
        )

    def _options(self, keep_last: int, best_mode: str) -> ocp.CheckpointManagerOptions:
        worst = math.inf if best_mode == "min" else -math.inf
        policies: list[Any] = [preservation_policy.LatestN(keep_last)]

        def best_metric_value(metrics: Mapping[str, float] | None) -> float:
            return (metrics or {}).get(self._best_metric or "", worst)

        if self._best_metric:
            best_policy = preservation_policy.BestN(
                get_metric_fn=best_metric_value,
                reverse=best_mode == "min",
                n=1,
                # By default every checkpoint without a metric would be kept forever.
                keep_checkpoints_without_metrics=False,
            )
            policies.append(best_policy)
        return ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
            best_fn=best_metric_value if self._best_metric else None,
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
        """Starts saving in the background; returns when `state` may be donated.

        Args:
          step: number of updates done; the name of the checkpoint.
          state: a dict of pytrees of arrays with the key "params".
          info: JSON values: position, config, versions, metrics.
          metrics: metrics of this step; `best_metric` selects the one to rank by.

        Returns:
          False if this step is already saved (nothing is written), else True.

        Raises:
          UserError: this save, or the one before it, could not be written.
        """
        self.wait()
        if step in self._manager.all_steps():
            return False
        rankable_metrics = {
            name: float(value)
            for name, value in (metrics or {}).items()
            if name == self._best_metric and math.isfinite(value)
        }
        trees = step_folder.by_item(step_folder.by_path(state))
        items = {item: ocp.args.PyTreeSave(tree) for item, tree in trees.items()}
        json.dumps(info)  # raises here, not in the background thread, if a value is not JSON
        composite = ocp.args.Composite(**items, info=ocp.args.JsonSave(dict(info)))
        self._saving_step, self._valid_step = step, None
        with self._as_user_errors():
            self._manager.save(
                step,
                args=composite,
                metrics=rankable_metrics if self._best_metric else None,
                force=True,
            )
        return True

    def wait(self) -> None:
        """Blocks until the save in progress, if any, is on disk.

        Raises:
          UserError: it could not be written.
        """
        with self._as_user_errors():
            self._manager.wait_until_finished()
        self._saving_step = None

    def close(self) -> None:
        """Waits for the save in progress and frees the background threads."""
        with self._as_user_errors():
            self._manager.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest_valid_step(self) -> int | None:
        """Returns the newest valid step; None if there are no checkpoints.

        Damaged steps are skipped with a warning that names the files.

        Raises:
          UserError: there are checkpoints, but none is valid; or the save in progress failed.
        """
        self.wait()
        self._valid_step = run_on_process_0(
            lambda: step_folder.latest_valid_step(self.folder, self._manager.all_steps())
        )
        return self._valid_step

    def restore(
        self, abstract_state: Mapping[str, Any], step: int | None = None
    ) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Reads a checkpoint directly into the shardings of `abstract_state`.

        The mesh and the number of processes may differ from the run that saved it. Without
        `step`, damaged checkpoints after the newest valid one are renamed to <step>.damaged, so
        that the run can save these steps again.

        Args:
          abstract_state: the state as `jax.ShapeDtypeStruct(..., sharding=...)` leaves.
          step: the step to restore; None: the newest valid one.

        Returns:
          (state, info, step), `state` with the structure, shapes and dtypes of `abstract_state`.

        Raises:
          UserError: there is no valid checkpoint, or it belongs to another model or optimizer.
        """
        self.wait()
        if step is None:
            step = self._valid_step if self._valid_step is not None else self.latest_valid_step()
            if step is None:
                raise UserError(f"{self.folder} holds no checkpoint to restore")
            self._rename_steps_after(step)
        else:
            run_on_process_0(lambda: step_folder.verify_step(self.folder / str(step)))
        expected_arrays = step_folder.by_path(abstract_state)
        run_on_process_0(
            lambda: step_folder.check_compatible(self.folder / str(step), expected_arrays)
        )
        trees = step_folder.by_item(expected_arrays)
        items = {
            item: ocp.args.PyTreeRestore(
                tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree)
            )
            for item, tree in trees.items()
        }
        restored = self._manager.restore(
            step, args=ocp.args.Composite(**items, info=ocp.args.JsonRestore())
        )
        restored_arrays = paths.flatten({**restored[TRAINING], PARAMS: restored[PARAMS]})
        # A folder may have been renamed by hand; the counter in the state would then disagree with
        # the run.
        if "step" in restored_arrays and int(restored_arrays["step"]) != step:
            raise UserError(
                f"{self.folder / str(step)} holds the checkpoint of step "
                f"{int(restored_arrays['step'])}; rename the folder to that step, or remove it"
            )
        leaves = [restored_arrays[path] for path in expected_arrays]
        state = jax.tree.unflatten(jax.tree.structure(abstract_state), leaves)
        return state, restored[INFO], step

    def _rename_steps_after(self, step: int) -> None:
        newer_steps = [newer_step for newer_step in self._manager.all_steps() if newer_step > step]

        def rename() -> None:
            for newer_step in newer_steps:
                target, suffix_number = self.folder / f"{newer_step}{DAMAGED_SUFFIX}", 2
                while target.exists():
                    target, suffix_number = (
                        self.folder / f"{newer_step}{DAMAGED_SUFFIX}-{suffix_number}",
                        suffix_number + 1,
                    )
                (self.folder / str(newer_step)).rename(target)

        if newer_steps:
            run_on_process_0(rename)
            self._manager.reload()

    def _write_checksums(self) -> None:
        """Writes the checksums; called in the saving thread before the folder is renamed."""
        if jax.process_index() != 0 or self._saving_step is None:
            return
        temporary_folder = self.folder / f"{self._saving_step}{_TEMPORARY_SUFFIX}"
        checksums.write_checksums(
            temporary_folder if temporary_folder.exists() else self.folder / str(self._saving_step),
            self._saving_step,
        )

    @contextmanager
    def _as_user_errors(self) -> Generator[None]:
        try:
            yield
        except Exception as error:  # orbax and the file systems raise many kinds
            failed_step, self._saving_step = self._saving_step, None
            self._manager.reload()
            last_saved_step = max(self._manager.all_steps(), default=None)
            last_saved = (
                "no earlier checkpoint exists"
                if last_saved_step is None
                else f"the last checkpoint is step {last_saved_step}"
            )
            failed = (
                "a checkpoint" if failed_step is None else f"the checkpoint of step {failed_step}"
            )
            raise UserError(
                f"{failed} could not be written in {self.folder}: "
                f"{_short_error(error)}; {last_saved}; check free space, quota and permissions "
                "there, then run the same command to resume"
            ) from error


def _short_error(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else f"{text[:140]} ... {text[-140:]}"


def _hide_tracebacks_of_background_saves() -> None:
    """Hides the tracebacks of a failed save, which is raised as a UserError anyway.

    orbax logs one. asyncio logs one for each array after the first that failed, and TensorStore
    reports one for each write that ends after orbax has closed its event loop.
    """

    def is_not_of_failed_save(record: logging.LogRecord) -> bool:
        # Other programs with asyncio, such as the server, keep the tracebacks of their own tasks.
        traceback = record.exc_info[2] if record.exc_info else None
        frames = (frame for frame, _ in walk_tb(traceback))
        return not any("orbax" in frame.f_code.co_filename for frame in frames)

    for name in ("absl", "asyncio"):
        logger = logging.getLogger(name)
        if not any(
            getattr(f, "__name__", "") == is_not_of_failed_save.__name__ for f in logger.filters
        ):
            logger.addFilter(is_not_of_failed_save)

    earlier_hook = sys.unraisablehook

    def report_others(unraisable: "sys.UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            earlier_hook(unraisable)

    if getattr(earlier_hook, "__name__", "") != report_others.__name__:
        sys.unraisablehook = report_others
