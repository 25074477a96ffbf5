"""Runs the GLUE benchmark: every task with every seed and setting, and collects the results.

<output>/<task>/seed-<n>/    a job (see jobs.py); for several settings <task>/<setting>/...
         results.json        the config and all numbers of each task
         table.md, table.html
         submission.zip      see leaderboard.py
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from bert_jax.apps.studies import trials
from bert_jax.apps.studies.jobs import Job, JobRunner
from bert_jax.apps.studies.result_page import ResultTable, write_pages
from bert_jax.apps.studies.trials import Trial
from bert_jax.config.labeled_data import Glue, GlueName
from bert_jax.data.corpus.contamination.found_items import FoundItems
from bert_jax.data.finetuning.example import Task
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS, find_file
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.runs.run_folder import PREDICTIONS
from bert_jax.tasks.analysis import format_groups, metrics_by_group
from bert_jax.tasks.registry import kind_of


def read_predictions(run: Path, split: str) -> list[dict[str, Any]]:
    """Reads the predictions of a split, a JSON object for each example.

    Raises:
      UserError: the run has no predictions for the split.
    """
    file = run / PREDICTIONS / f"{split}.jsonl"
    if not file.is_file():
        raise UserError(
            f"{file} does not exist; delete {run} and run the same command to train again"
        )
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def bootstrap_interval(run: Path, task: Task, split: str, metric: str) -> tuple[float, float]:
    """Computes the 95 % bootstrap interval of a metric over the examples of a split.

    Args:
      run: the run folder.
      task: the classification or regression task that the run was trained on.
      split: the split whose predictions are read.
      metric: the name of the metric.

    Raises:
      UserError: as `read_outputs`.
    """
    outputs, kind = read_outputs(run, task, split), kind_of(task)
    references = kind.get_references(task.splits[split], task.labels)
    return kind.metric_interval(metric, references, outputs, task.labels)


def read_outputs(run: Path, task: Task, split: str) -> np.ndarray:
    """Reads the predictions of a split as the metrics take them: logits [n, C] or values [n].

    Raises:
      UserError: the predictions are missing or belong to other examples.
    """
    predictions, examples = read_predictions(run, split), task.splits[split]
    # Compared by id: a data set of another version may have the same number of examples.
    if [row["id"] for row in predictions] != [example.id for example in examples]:
        raise UserError(
            f"{run / PREDICTIONS / split}.jsonl was made for other examples than {task.name} has "
            "now: the data has changed; choose another --output"
        )
    if task.kind == "classification":
        probabilities = np.array(
            [[row["probabilities"][n] for n in task.labels] for row in predictions]
        )
        # Logarithms of probabilities are logits up to a constant; a probability that was written
        # as 0 has no logarithm.
        return np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return np.array([row["value"] for row in predictions], np.float64)


TRAINABLE_TASKS = tuple(name for name in GLUE_TASKS if name != "ax")
"""The tasks with training data; the diagnostic set AX is predicted by the MNLI models."""
MNLI_INIT_TASKS = ("rte", "mrpc", "stsb")
"""The tasks that Liu et al. 2019 (RoBERTa, section 5.1) initialize from an MNLI model."""
SAME_SEED_MNLI = "<runs of mnli>"
LABELED_SPLITS = ("dev", "dev_mismatched")


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Configures a benchmark: the product of tasks, settings, and seeds.

    Attributes:
      glue_dir: the folder of the official GLUE files.
      model: the pretrained model that every run starts from.
      tasks: the tasks to run.
      seeds: the seeds of each task and setting.
      epochs, batch_size, learning_rate: the values to try; all combinations are run, and for each
        task the one with the best median over seeds on dev is chosen.
      max_length: the maximum sequence length; None for the default of `bert-jax finetune`.
      mnli_init: the model that RTE, MRPC, and STS-B start from: a model of MNLI, or SAME_SEED_MNLI
        for the MNLI run of the same seed; None for `model`.
      overrides: FIELD=VALUE for every run.
    """

    glue_dir: str
    model: str
    tasks: tuple[str, ...] = TRAINABLE_TASKS
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
                raise ConfigError(
                    f"{name} is {list(values)}, expected at least one value and no duplicates"
                )
        for task in self.tasks:
            if task not in TRAINABLE_TASKS:
                raise ConfigError(
                    f"tasks contains {task!r}; expected tasks from {', '.join(TRAINABLE_TASKS)} "
                    "(ax is predicted with mnli)"
                )

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Returns every combination of batch size, learning rate, and epochs."""
        return trials.grid(
            {
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "epochs": self.epochs,
            }
        )


class Benchmark:
    """Fine-tunes a model on GLUE tasks in an output folder, and collects the metrics of the runs.

    There is one run for each task, seed and setting of a `BenchmarkConfig`.
    """

    def __init__(
        self, config: BenchmarkConfig, output: Path, found_items: FoundItems | None = None
    ):
        """Reads every task once, so that damaged data is found before anything runs.

        Args:
          found_items: the examples that are in the pretraining corpus, if that is known; each task
            then has "by_contamination" in the results: the metrics on these and on the others.

        Raises:
          UserError: a task's files are damaged, no task can be trained, or MNLI cannot be trained
            although other tasks start from it.
        """
        self.config, self._output, self._found_items = config, output, found_items
        self.skipped: dict[str, str] = {}
        self._num_train_examples: dict[str, int] = {}
        for name in config.tasks:
            reason = _untrainable_reason(config.glue_dir, name)
            if reason:
                self.skipped[name] = reason
            else:
                self._num_train_examples[name] = len(self._read_task(name).splits["train"])
        if not self._num_train_examples:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            raise UserError(f"none of --tasks can be trained ({reasons})")
        if (
            self._mnli_init_tasks()
            and config.mnli_init == SAME_SEED_MNLI
            and "mnli" not in self._num_train_examples
        ):
            raise UserError(
                "--mnli-init without a model needs the task mnli: "
                + self.skipped.get("mnli", "mnli is not in --tasks")
                + "; add mnli, or give the path of an MNLI model after --mnli-init"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that may not change; tasks and seeds may."""
        fields = asdict(self.config)
        # Tasks and seeds may be added to a finished study; all other settings would change the
        # runs that exist.
        return {name: fields[name] for name in fields if name not in ("tasks", "seeds")}

    @property
    def tasks(self) -> list[str]:
        """Returns the tasks that can be trained."""
        return list(self._num_train_examples)

    def run(self, runner: JobRunner) -> dict[str, str]:
        """Runs the unfinished jobs.

        Returns:
          {name of a failed job: reason}.

        Raises:
          Interrupted: a signal asked to stop.
        """
        mnli_init_tasks = self._mnli_init_tasks()
        other_tasks = [name for name in self._num_train_examples if name not in mnli_init_tasks]
        if self.config.mnli_init != SAME_SEED_MNLI:
            return runner.run(self._jobs([*other_tasks, *mnli_init_tasks]))
        # First, because which MNLI run RTE, MRPC and STS-B start from is known when all settings
        # of MNLI have run.
        failed = runner.run(self._jobs(other_tasks))
        for name in mnli_init_tasks:
            for seed in self.config.seeds:
                if seed not in self._models(name):
                    failed[f"{name}/seed-{seed}"] = "the run of mnli that it starts from has failed"
        return failed | runner.run(self._jobs(mnli_init_tasks))

    def results(self, failed: Mapping[str, str]) -> dict[str, Any]:
        """Returns all numbers of the finished runs as JSON values, in a deterministic order."""
        tasks = {name: self._task_results(name) for name in self._num_train_examples}
        return {
            "config": asdict(self.config),
            "tasks": {name: found for name, found in tasks.items() if found is not None},
            "skipped": self.skipped,
            "failed": dict(failed),
        }

    def write_table(self, results: dict[str, Any]) -> ResultTable:
        """Writes table.md and table.html from `results`; returns the table."""
        return write_table(self._output, results)

    def best_run(self, name: str) -> Path | None:
        """Returns the folder of a task's best run on dev in the best setting, or None."""
        best_trial = self._best_trial(name)
        if best_trial is None:
            return None
        trial, values = best_trial
        return self._output / trial.job(trials.best_seed(values)).name

    def _task_results(self, name: str) -> dict[str, Any] | None:
        found_items = self._found_items
        best_trial = self._best_trial(name)
        if best_trial is None:
            return None
        trial, metric_by_seed = best_trial
        runs = trials.read_evaluations(self._output, trial)
        task, median_seed = self._read_task(name), trials.median_seed(metric_by_seed)
        splits: dict[str, dict[str, Any]] = {}
        by_contamination: dict[str, Any] = {}
        for split in LABELED_SPLITS:
            for metric in task.metrics:
                values = trials.metric_by_seed(runs, split, metric)
                if median_seed in values:
                    run = self._output / trial.job(median_seed).name
                    if found_items is not None and split not in by_contamination:
                        groups = found_items.groups(task, split)
                        outputs = read_outputs(run, task, split)
                        by_contamination[split] = metrics_by_group(task, split, outputs, groups)
                    splits.setdefault(split, {})[metric] = {
                        **trials.seed_statistics(values),
                        "confidence_interval": list(bootstrap_interval(run, task, split, metric)),
                    }
        return {
            "best_setting": dict(trial.setting),
            "init_from": sorted({trial.models[seed] for seed in trial.seeds}),
            "num_train_examples": self._num_train_examples[name],
            "best_metric": task.metrics[0],
            "median_seed": median_seed,
            "best_seed": trials.best_seed(metric_by_seed),
            "splits": splits,
            **({} if found_items is None else {"by_contamination": by_contamination}),
            "settings": [
                {**each.setting, "median": _median(self._first_metric_by_seed(name, each))}
                for each in self._trials(name)
            ],
        }

    def _best_trial(self, name: str) -> tuple[Trial, dict[int, float]] | None:
        """Returns the trial with the best median on dev, and its first metric by seed."""
        candidates = self._trials(name) if name in self._num_train_examples else []
        values = [self._first_metric_by_seed(name, trial) for trial in candidates]
        if not any(values):
            return None
        best = trials.best_trial_index([_median(each) for each in values])
        return candidates[best], values[best]

    def _first_metric_by_seed(self, name: str, trial: Trial) -> dict[int, float]:
        runs = trials.read_evaluations(self._output, trial)
        return trials.metric_by_seed(runs, "dev", GLUE_TASKS[name].metrics[0])

    def _jobs(self, names: Iterable[str]) -> list[Job]:
        candidates = [trial for name in names for trial in self._trials(name)]
        return [job for trial in candidates for job in trial.jobs()]

    def _trials(self, name: str) -> list[Trial]:
        config, settings = self.config, self.config.settings
        base = [f"glue/{name}", "--glue-dir", config.glue_dir]
        if config.max_length is not None:
            base += ["--max-length", str(config.max_length)]
        models = self._models(name)
        return [
            Trial(
                folder=name if len(settings) == 1 else f"{name}/{trials.setting_name(setting)}",
                setting=setting,
                seeds=tuple(seed for seed in config.seeds if seed in models),
                base_arguments=tuple(base),
                overrides=config.overrides,
                models=models,
                cost=self._num_train_examples[name] * setting["epochs"],
            )
            for setting in settings
        ]

    def _models(self, name: str) -> dict[int, str]:
        """Returns {seed: the model that its run starts from}.

        Seeds whose MNLI run failed are left out if the task starts from it.
        """
        config = self.config
        if name not in self._mnli_init_tasks():
            return dict.fromkeys(config.seeds, config.model)
        if config.mnli_init != SAME_SEED_MNLI:
            return dict.fromkeys(config.seeds, cast(str, config.mnli_init))
        best_trial = self._best_trial("mnli")
        if best_trial is None:
            return {}
        trial, values = best_trial
        return {seed: str(self._output / trial.job(seed).name) for seed in values}

    def _mnli_init_tasks(self) -> list[str]:
        mnli_init_tasks = MNLI_INIT_TASKS if self.config.mnli_init is not None else ()
        return [name for name in self._num_train_examples if name in mnli_init_tasks]

    def _read_task(self, name: str) -> Task:
        return load_task(Glue(task=cast(GlueName, name), folder=self.config.glue_dir))


def _untrainable_reason(glue_dir: str, name: str) -> str | None:
    """Returns why a task cannot be trained: a split that is missing in the folder."""
    spec = GLUE_TASKS[name]
    for split in ("train", "dev"):
        names = tuple(f"{folder}/{spec.files[split]}" for folder in spec.folder_names)
        if find_file(Path(glue_dir), names) is None:
            return f"no {split} split: {glue_dir} has no {names[0]}"
    return None


def _median(values: Mapping[int, float]) -> float | None:
    return trials.seed_statistics(values)["median"] if values else None


_COLUMNS = ("task", "split", "metric", "runs", "median", "mean", "std", "best", "95 % interval")


def write_table(folder: Path, results: dict[str, Any]) -> ResultTable:
    """Writes table.md and table.html from the results of `Benchmark.results`; returns the table."""
    has_several_settings = any(len(task["settings"]) > 1 for task in results["tasks"].values())
    rows = []
    for name, task in results["tasks"].items():
        best_setting = ", ".join(
            f"{field} {value:g}" for field, value in task["best_setting"].items()
        )
        for split, metrics in task["splits"].items():
            for metric, summary in metrics.items():
                low, high = summary["confidence_interval"]
                numbers = [summary[statistic] for statistic in ("median", "mean", "std", "best")]
                row = [
                    GLUE_TASKS[name].folder_names[0],
                    split,
                    metric,
                    str(summary["runs"]),
                    *map(_percent, numbers),
                ]
                row.append(f"{_percent(low)} to {_percent(high)}")
                rows.append([*row, best_setting] if has_several_settings else row)
    columns = (*_COLUMNS, "best setting") if has_several_settings else _COLUMNS
    table = ResultTable(columns=columns, rows=rows, num_text_columns=3)
    write_pages(folder, "GLUE, development sets", table, _notes(results))
    return table


def _notes(results: dict[str, Any]) -> list[str]:
    config = results["config"]
    notes = [
        f"Every run starts from {config['model']}"
        + (_mnli_init_text(config["mnli_init"]) if config["mnli_init"] else "")
        + f". Data: the official files in {config['glue_dir']}.",
        f"Epochs {_join_numbers(config['epochs'])}; "
        f"batch size {_join_numbers(config['batch_size'])}; "
        f"learning rate {_join_numbers(config['learning_rate'])}; "
        f"seeds {_join_numbers(config['seeds'])}."
        + (
            f" Overrides of all runs: {' '.join(config['overrides'])}."
            if config["overrides"]
            else ""
        ),
        "Dev is evaluated after every epoch, and the checkpoint with the best first metric of the "
        "task is reported. Dev is thus used for both selection and measurement: expect somewhat "
        "lower results on test.",
        "Median, mean, std (n - 1), and best are over the seeds; all are multiplied by 100.",
        "The interval is of the run with the median result: the 2.5th to 97.5th percentile of "
        "1,000 bootstrap samples of the dev examples. It does not include the variance over seeds.",
    ]
    settings = max((len(task["settings"]) for task in results["tasks"].values()), default=1)
    if settings > 1:
        notes.append(
            f"For each task the setting with the best median on dev is shown, of {settings} "
            "settings; results.json has the medians of all settings."
        )
    notes += [
        f"{GLUE_TASKS[name].folder_names[0]} was skipped: {reason}."
        for name, reason in results["skipped"].items()
    ]
    notes += [
        f"{GLUE_TASKS[name].folder_names[0]} {split}, {task['best_metric']} of the run with the "
        "median result, by what the pretraining corpus contains: "
        f"{format_groups(groups, task['best_metric'])}."
        for name, task in results["tasks"].items()
        for split, groups in task.get("by_contamination", {}).items()
    ]
    notes += [f"{job} failed: {reason}" for job, reason in results["failed"].items()]
    return notes


def _mnli_init_text(mnli_init: str) -> str:
    init = "the MNLI run of the same seed" if mnli_init == SAME_SEED_MNLI else mnli_init
    return f", except RTE, MRPC, and STS-B, which start from {init}"


def _join_numbers(values: list[Any]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
