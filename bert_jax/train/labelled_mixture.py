"""Multi-task fine-tuning's source: the examples of several tasks, each with splits of its own."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from bert_jax.aside import write_json
from bert_jax.data.config import LabelledMixture
from bert_jax.data.labelled.loader import LabelledLoader
from bert_jax.data.labelled.mixture import MixedRows, join
from bert_jax.data.labelled.rows import Features
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.programs.config import MultiTask
from bert_jax.programs.multi_task import MultiTaskProgram, single_task
from bert_jax.programs.program import Program
from bert_jax.text.vocabulary import load_vocabulary
from bert_jax.train import run_folder
from bert_jax.train.labelled import PREDICTIONS, LabelledExamples
from bert_jax.train.task_evaluator import TaskEvaluator

MEAN = "mean"
"""Among the metrics of an evaluation: the mean of each task's first metric."""


class LabelledTasks:
    """The `Source` of an experiment whose data is a `LabelledMixture`.

    Each task is a source by itself, of the experiment that has this task alone; here their rows are
    mixed, and what they measure is put side by side.
    """

    def __init__(self, experiment: Experiment, data: LabelledMixture):
        """Reads the tasks.

        Raises:
          UserError: files of a task are missing or damaged, or the model has other heads.
        """
        program = experiment.program
        if not isinstance(program, MultiTask):
            raise ConfigError(
                f"data is LabelledMixture, but program is {type(program).__name__}; "
                "expected MultiTask"
            )
        names = tuple(named.name for named in data.tasks)
        if names != program.names:
            raise ConfigError(
                f"data.tasks are {', '.join(names)}, but program.heads are "
                f"{', '.join(program.names)}; expected the same names in the same order"
            )
        self._experiment, self._data = experiment, data
        self._sources = {name: self._alone(program, name) for name in names}
        self._pad_id = load_vocabulary(data.vocabulary).pad_id
        self._joined = functools.cache(self._join)

    def _alone(self, program: MultiTask, name: str) -> LabelledExamples:
        data = self._data.single(name)
        return LabelledExamples(
            dataclasses.replace(self._experiment, program=program.single(name), data=data), data
        )

    def settle(self, folder: Path) -> None:
        """See `Source`."""
        next(iter(self._sources.values())).settle(folder)

    def begin(self, program: Program, params: Any, mesh: jax.sharding.Mesh, folder: Path) -> None:
        """See `Source`: nothing is made beforehand."""

    def fields(self, program: Program) -> tuple[str, ...]:
        """See `Source`."""
        return program.fields()

    def shapes(self, phase: int) -> list[dict[str, int]]:
        """See `Source`: one for each length that occurs."""
        sizes, loader = self._experiment.train.phases[phase], self._loader(phase, 0)
        epochs = -(-sizes.steps // loader.batches_per_epoch)
        return [{"B": sizes.batch_size, "L": length} for length in loader.shapes(epochs)]

    @contextlib.contextmanager
    def loader(self, phase: int, position: int) -> Iterator[LabelledLoader]:
        """See `Source`."""
        yield self._loader(phase, position)

    def evaluator(
        self, program: Program, phase: int, mesh: jax.sharding.Mesh
    ) -> "MixtureEvaluator | None":
        """See `Source`."""
        assert isinstance(program, MultiTaskProgram)
        found = {
            name: evaluator
            for name, source in self._sources.items()
            if (evaluator := source.evaluator(program.tasks[name], phase, mesh)) is not None
        }
        return MixtureEvaluator(found) if found else None

    def conclude(
        self, program: Program, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """See `Source`: for each task what its own run would leave, under its name."""
        assert isinstance(program, MultiTaskProgram)
        metrics, analyses = {}, {}
        for name, source in self._sources.items():
            alone, predictions = single_task(params, name), folder / PREDICTIONS / name
            metrics[name], analyses[name] = source.judge(
                program.tasks[name], alone, mesh, predictions, step
            )
        if jax.process_index() == 0:
            drawn = self._order(len(self._experiment.train.phases) - 1).drawn
            mixture = [
                {"task": name, "rows": analyses[name]["train_rows"], "drawn_in_an_epoch": rows}
                for name, rows in drawn.items()
            ]
            write_json(folder / run_folder.EVALUATION, metrics)
            analysis = {"tasks": analyses, "mixture": mixture}
            write_json(folder / run_folder.ANALYSIS, analysis)

    def _order(self, phase: int) -> MixedRows:
        rows = {name: len(each.train_features(phase)) for name, each in self._sources.items()}
        return MixedRows(rows, self._data.mixing, self._experiment.seed + phase)

    def _join(self, phase: int) -> Features:
        return join({name: each.train_features(phase) for name, each in self._sources.items()})

    def _loader(self, phase: int, position: int) -> LabelledLoader:
        sizes = self._experiment.train.phases[phase]
        name = self._data.tasks[0].name
        return LabelledLoader(
            self._joined(phase),
            self._data.single(name).lengths(sizes.length),
            batch_size=sizes.batch_size,
            seed=self._experiment.seed + phase,
            pad_id=self._pad_id,
            order=self._order(phase),
            host_index=jax.process_index(),
            host_count=jax.process_count(),
            start=position,
        )


class MixtureEvaluator:
    """Evaluates the parameters of several tasks on one split of each."""

    def __init__(self, evaluators: Mapping[str, TaskEvaluator]):
        self._evaluators = evaluators

    def __call__(self, params: Any) -> dict[str, float]:
        """The metrics of every task as "rte/accuracy", and `MEAN`."""
        metrics, firsts = {}, []
        for name, evaluator in self._evaluators.items():
            found = evaluator(single_task(params, name))
            firsts.append(evaluator.first(found))
            metrics |= {f"{name}/{metric}": value for metric, value in found.items()}
        return {MEAN: sum(firsts) / len(firsts), **metrics}
