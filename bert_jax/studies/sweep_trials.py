"""Trials: one setting of a fine-tuning run each, with a run for every seed, and what came of them.

A trial lies in `<task>/<setting>/seed-<n>`, or in `<task>/seed-<n>` where there is one setting
only. Trials are compared by the median over their seeds of the task's first metric on dev.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.evals.bootstrap import summarize_seeds
from bert_jax.runs import run_folder
from bert_jax.studies.job_runner import Job, is_finished

FLAG_SETTINGS = ("epochs", "batch_size", "learning_rate", "max_length")
"""Settings that `bert-jax finetune` has a flag for; any other one is a field of the config."""

Setting = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting of a task.

    Attributes:
      folder: of its runs, below the output; "" is the output itself.
      setting: flag or field of the config -> value.
      seeds: of its runs.
      base: arguments of `bert-jax finetune` that all trials of the task share, without --set.
      overrides: FIELD=VALUE that they share.
      models: what the run of a seed starts from, as --model.
      work: see `Cell`, of one run.
    """

    folder: str
    setting: Setting
    seeds: tuple[int, ...]
    base_arguments: tuple[str, ...]
    overrides: tuple[str, ...]
    models: Mapping[int, str]
    cost: float

    def job(self, seed: int) -> Job:
        """The run of one seed."""
        # Sorted, so that the same setting is the same command in whatever order it was named.
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
            arguments=(*arguments, *(("--set", *sets) if sets else ())),
            cost=self.cost,
        )

    def jobs(self) -> list[Job]:
        """The runs of all seeds."""
        return [self.job(seed) for seed in self.seeds]


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values of each name, the last name changing fastest."""
    return [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]


def setting_name(setting: Setting) -> str:
    """A setting as the name of a folder; the same setting has the same one in any command."""
    name = ",".join(f"{field}={_format_value(value)}" for field, value in sorted(setting.items()))
    if re.fullmatch(r"[\w.,=+-]{1,120}", name, re.ASCII):
        return name
    text = json.dumps(dict(setting), sort_keys=True)
    return f"setting-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def read_evaluations(output: Path, trial: Trial) -> dict[int, dict[str, dict[str, float]]]:
    """Seed -> {split: {metric: value}} of the finished runs of a trial.

    Raises:
      UserError: what a finished run has left is damaged.
    """
    found = {}
    for seed in trial.seeds:
        job = trial.job(seed)
        if is_finished(output, job):
            found[seed] = run_folder.read_json(output / job.name / run_folder.EVALUATION)
    return found


def metric_by_seed(
    runs: Mapping[int, Mapping[str, Mapping[str, float]]], split: str, metric: str
) -> dict[int, float]:
    """Seed -> a metric on a split; a run in which it is undefined is not there."""
    return {
        seed: splits[split][metric]
        for seed, splits in runs.items()
        if metric in splits.get(split, {})
    }


def seed_statistics(values: Mapping[int, float]) -> dict[str, Any]:
    """Median, mean, standard deviation (n - 1) and best over seeds, and the values themselves."""
    summary = asdict(summarize_seeds(list(values.values())))
    return {**summary, "values": {str(seed): value for seed, value in sorted(values.items())}}


def median_seed(values: Mapping[int, float]) -> int:
    """The seed in the middle: of an even number, the worse of the two; of equal ones, the first."""
    sorted_seeds = sorted(values, key=lambda seed: (values[seed], seed))
    return sorted_seeds[(len(sorted_seeds) - 1) // 2]


def best_seed(values: Mapping[int, float]) -> int:
    """The seed of the greatest value; of equal ones, the first."""
    return min(values, key=lambda seed: (-values[seed], seed))


def best_trial_index(medians: Sequence[float | None]) -> int:
    """The number of the trial with the greatest median; of equal ones, the first.

    Raises:
      UserError: none has one.
    """
    candidates = [(-median, number) for number, median in enumerate(medians) if median is not None]
    if not candidates:
        raise UserError("no run has finished, so there is nothing to compare")
    return min(candidates)[1]


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
