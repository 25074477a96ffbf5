"""GLUE as a whole: every task with every seed, and one table of what came of it.

<output>/<task>/seed-<n>/    see cells.py; a folder for each setting between, if there are many
         results.json        the protocol, and for each task all numbers
         table.md, table.html
         submission.zip      see leaderboard.py
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from bert_jax.data.labelled.config import Glue, GlueName
from bert_jax.data.labelled.glue import GLUE_TASKS, find_file
from bert_jax.data.labelled.read import read_task
from bert_jax.data.labelled.task import Task
from bert_jax.errors import ConfigError, UserError
from bert_jax.studies import trials
from bert_jax.studies.cells import Cell, CellRunner
from bert_jax.studies.finished_run import interval
from bert_jax.studies.trials import Trial

TRAINED = tuple(name for name in GLUE_TASKS if name != "ax")
"""The tasks with training data; the diagnostic set AX is read by the MNLI models."""
HELPED_BY_MNLI = ("rte", "mrpc", "stsb")
"""The tasks that Liu et al. 2019 (RoBERTa, section 5.1) start from a model of MNLI."""
OWN_MNLI = "<runs of mnli>"
LABELLED_SPLITS = ("dev", "dev_mismatched")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is run: the product of tasks, settings and seeds.

    Attributes:
      glue_dir: the folder of the official files.
      model: what every run starts from.
      epochs, batch_size, learning_rate: all combinations are tried if there are several; on dev
        the one with the best median over seeds is chosen for each task.
      max_length: of rows; None leaves it to `fine_tuning`.
      mnli_init: what RTE, MRPC and STS-B start from: a model of MNLI, or OWN_MNLI for the MNLI run
        of the same seed; None for `model`.
      overrides: FIELD=VALUE for every run.
    """

    glue_dir: str
    model: str
    tasks: tuple[str, ...] = TRAINED
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: tuple[float, ...] = (3.0,)
    batch_size: tuple[int, ...] = (32,)
    learning_rate: tuple[float, ...] = (5e-5,)
    max_length: int | None = None
    mnli_init: str | None = None
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tasks", "seeds", "epochs", "batch_size", "learning_rate"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}, expected one or more, each once")
        for task in self.tasks:
            if task not in TRAINED:
                raise ConfigError(
                    f"tasks has {task!r}; expected some of {', '.join(TRAINED)} "
                    "(AX comes with mnli)"
                )

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination of batch size, learning rate and epochs."""
        return trials.grid(
            {
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "epochs": self.epochs,
            }
        )


class Benchmark:
    """Runs a protocol in a folder, and reads what its runs have left there."""

    def __init__(self, protocol: Protocol, output: Path):
        """Reads every task once, so that damaged data is known before anything runs.

        Raises:
          UserError: a task's files are damaged, no task can be trained, or MNLI cannot be though
            others shall start from it.
        """
        self.protocol, self._output = protocol, output
        self.skipped: dict[str, str] = {}
        self._rows: dict[str, int] = {}
        for name in protocol.tasks:
            reason = _untrainable(protocol.glue_dir, name)
            if reason:
                self.skipped[name] = reason
            else:
                self._rows[name] = len(self._read(name).splits["train"])
        if not self._rows:
            told = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            raise UserError(f"no task of --tasks can be trained ({told})")
        if self._stage_two() and protocol.mnli_init == OWN_MNLI and "mnli" not in self._rows:
            raise UserError(
                "--mnli-init needs runs of mnli: "
                + self.skipped.get("mnli", "it is not among --tasks")
                + "; name a model of MNLI after --mnli-init"
            )

    @property
    def tasks(self) -> list[str]:
        """Those that can be trained."""
        return list(self._rows)

    def run(self, runner: CellRunner) -> dict[str, str]:
        """Runs what is not finished; {cell: why} of those that failed.

        Raises:
          Stopped: a signal came.
        """
        second = self._stage_two()
        first = [name for name in self._rows if name not in second]
        if self.protocol.mnli_init != OWN_MNLI:
            return runner.run(self._cells([*first, *second]))
        failed = runner.run(self._cells(first))
        for name in second:
            for seed in self.protocol.seeds:
                if seed not in self._models(name):
                    failed[f"{name}/seed-{seed}"] = "its start, the run of mnli, has failed"
        return failed | runner.run(self._cells(second))

    def results(self, failed: Mapping[str, str]) -> dict[str, Any]:
        """All numbers of the finished runs, as JSON values; the same runs give the same bytes."""
        tasks = {name: self._task_results(name) for name in self._rows}
        return {
            "protocol": asdict(self.protocol),
            "tasks": {name: found for name, found in tasks.items() if found is not None},
            "skipped": self.skipped,
            "failed": dict(failed),
        }

    def best_run(self, name: str) -> Path | None:
        """The folder of a task's best run on dev, in the chosen setting; None if there is none."""
        chosen = self._chosen(name)
        if chosen is None:
            return None
        trial, values = chosen
        return self._output / trial.cell(trials.best_seed(values)).name

    def _task_results(self, name: str) -> dict[str, Any] | None:
        chosen = self._chosen(name)
        if chosen is None:
            return None
        trial, headline = chosen
        runs = trials.measured(self._output, trial)
        task, middle = self._read(name), trials.median_seed(headline)
        splits: dict[str, dict[str, Any]] = {}
        for split in LABELLED_SPLITS:
            for metric in task.metrics:
                values = trials.values_of(runs, split, metric)
                if middle in values:
                    run = self._output / trial.cell(middle).name
                    splits.setdefault(split, {})[metric] = {
                        **trials.over_seeds(values),
                        "interval": list(interval(run, task, split, metric)),
                    }
        return {
            "chosen": dict(trial.setting),
            "start": sorted({trial.models[seed] for seed in trial.seeds}),
            "train_examples": self._rows[name],
            "headline": task.metrics[0],
            "median_seed": middle,
            "best_seed": trials.best_seed(headline),
            "splits": splits,
            "settings": [
                {**each.setting, "median": _median(self._headline(name, each))}
                for each in self._trials(name)
            ],
        }

    def _chosen(self, name: str) -> tuple[Trial, dict[int, float]] | None:
        """The trial of the best median on dev, with its values of the first metric by seed."""
        tried = self._trials(name) if name in self._rows else []
        values = [self._headline(name, trial) for trial in tried]
        if not any(values):
            return None
        best = trials.best_trial([_median(each) for each in values])
        return tried[best], values[best]

    def _headline(self, name: str, trial: Trial) -> dict[int, float]:
        runs = trials.measured(self._output, trial)
        return trials.values_of(runs, "dev", GLUE_TASKS[name].metrics[0])

    def _cells(self, names: Iterable[str]) -> list[Cell]:
        tried = [trial for name in names for trial in self._trials(name)]
        return [cell for trial in tried for cell in trial.cells()]

    def _trials(self, name: str) -> list[Trial]:
        protocol, settings = self.protocol, self.protocol.settings
        base = [f"glue/{name}", "--glue-dir", protocol.glue_dir]
        if protocol.max_length is not None:
            base += ["--max-length", str(protocol.max_length)]
        models = self._models(name)
        return [
            Trial(
                folder=name if len(settings) == 1 else f"{name}/{trials.setting_name(setting)}",
                setting=setting,
                seeds=tuple(seed for seed in protocol.seeds if seed in models),
                base=tuple(base),
                overrides=protocol.overrides,
                models=models,
                work=self._rows[name] * setting["epochs"],
            )
            for setting in settings
        ]

    def _models(self, name: str) -> dict[int, str]:
        """Seed -> what its run starts from; a seed whose run of MNLI failed is not there."""
        protocol = self.protocol
        if name not in self._stage_two():
            return dict.fromkeys(protocol.seeds, protocol.model)
        if protocol.mnli_init != OWN_MNLI:
            return dict.fromkeys(protocol.seeds, cast(str, protocol.mnli_init))
        chosen = self._chosen("mnli")
        if chosen is None:
            return {}
        trial, values = chosen
        return {seed: str(self._output / trial.cell(seed).name) for seed in values}

    def _stage_two(self) -> list[str]:
        helped = HELPED_BY_MNLI if self.protocol.mnli_init is not None else ()
        return [name for name in self._rows if name in helped]

    def _read(self, name: str) -> Task:
        return read_task(Glue(task=cast(GlueName, name), folder=self.protocol.glue_dir))


def _untrainable(glue_dir: str, name: str) -> str | None:
    """Why a task cannot be trained and selected: a split that the folder lacks."""
    spec = GLUE_TASKS[name]
    for split in ("train", "dev"):
        names = tuple(f"{folder}/{spec.files[split]}" for folder in spec.folders)
        if find_file(Path(glue_dir), names) is None:
            return f"{split} split absent: {glue_dir} has no {names[0]}"
    return None


def _median(values: Mapping[int, float]) -> float | None:
    return trials.over_seeds(values)["median"] if values else None
