"""Reads the files of a run folder that its report shows, and derives what state the run is in."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.io.json_io import read_json_object
from bert_jax.report.svg_charts import Phase
from bert_jax.runs import attempt_log, metrics, run_folder
from bert_jax.runs.attempt_log import Attempt

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Holds what the files of a run folder contain; a file that does not exist is empty here.

    Attributes:
      info: config.json.
      training, evaluations: lines of metrics.jsonl.
      results: evaluation.json, the final metrics.
      analysis: analysis.json, the error analysis of fine-tuning.
      baselines: baselines.json, the n-gram models of `bert-jax baselines`.
      minimal_pairs: minimal_pairs.json, a row for each checkpoint, by `bert-jax minimal-pairs`.
      attempts: the processes that trained, oldest first.
    """

    folder: Path
    info: Mapping[str, Any]
    training: Sequence[Row]
    evaluations: Sequence[Row]
    results: Mapping[str, Any]
    analysis: Mapping[str, Any]
    baselines: Mapping[str, Any]
    minimal_pairs: Sequence[Row]
    attempts: Sequence[Attempt]

    @property
    def config(self) -> Mapping[str, Any]:
        """Returns the resolved config as JSON values."""
        return self.info.get("config", {})

    @property
    def is_pretraining(self) -> bool:
        """Returns whether the data of the run is a prepared corpus."""
        return nested(self.config, "data", "type") in (None, "PretrainingData")

    @property
    def total_steps(self) -> int:
        """Returns the number of updates of the whole run; 0 if the config has no phases."""
        return sum(phase["steps"] for phase in nested(self.config, "train", "phases") or ())

    @functools.cached_property
    def last_step(self) -> int:
        """Returns the last update that was logged."""
        return max((row["step"] for row in (*self.training, *self.evaluations)), default=0)

    @property
    def outcome(self) -> str | None:
        """Returns how the last process ended; None if it was killed or is still training."""
        if self.attempts:
            return self.attempts[-1].outcome
        # Runs of earlier versions have no attempts.jsonl.
        is_complete = bool(self.analysis) or self.last_step >= self.total_steps > 0
        return "complete" if is_complete else None

    @property
    def is_complete(self) -> bool:
        """Returns whether the run trained to its end, or to its early stopping."""
        return self.outcome in ("complete", "stopped early")

    @property
    def eval_split(self) -> str:
        """Returns the name of the data that is evaluated during training, such as "dev"."""
        return nested(self.config, "train", "evaluation", "split") or "held-out"

    @property
    def best_metric(self) -> str | None:
        """Returns the metric of the evaluation that checkpoints are ranked by."""
        return nested(self.config, "train", "checkpoints", "best_metric")

    @functools.cached_property
    def phases(self) -> list[Phase]:
        """Returns the phases up to the last logged update, named by their sequence length."""
        phases, start = list[Phase](), 0
        for phase in nested(self.config, "train", "phases") or ():
            end = min(start + phase["steps"], self.last_step)
            if start < end:
                phases.append(Phase(name=f"{phase['seq_length']} tokens", start=start, end=end))
            start = end
        return phases

    def best_evaluation(self) -> Row | None:
        """Returns the evaluation with the best value of `best_metric`; None if there is none."""
        name = self.best_metric
        if name is None:
            return None
        rows = [row for row in self.evaluations if row.get(name) is not None]
        sign = 1 if nested(self.config, "train", "checkpoints", "best_mode") == "max" else -1
        # Of equal ones the last, as the checkpointer does.
        return max(reversed(rows), key=lambda row: sign * row[name], default=None)


def read_run(folder: Path) -> RunData:
    """Reads the files of a run folder.

    Raises:
      UserError: `folder` is not a run folder, or one of the files is damaged.
    """
    info = read_json_object(folder / run_folder.CONFIG)
    rows = metrics.read_metrics(folder / metrics.FILE)
    results, analysis, baselines, minimal_pairs = (
        read_json_object(folder / file) if (folder / file).exists() else {}
        for file in (
            run_folder.EVALUATION,
            run_folder.ANALYSIS,
            run_folder.BASELINES,
            run_folder.MINIMAL_PAIRS,
        )
    )
    return RunData(
        folder=folder,
        info=info,
        training=[row for row in rows if row["split"] == metrics.TRAIN],
        evaluations=[row for row in rows if row["split"] == metrics.EVALUATION],
        results=results,
        analysis=analysis,
        baselines=baselines,
        minimal_pairs=minimal_pairs.get("checkpoints", ()),
        attempts=attempt_log.read_attempts(folder),
    )


def nested(values: Any, *names: str) -> Any:
    """Returns the value at a path of keys; None if a key is missing on the way."""
    for name in names:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def tokens_read(phases: Sequence[Mapping[str, Any]], step: int) -> int:
    """Returns the tokens of all sequences of a run up to a step, padding included.

    Args:
      phases: `train.phases` of the config of the run, as JSON values.
    """
    tokens = 0
    for phase in phases:
        updates = min(step, phase["steps"])
        tokens += updates * phase["batch_size"] * phase["seq_length"]
        step -= updates
    return tokens
