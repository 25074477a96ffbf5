"""Sends the config and the metrics of a run to wandb, trackio, MLflow or TensorBoard.

`Track` is the hook; `--track NAME`, or `train.logging.track`, adds it. The libraries read their
settings and keys from their own environment variables and files (WANDB_MODE, MLFLOW_TRACKING_URI,
`wandb login`, ...), so that keys never appear in commands or logs.
"""

import importlib
import importlib.util
import json
import logging
import os
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.config.config_lib import flatten
from bert_jax.config.train import TrackerName
from bert_jax.errors import MissingExtraError, UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.runs.hooks import StepEvent, Throughput
from bert_jax.runs.metrics import EVALUATION, TRAIN
from bert_jax.runs.run_folder import TRACKERS

logger = logging.getLogger(__name__)

PROJECT = "bert_jax"
"""The project of wandb and trackio, and the experiment of MLflow; their environment variables may
set another."""
SECONDS_TO_FINISH = 30.0
"""How long the end of a run waits for unsent metrics, in seconds."""
_PACKAGES = {
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
    "tensorboard": "tensorboardX",
}


def check_tracker(name: TrackerName | None) -> None:
    """Raises a MissingExtraError unless the package of a tracker is installed."""
    if name is not None and importlib.util.find_spec(package := _PACKAGES[name]) is None:
        raise MissingExtraError(f"--track {name} needs {package}, which is not installed", name)


class _Tracked(NamedTuple):
    """Holds a tracked run; its functions may raise any exception.

    Attributes:
      id: names the tracked run, so that a resumed run continues it.
      log: sends {name: value} for a step, the number of updates so far.
      finish: waits until all values are sent.
    """

    id: str
    log: Callable[[int, dict[str, float]], object]
    finish: Callable[[], object]


class Track:
    """Sends what `MetricsLog` writes, and at the end the final evaluation, to a tracker.

    A thread sends the values, because a server that does not answer must not delay a step. If
    sending fails, one warning is logged and training continues.

    Args:
      name: the tracker.
      folder: the run folder; trackers.json stores the id of the tracked run.
      config: the config of the run, as JSON data.
      every, resume_step, peak_flops: as in `MetricsLog`.

    Raises:
      UserError: the tracker cannot start for a new run; a resumed run continues without it.
    """

    def __init__(
        self,
        name: TrackerName,
        folder: Path,
        config: dict[str, Any],
        *,
        every: int,
        resume_step: int = 0,
        peak_flops: float | None = None,
    ):
        self.every = every
        self._name, self._step, self._has_failed = name, resume_step, False
        self._throughput = Throughput(peak_flops)
        self._queue: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        file = folder / TRACKERS
        ids = read_json_object(file) if file.is_file() else {}
        self._thread = None
        try:
            tracked = _START[name](folder, ids.get(name), config, resume_step)
        except Exception as error:
            if not resume_step:
                raise UserError(
                    f"--track {name}: {_describe(error)}; fix this, or leave out --track: metrics "
                    "are saved in metrics.jsonl anyway"
                ) from error
            self._warn(error)
            return
        write_json(file, {**ids, name: tracked.id})
        self._thread = threading.Thread(target=self._send, args=(tracked,), daemon=True)
        self._thread.start()

    def __call__(self, event: StepEvent) -> None:
        """Sends the metrics of one training step."""
        self._step = event.step
        self._put(event.step, TRAIN, {**event.metrics, **self._throughput.measure(event)})

    def write_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the metrics of an evaluation after `step` updates."""
        self._put(step, EVALUATION, values)

    def write_final(self, results: Mapping[str, Any]) -> None:
        """Sends the numbers of evaluation.json."""
        self._put(self._step, "final", dict(_numbers(results)))

    def close(self) -> None:
        """Waits until the values are sent, at most 30 seconds."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(SECONDS_TO_FINISH)
        if self._thread.is_alive():
            self._warn(TimeoutError(f"no answer in {SECONDS_TO_FINISH:.0f} s"))

    def _put(self, step: int, split: str, values: Mapping[str, float]) -> None:
        if self._thread is not None:
            self._queue.put((step, {f"{split}/{name}": value for name, value in values.items()}))

    def _send(self, tracked: _Tracked) -> None:
        """Sends what is queued, until None."""
        while True:
            item = self._queue.get()
            try:
                if item is not None:
                    tracked.log(*item)
                else:
                    tracked.finish()
            except Exception as error:  # of any library, network or disk
                self._warn(error)
            if item is None:
                return

    def _warn(self, error: Exception) -> None:
        if not self._has_failed:
            logger.warning(
                "warning: some or all metrics did not reach %s: %s; the run is not affected, and "
                "metrics.jsonl and evaluation.json have them",
                self._name,
                _describe(error),
            )
        self._has_failed = True


def _numbers(results: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers of nested results named by their path of keys, as in "dev/f1_at_0.5"."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


def _describe(error: Exception) -> str:
    """Returns the first line of an error, without credentials in a URL."""
    first_line = (str(error).splitlines() or [""])[0]
    return re.sub(r"//[^/@\s]*@", "//", f"{type(error).__name__}: {first_line}")


def _start_wandb(folder: Path, run_id: str | None, config: Any, resume_step: int) -> _Tracked:
    run_id = run_id or uuid.uuid4().hex[:8]
    run = importlib.import_module("wandb").init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=os.environ.get("WANDB_NAME", folder.resolve().name),
        id=run_id,
        resume="allow",
        dir=str(folder),
        config=config,
        allow_val_change=True,
    )
    # A resumed run repeats steps, but the counter of wandb itself never goes back.
    run.define_metric("*", step_metric="step")
    return _Tracked(run_id, lambda step, values: run.log({"step": step, **values}), run.finish)


def _start_trackio(folder: Path, run_id: str | None, config: Any, resume_step: int) -> _Tracked:
    run_id = run_id or f"{folder.resolve().name}-{uuid.uuid4().hex[:6]}"
    run = importlib.import_module("trackio").init(
        os.environ.get("TRACKIO_PROJECT", PROJECT), run_id, config=config, resume="allow"
    )
    return _Tracked(run_id, lambda step, values: run.log(values, step=step), run.finish)


def _start_mlflow(folder: Path, run_id: str | None, config: Any, resume_step: int) -> _Tracked:
    mlflow, entities = map(importlib.import_module, ("mlflow", "mlflow.entities"))
    # Its default of 7 makes each call to a dead server last 4 minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    client = mlflow.MlflowClient()
    if run_id is None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        run_id = str(client.create_run(experiment, run_name=folder.resolve().name).info.run_id)
        fields = flatten(config).items()
        params = [entities.Param(path, str(value)[:500]) for path, value in fields]
        for start in range(0, len(params), 100):  # the largest batch that a server accepts
            client.log_batch(run_id, params=params[start : start + 100])
    else:
        client.update_run(run_id, status="RUNNING")
    id_ = run_id

    def log(step: int, values: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [entities.Metric(name, value, now, step) for name, value in values.items()]
        client.log_batch(id_, metrics=metrics)

    return _Tracked(id_, log, lambda: client.set_terminated(id_))


def _start_tensorboard(folder: Path, run_id: str | None, config: Any, resume_step: int) -> _Tracked:
    # TensorBoard hides events from `purge_step` on; the resumed run writes them again.
    writer = importlib.import_module("tensorboardX").SummaryWriter(
        str(folder / "tensorboard"),
        purge_step=resume_step + 1 if resume_step else None,
        filename_suffix=f".step-{resume_step}",  # the name has only the second
    )
    if not resume_step:
        writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```")

    def log(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return _Tracked("tensorboard", log, writer.close)


_START: dict[TrackerName, Callable[[Path, str | None, Any, int], _Tracked]] = {
    "wandb": _start_wandb,
    "trackio": _start_trackio,
    "mlflow": _start_mlflow,
    "tensorboard": _start_tensorboard,
}
