"""Defines trials, each a setting of a fine-tuning run with several seeds, and reads their results.

A trial's folder is `<task>/<setting>/seed-<n>`, or `<task>/seed-<n>` if there is only one setting.
Trials are compared by the median of the task's first metric on dev over their seeds.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_jax.apps.studies.jobs import FOLDER_PLACEHOLDER, Job, is_finished
from bert_jax.errors import UserError
from bert_jax.io.json_io import read_json_object
from bert_jax.runs import run_folder
from bert_jax.tasks.metrics.bootstrap import summarize_seeds

FLAG_SETTINGS = ("epochs", "batch_size", "learning_rate", "max_length")
"""Settings with a flag of `bert-jax finetune`; any other setting is a config field."""

Setting = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Describes one setting of a task and its runs.

    Attributes:
      folder: the folder of its runs, relative to the output; "" for the output itself.
      setting: {flag or config field: value}.
      seeds: the seeds of its runs.
      base_arguments: arguments of `bert-jax finetune` that all trials share, without --set.
      overrides: FIELD=VALUE that all trials share.
      models: {seed: the model that its run starts from}.
      cost: the cost of one run (see `Job`).
    """

    folder: str
    setting: Setting
    seeds: tuple[int, ...]
    base_arguments: tuple[str, ...]
    overrides: tuple[str, ...]
    models: Mapping[int, str]
    cost: float

    def job(self, seed: int) -> Job:
        """Returns the job of one seed."""
        # Sorted, so that the same setting gives the same command in any order of its fields.
        sorted_setting = sorted(self.setting.items())
        flags = {name: value for name, value in sorted_setting if name in FLAG_SETTINGS}
        fields = {name: value for name, value in sorted_setting if name not in FLAG_SETTINGS}
        arguments = [*self.base_arguments, "--model", self.models[seed], "--seed", str(seed)]
        for name, value in flags.items():
            arguments += [f"--{name.replace('_', '-')}", _format_value(value)]
        sets = [*self.overrides, *(f"{name}={_format_value(v)}" for name, v in fields.items())]
        name = f"{self.folder}/seed-{seed}" if self.folder else f"seed-{seed}"
        return Job(
            name=name,
            arguments=(
                "finetune",
                *arguments,
                "--run",
                FOLDER_PLACEHOLDER,
                *(("--set", *sets) if sets else ()),
            ),
            cost=self.cost,
        )

    def jobs(self) -> list[Job]:
        """Returns the jobs of all seeds."""
        return [self.job(seed) for seed in self.seeds]


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns every combination of the values of each name; the last name changes fastest."""
    return [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]


def setting_name(setting: Setting) -> str:
    """Returns the folder name of a setting, which does not depend on the order of its fields."""
    name = ",".join(f"{field}={_format_value(value)}" for field, value in sorted(setting.items()))
    if re.fullmatch(r"[\w.,=+-]{1,120}", name, re.ASCII):
        return name
    text = json.dumps(dict(setting), sort_keys=True)
    return f"setting-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def read_evaluations(output: Path, trial: Trial) -> dict[int, dict[str, dict[str, float]]]:
    """Returns {seed: {split: {metric: value}}} of the finished runs of a trial.

    Raises:
      UserError: the results of a finished run are damaged.
    """
    found = {}
    for seed in trial.seeds:
        job = trial.job(seed)
        if is_finished(output, job):
            found[seed] = read_json_object(output / job.name / run_folder.EVALUATION)
    return found


def metric_by_seed(
    runs: Mapping[int, Mapping[str, Mapping[str, float]]], split: str, metric: str
) -> dict[int, float]:
    """Returns {seed: a metric on a split}, without runs where it is undefined."""
    return {
        seed: splits[split][metric]
        for seed, splits in runs.items()
        if metric in splits.get(split, {})
    }


def seed_statistics(values: Mapping[int, float]) -> dict[str, Any]:
    """Returns median, mean, standard deviation (n - 1), best, and the values over seeds."""
    summary = asdict(summarize_seeds(list(values.values())))
    return {**summary, "values": {str(seed): value for seed, value in sorted(values.items())}}


def median_seed(values: Mapping[int, float]) -> int:
    """Returns the seed with the median value; the worse of two middle ones, the first of ties."""
    sorted_seeds = sorted(values, key=lambda seed: (values[seed], seed))
    return sorted_seeds[(len(sorted_seeds) - 1) // 2]


def best_seed(values: Mapping[int, float]) -> int:
    """Returns the seed with the largest value; the first of ties."""
    return min(values, key=lambda seed: (-values[seed], seed))


def best_trial_index(medians: Sequence[float | None]) -> int:
    """Returns the index of the trial with the largest median; the first of ties.

    Raises:
      UserError: no trial has a median.
    """
    candidates = [(-median, number) for number, median in enumerate(medians) if median is not None]
    if not candidates:
        raise UserError(
            "no run has finished, so there is nothing to compare; see the log.txt of each run"
        )
    return min(candidates)[1]


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
