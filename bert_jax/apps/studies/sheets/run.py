"""Runs the commands of a sheet as jobs, and collects the numbers of its table.

<output>/setup/<name>/                     the commands that run first, once
         models/<model>/seed-<n>/          a model: the run folder of its training
         systems/<system>/<column>/seed-<n>/   an evaluation
         results.json, table.md, table.html    see page.py
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.apps.studies.jobs import FOLDER_PLACEHOLDER, Job, JobRunner, is_finished
from bert_jax.apps.studies.result_page import ResultTable
from bert_jax.apps.studies.sheets.budgets import Spending, updates_of
from bert_jax.apps.studies.sheets.page import write_page
from bert_jax.apps.studies.sheets.sheet import (
    Budget,
    Command,
    Evaluation,
    Make,
    Part,
    Pretrain,
    Result,
    Sheet,
    System,
)
from bert_jax.apps.studies.sheets.statistics import compare, estimate
from bert_jax.config.config_lib import to_json
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.json_io import read_json_object
from bert_jax.runs import metrics

_EVALUATION_COST = 0.1
"""The estimated cost of a command without a budget, as a fraction of a training run."""


@dataclass(frozen=True)
class Measurement:
    """Holds one number of the table, and the number for each example if there is one."""

    value: float
    outcomes: list[float] | None


def load_sheet(name: str, arguments: Sequence[str]) -> Sheet:
    """Returns the sheet of a file, or of a shipped one, with arguments "name=value".

    Raises:
      ConfigError: there is no such sheet, an argument is wrong, or the sheet is.
    """
    sheet = call_recipe(load_recipe(name), arguments, name)
    if not isinstance(sheet, Sheet):
        raise ConfigError(
            f"{name}: get_config returns {type(sheet).__name__}, expected a Sheet; see `bert-jax "
            "sheet --help`"
        )
    return sheet


class SheetStudy:
    """Runs a sheet in a folder, and writes its page (a `Study`, see jobs.py).

    Jobs of one seed of one model are one group: a shard runs the training and then all evaluations.
    """

    def __init__(self, sheet: Sheet, output: Path):
        self.sheet, self._output = sheet, output
        self._spending: dict[str, Spending] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that may not change; systems, columns and seeds may be added."""
        return {"title": self.sheet.title, "budget": to_json(self.sheet.budget)}

    def run(self, runner: JobRunner) -> dict[str, str]:
        """Runs what is not finished; returns {name of a failed job: reason}.

        Raises:
          UserError: a command of the setup failed, which all others need.
        """
        failed = runner.run_first([self._setup_job(name) for name in self.sheet.setup])
        for name, reason in failed.items():
            raise UserError(f"{name}, which all models of the sheet need, failed: {reason}")
        return runner.run(self.jobs())

    def jobs(self) -> list[Job]:
        """Returns the jobs of all models and evaluations, each after those that it needs.

        Raises:
          UserError: a model cannot be trained with the budget.
        """
        jobs: dict[str, Job] = {}
        for seed in self.sheet.seeds:
            for system in self.sheet.systems:
                training = self._training_job(system.model, seed)
                if training is not None:
                    jobs.setdefault(training.name, training)
                for column, evaluation in system.evaluations.items():
                    if evaluation.command:
                        job = self._evaluation_job(system, column, evaluation, seed)
                        jobs.setdefault(job.name, job)
        return list(jobs.values())

    def results(self, failed: Mapping[str, str]) -> dict[str, Any]:
        """Returns all numbers of the finished commands as JSON values, in the sheet's order."""
        sheet = self.sheet
        values: dict[str, dict[str, dict[int, Measurement]]] = {
            system.name: {
                column: self._measurements(system, column, evaluation)
                for column, evaluation in system.evaluations.items()
            }
            for system in sheet.systems
        }
        return {
            "title": sheet.title,
            "question": sheet.question,
            "budget": to_json(sheet.budget),
            "seeds": list(sheet.seeds),
            "reference": sheet.reference,
            "columns": [to_json(column) for column in sheet.columns],
            "models": {
                name: self._spent(name)._asdict()
                for name, model in sheet.models.items()
                if isinstance(model, Pretrain) and self._is_used(name)
            },
            "systems": {
                system.name: {
                    "model": system.model,
                    "results": {
                        column: _statistics(found, values[sheet.reference].get(column, {}))
                        for column, found in values[system.name].items()
                        if found
                    },
                }
                for system in sheet.systems
            },
            "curves": {metric: self._curves(metric) for metric in sheet.curves},
            "forecast": to_json(sheet.forecast),
            "commands": self._commands(),
            "failed": dict(failed),
        }

    def write_table(self, results: dict[str, Any]) -> ResultTable:
        """Writes table.md and table.html from `results`; returns the table."""
        return write_page(self._output, results)

    def _is_used(self, model: str) -> bool:
        return any(self._trained(system.model) == model for system in self.sheet.systems)

    def _trained(self, model: str | None) -> str | None:
        """Returns the name of the model whose training makes a model, or None."""
        description = None if model is None else self.sheet.models[model]
        if isinstance(description, Part):
            return description.of
        return model if isinstance(description, (Pretrain, Make)) else None

    def _budget(self, model: Pretrain) -> Budget:
        budget = model.budget or self.sheet.budget
        assert budget is not None  # checked by Sheet
        return budget

    def _spent(self, name: str) -> Spending:
        if name not in self._spending:
            model = self.sheet.models[name]
            assert isinstance(model, Pretrain)
            filled = dataclasses.replace(
                model,
                arguments={k: self._fill_setup(str(v)) for k, v in model.arguments.items()},
                overrides=tuple(map(self._fill_setup, model.overrides)),
            )
            self._spending[name] = updates_of(filled, self._budget(model), name)
        return self._spending[name]

    def _fill_setup(self, text: str) -> str:
        return text.replace("{setup}", str(self._output / "setup"))

    def _fill(self, command: Command, seed: int, model: str = "") -> Command:
        return tuple(
            self._fill_setup(text)
            .replace("{models}", str(self._output / "models"))
            .replace("{seed}", str(seed))
            .replace("{model}", model)
            for text in command
        )

    def _setup_job(self, name: str) -> Job:
        command = tuple(map(self._fill_setup, self.sheet.setup[name]))
        return Job(name=f"setup/{name}", arguments=command)

    def _depends_on_seed(self, model: str | None, command: Command = ()) -> bool:
        """Returns whether a model, or a command that uses it, differs from seed to seed."""
        trained = self._trained(model)
        description = None if trained is None else self.sheet.models[trained]
        if isinstance(description, Pretrain):
            return True
        made = description.command if isinstance(description, Make) else ()
        return any("{seed}" in text for text in (*made, *command))

    def _training_job(self, model: str | None, seed: int) -> Job | None:
        name = self._trained(model)
        if name is None:
            return None
        description = self.sheet.models[name]
        if isinstance(description, Pretrain):
            command, cost = description.command(self._spent(name).updates), self._spent(name).flops
        else:
            assert isinstance(description, Make)
            command, cost = description.command, self._other_cost()
            seed = seed if self._depends_on_seed(name) else self.sheet.seeds[0]
        job_name = f"models/{name}/seed-{seed}"
        return Job(name=job_name, arguments=self._fill(command, seed), cost=cost, group=job_name)

    def _other_cost(self) -> float:
        """Returns the assumed cost of a command without a budget, in FLOPs."""
        trained = [name for name, m in self.sheet.models.items() if isinstance(m, Pretrain)]
        return _EVALUATION_COST * max([self._spent(name).flops for name in trained] or [1.0])

    def _evaluation_job(
        self, system: System, column: str, evaluation: Evaluation, seed: int
    ) -> Job:
        if not self._depends_on_seed(system.model, evaluation.command):
            seed = self.sheet.seeds[0]
        training = self._training_job(system.model, seed)
        # One run of a command can fill several columns.
        same = (c for c, e in system.evaluations.items() if e.command == evaluation.command)
        column = next(same, column)
        name = f"systems/{system.name}/{column}/seed-{seed}"
        return Job(
            name=name,
            arguments=self._fill(evaluation.command, seed, self._model_path(system.model, seed)),
            cost=self._other_cost(),
            group=name if training is None else training.group,
            requires=() if training is None else (training.name,),
        )

    def _model_path(self, model: str | None, seed: int) -> str:
        if model is None:
            return ""
        description = self.sheet.models[model]
        if isinstance(description, str):
            return self._fill_setup(description)
        training = self._training_job(model, seed)
        assert training is not None
        folder = self._output / training.name
        match description:
            case Make(path=path) | Part(path=path):
                return str(folder / path)
            case Pretrain():
                return str(folder)

    def _measurements(
        self, system: System, column: str, evaluation: Evaluation
    ) -> dict[int, Measurement]:
        """Returns {seed: measurement} of the finished commands of a cell of the table."""
        found: dict[int, Measurement] = {}
        for seed in self.sheet.seeds:
            job = (
                self._evaluation_job(system, column, evaluation, seed)
                if evaluation.command
                else self._training_job(system.model, seed)
            )
            if job is None or not is_finished(self._output, job):
                continue
            job_seed = int(job.name.rpartition("seed-")[2])
            folder = self._output / job.name
            outcomes = (
                None if evaluation.outcomes is None else _outcomes(folder, evaluation.outcomes)
            )
            found[job_seed] = Measurement(_number(folder, evaluation.value), outcomes)
        return found

    def _curves(self, metric: str) -> dict[str, list[tuple[float, float]]]:
        """Returns model -> (amount of the budget, mean over seeds) of a metric while training."""
        curves: dict[str, list[tuple[float, float]]] = {}
        for name, model in self.sheet.models.items():
            if not isinstance(model, Pretrain) or not self._is_used(name):
                continue
            spent, budget = self._spent(name), self._budget(model)
            by_step: dict[int, list[float]] = {}
            jobs = [self._training_job(name, seed) for seed in self.sheet.seeds]
            finished = [job for job in jobs if job and is_finished(self._output, job)]
            for job in finished:
                for step, value in _metric_rows(self._output / job.name, metric).items():
                    by_step.setdefault(step, []).append(value)
            points = [
                (step / spent.updates * spent.amount(budget.unit), sum(each) / len(each))
                for step, each in sorted(by_step.items())
                if len(each) == len(finished)
            ]
            if points:
                curves[name] = points
        return curves

    def _commands(self) -> dict[str, list[str]]:
        """Returns {folder: the arguments of `bert-jax`} of all jobs, in the order of running."""
        jobs = [*(self._setup_job(name) for name in self.sheet.setup), *self.jobs()]
        return {
            job.name: [
                text.replace(FOLDER_PLACEHOLDER, str(self._output / job.name))
                for text in job.arguments
            ]
            for job in jobs
        }


def _metric_rows(run: Path, metric: str) -> dict[int, float]:
    """Returns {update: value} of a metric of the evaluations of a run."""
    rows = metrics.read_metrics(run / metrics.FILE)
    return {row["step"]: row[metric] for row in rows if row["split"] != "train" and metric in row}


def _statistics(
    found: Mapping[int, Measurement], reference: Mapping[int, Measurement]
) -> dict[str, Any]:
    """Returns the values by seed, their mean and interval, and the comparison, as JSON values."""
    values, outcomes = _by_seed(found)
    result: dict[str, Any] = {
        "values": {str(seed): value for seed, value in values.items()},
        **estimate(values, outcomes)._asdict(),
        "comparison": None,
    }
    if reference and found is not reference:
        other_values, other_outcomes = _by_seed(reference)
        comparison = compare(values, other_values, outcomes, other_outcomes)
        result["comparison"] = None if comparison is None else comparison._asdict()
    return result


def _by_seed(
    found: Mapping[int, Measurement],
) -> tuple[dict[int, float], dict[int, list[float]]]:
    values = {seed: measurement.value for seed, measurement in found.items()}
    outcomes = {s: m.outcomes for s, m in found.items() if m.outcomes is not None}
    return values, outcomes


def _number(folder: Path, result: Result) -> float:
    value = _find(folder, result)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(
            f"{folder / result.file}: {_path(result)} is {json.dumps(value)[:80]}; "
            "expected a number, as the sheet says"
        )
    return float(value)


def _outcomes(folder: Path, result: Result) -> list[float]:
    return [float(value) for value in _find(folder, result)]


def _find(folder: Path, result: Result) -> Any:
    value: Any = read_json_object(folder / result.file)
    for key in result.keys:
        try:
            value = value[key]
        except (LookupError, TypeError):
            names = list(value) if isinstance(value, Mapping) else []
            raise UserError(
                f"{folder / result.file} has no {_path(result)}; expected a result, as the sheet "
                f"says; it has {', '.join(map(str, names[:8])) or 'no names'}"
            ) from None
    return value


def _path(result: Result) -> str:
    return ".".join(map(str, result.keys))
