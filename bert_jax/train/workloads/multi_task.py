"""Provides the data of a multi-task fine-tuning run: mixed batches, and evaluation by task."""

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.data import MultiTaskData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import MultiTask
from bert_jax.config.train import LabeledEval
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import FineTuningLoader
from bert_jax.data.finetuning.mixture import MixtureSampler, concatenate_features
from bert_jax.errors import ConfigError
from bert_jax.io.atomic_io import write_json
from bert_jax.models.heads.config import has_temperature
from bert_jax.objectives.base import Objective
from bert_jax.objectives.multi_task import MultiTaskObjective, task_params
from bert_jax.pretrained.base_model import save_fitted_heads
from bert_jax.runs import run_folder
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.train.workloads.base import Workload
from bert_jax.train.workloads.fine_tuning import FineTuningWorkload
from bert_jax.train.workloads.task_evaluator import TaskEvaluator

MEAN_METRIC = "mean"
"""Name of the mean of the tasks' first metrics, in the metrics of an evaluation."""


class MultiTaskWorkload(Workload):
    """Fine-tunes one encoder on several tasks.

    Each task has a `FineTuningWorkload` for the experiment that has only this task. This class
    mixes their training sequences and collects their results.
    """

    next_command = "bert-jax predict {run} --task TASK --file FILE"

    def __init__(self, experiment: Experiment, data: MultiTaskData, objective: MultiTask):
        """Reads the tasks.

        Raises:
          UserError: files of a task are missing or damaged.
          ConfigError: the objective does not have a head for each task.
        """
        super().__init__(experiment)
        names = tuple(named.name for named in data.tasks)
        if names != objective.task_names:
            raise ConfigError(
                f"data.tasks are {', '.join(names)}, but objective.heads are "
                f"{', '.join(objective.task_names)}; expected the same names in the same order"
            )
        self._data = data
        self._workloads = {name: self._single_task(objective, name) for name in names}
        self._pad_id = load_tokenizer(data.tokenizer).pad_id
        self._joined_features = functools.cache(self._join_features)

    def _single_task(self, objective: MultiTask, name: str) -> FineTuningWorkload:
        data, objective_of_task = self._data.for_task(name), objective.for_task(name)
        train = self._experiment.train
        if isinstance(train.evaluation, LabeledEval) and not has_temperature(
            objective_of_task.head
        ):
            evaluation = dataclasses.replace(train.evaluation, calibrate=False)
            train = dataclasses.replace(train, evaluation=evaluation)
        experiment = dataclasses.replace(
            self._experiment, objective=objective_of_task, data=data, train=train
        )
        return FineTuningWorkload(experiment, data, objective_of_task)

    def prepare_run_folder(self, folder: Path) -> None:
        """Checks the tokenizer against the model and saves it; see `Workload`."""
        # One of them is enough: all tasks have the same encoder and tokenizer.
        next(iter(self._workloads.values())).prepare_run_folder(folder)

    def data_fingerprint(self) -> str:
        """Returns the hashes of the training examples of all tasks."""
        return " ".join(
            f"{name}:{each.data_fingerprint()}" for name, each in self._workloads.items()
        )

    def describe_data(self) -> dict[str, str]:
        """Returns the number of examples of each task and split."""
        return {
            f"Task {name}": workload.describe_data()["Task"]
            for name, workload in self._workloads.items()
        }

    def training_token_ids(self) -> np.ndarray | None:
        """Returns the token ids of all tasks; see `Workload`."""
        ids = [workload.training_token_ids() for workload in self._workloads.values()]
        known = [each for each in ids if each is not None]
        return np.concatenate(known) if len(known) == len(ids) else None

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one shape for each batch length that occurs; see `Workload`."""
        phase_config = self._phases[phase_index]
        loader = self._loader(phase_index, 0)
        # Each epoch draws other examples, so all epochs of the phase are asked for their lengths.
        epochs = -(-phase_config.steps // loader.batches_per_epoch)
        sizes = {"B": phase_config.batch_size}
        indicators = self._joined_features(phase_index).targets.get("label_indicators")
        if indicators is not None:
            sizes["C"] = len(np.asarray(indicators[0]))
        return [{**sizes, "L": length} for length in loader.distinct_batch_lengths(epochs)]

    @contextlib.contextmanager
    def loader(self, phase_index: int, position: int) -> Generator[FineTuningLoader]:
        """Opens the training loader; see `Workload`."""
        yield self._loader(phase_index, position)

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> "MultiTaskEvaluator | None":
        """Returns the evaluator of all tasks that have the split of the config; see `Workload`."""
        assert isinstance(objective, MultiTaskObjective)
        evaluators = {
            name: evaluator
            for name, workload in self._workloads.items()
            if (evaluator := workload.evaluator(objective.tasks[name], phase_index, mesh))
            is not None
        }
        return MultiTaskEvaluator(evaluators) if evaluators else None

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes predictions, metrics and analyses of each task under its name."""
        assert isinstance(objective, MultiTaskObjective)
        metrics, analyses, heads = {}, {}, {}
        for name, workload in self._workloads.items():
            metrics[name], analyses[name], heads[name] = workload.evaluate_splits(
                objective.tasks[name],
                task_params(params, name),
                mesh,
                folder / run_folder.PREDICTIONS / name,
                step,
            )
        if jax.process_index() == 0:
            save_fitted_heads(folder, step, heads)
            sampler = self._sampler(len(self._phases) - 1)
            mixture = [
                {
                    "task": name,
                    "num_sequences": analyses[name]["train_sequences"],
                    "drawn_per_epoch": num_sampled,
                }
                for name, num_sampled in sampler.sequences_per_epoch.items()
            ]
            write_json(folder / run_folder.EVALUATION, metrics)
            analysis = {"tasks": analyses, "mixture": mixture}
            write_json(folder / run_folder.ANALYSIS, analysis)

    def _sampler(self, phase_index: int) -> MixtureSampler:
        num_sequences = {
            name: len(workload.train_features(phase_index))
            for name, workload in self._workloads.items()
        }
        return MixtureSampler(num_sequences, self._data.mixing, self._seed + phase_index)

    def _join_features(self, phase_index: int) -> Features:
        return concatenate_features(
            {
                name: workload.train_features(phase_index)
                for name, workload in self._workloads.items()
            }
        )

    def _loader(self, phase_index: int, position: int) -> FineTuningLoader:
        phase_config = self._phases[phase_index]
        name = self._data.tasks[0].name
        return FineTuningLoader(
            self._joined_features(phase_index),
            self._data.for_task(name).batch_lengths(phase_config.seq_length),
            batch_size=phase_config.batch_size,
            seed=self._seed + phase_index,
            pad_id=self._pad_id,
            sampler=self._sampler(phase_index),
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            start=position,
        )


class MultiTaskEvaluator:
    """Evaluates the parameters of several tasks on one split of each."""

    def __init__(self, evaluators: Mapping[str, TaskEvaluator]):
        self._evaluators = evaluators

    @property
    def known_metrics(self) -> list[str]:
        """Returns `MEAN_METRIC` and the metrics that the tasks report, as "rte/accuracy"."""
        return [MEAN_METRIC] + [
            f"{name}/{metric}"
            for name, evaluator in self._evaluators.items()
            for metric in evaluator.known_metrics
        ]

    def __call__(self, params: Any) -> dict[str, float]:
        """Computes the metrics of every task, as "rte/accuracy", and `MEAN_METRIC`."""
        metrics, primary_metrics = {}, []
        for name, evaluator in self._evaluators.items():
            task_metrics = evaluator(task_params(params, name))
            primary_metrics.append(evaluator.primary_metric(task_metrics))
            metrics |= {f"{name}/{metric}": value for metric, value in task_metrics.items()}
        # A plain mean over tasks, whatever their sizes, as in the average of GLUE (Wang et al.
        # 2018).
        return {MEAN_METRIC: sum(primary_metrics) / len(primary_metrics), **metrics}
