"""Fine-tuning's source: the examples of a task, in splits."""

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from bert_jax.aside import write_aside, write_json, written_aside
from bert_jax.data.config import Labelled
from bert_jax.data.labelled.example import is_labelled
from bert_jax.data.labelled.features import make_features
from bert_jax.data.labelled.loader import LabelledLoader
from bert_jax.data.labelled.read import read_task
from bert_jax.data.labelled.rows import Features
from bert_jax.data.labelled.task import Task
from bert_jax.data.manifest import VOCABULARY
from bert_jax.errors import ConfigError, UserError
from bert_jax.evals.analysis import analyse, describe_task
from bert_jax.experiment import Experiment
from bert_jax.models.config import (
    ChoiceHead,
    RegressionHead,
    SequenceHead,
    SpanHead,
    TaskHead,
    TokenHead,
)
from bert_jax.parallel import sharding
from bert_jax.programs.config import FineTuning
from bert_jax.programs.fine_tuning import FineTuningProgram
from bert_jax.programs.program import Program
from bert_jax.text.compatibility import Tokenization, check_embedding_rows
from bert_jax.text.vocabulary import load_vocabulary
from bert_jax.train import run_folder
from bert_jax.train.config import DevSplit
from bert_jax.train.encoder_states import ENCODER_STATES, FrozenEncoder, read_once
from bert_jax.train.initial import check_starting_vocabulary
from bert_jax.train.task_evaluator import TaskEvaluator
from bert_jax.tuning.config import ReadOnce

PREDICTIONS = "predictions"


def task_head(task: Task) -> TaskHead:
    """The head that a task needs."""
    match task.kind:
        case "classification":
            return SequenceHead(labels=task.labels)
        case "regression":
            return RegressionHead()
        case "tagging":
            return TokenHead(labels=task.labels)
        case "question_answering":
            return SpanHead()
        case "multiple_choice":
            return ChoiceHead()


class LabelledExamples:
    """The `Source` of an experiment whose data is `Labelled`."""

    def __init__(self, experiment: Experiment, data: Labelled):
        """Reads the task.

        Raises:
          UserError: its files are missing or damaged, or the model has another head.
        """
        if not isinstance(experiment.program, FineTuning):
            raise ConfigError(
                f"data is Labelled, but program is {type(experiment.program).__name__}; "
                "expected FineTuning"
            )
        self._experiment, self._data, self._config = experiment, data, experiment.program
        self._vocabulary = load_vocabulary(data.vocabulary)
        self._task = read_task(data.task)
        self._features = functools.cache(self._make_features)
        train = self._task.splits.get("train", ())
        if not train or not all(is_labelled(example) for example in train):
            lacking = "has rows without a label in train" if train else "has no rows to train on"
            raise UserError(f"{self._task.name} {lacking}; name a file of labelled rows for train")
        needed = task_head(self._task)
        if needed != self._config.head:
            raise ConfigError(
                f"program.head is {self._config.head}, but {self._task.name} needs {needed}"
            )

    def settle(self, folder: Path) -> None:
        """See `Source`."""
        source = self._data.vocabulary
        used = Tokenization.of(self._vocabulary, source)
        remedy = "Set data.vocabulary to {vocabulary}."
        check_starting_vocabulary(self._experiment, folder, used, remedy)
        rows = self._config.model.vocab_size
        check_embedding_rows(used.size, rows, source, "Use the vocabulary of the model.")
        if not (folder / VOCABULARY).exists():
            with written_aside(folder / VOCABULARY) as aside:
                self._vocabulary.save(aside)

    def begin(self, program: Program, params: Any, mesh: jax.sharding.Mesh, folder: Path) -> None:
        """See `Source`: an encoder that reads once reads the rows of all splits."""
        train = self._experiment.train
        if not isinstance(train.tuning.encoder, ReadOnce):
            return
        assert isinstance(program, FineTuningProgram)
        lengths = sorted({phase.length for phase in train.phases})
        encoder = FrozenEncoder(
            program,
            params,
            mesh,
            lengths=self._data.lengths(lengths[-1]),
            batch_size=self._evaluation_rows(mesh),
            pad_id=self._vocabulary.pad_id,
        )
        rows = {f"{s}-{n}": self._features(s, n) for n in lengths for s in self._task.splits}
        read_once(encoder, rows, folder / ENCODER_STATES)

    def fields(self, program: Program) -> tuple[str, ...]:
        """See `Source`; with the states of an encoder that has read the rows."""
        return (*program.fields(), *self.train_features(0).states)

    def shapes(self, phase: int) -> list[dict[str, int]]:
        """See `Source`: one for each length that occurs."""
        rows = self._experiment.train.phases[phase].batch_size
        choices = self.train_features(phase).choices
        sizes = {"B": rows, "A": choices, "D": self._config.model.hidden_size}
        return [{**sizes, "L": n} for n in self._loader(phase, 0).shapes()]

    @contextlib.contextmanager
    def loader(self, phase: int, position: int) -> Iterator[LabelledLoader]:
        """See `Source`."""
        yield self._loader(phase, position)

    def evaluator(
        self, program: Program, phase: int, mesh: jax.sharding.Mesh
    ) -> TaskEvaluator | None:
        """See `Source`."""
        evaluation = self._experiment.train.evaluation
        if not isinstance(evaluation, DevSplit):
            return None
        if evaluation.split not in self._task.splits:
            there = ", ".join(self._task.splits)
            raise ConfigError(
                f"train.evaluation.split is {evaluation.split!r}, but {self._task.name} has "
                f"{there}; name a file for it, or set train.evaluation to null"
            )
        return self._split_evaluator(program, evaluation.split, phase, mesh)

    def conclude(
        self, program: Program, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """See `Source`: predictions, metrics and analysis of every split but the training's."""
        metrics, analysis = self.judge(program, params, mesh, folder / PREDICTIONS, step)
        if jax.process_index() == 0:
            write_json(folder / run_folder.EVALUATION, metrics)
            write_json(folder / run_folder.ANALYSIS, analysis)

    def judge(
        self, program: Program, params: Any, mesh: jax.sharding.Mesh, predictions: Path, step: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The metrics of every split but the training's, and on process 0 what there is to show.

        Writes the predictions for each split's examples into the folder `predictions`.
        """
        last = len(self._experiment.train.phases) - 1
        metrics, analysed = {}, {}
        predictions.mkdir(parents=True, exist_ok=True)
        for split in self._task.splits:
            if split == "train":
                continue
            judged = self._split_evaluator(program, split, last, mesh).judge(params)
            if judged.metrics:
                metrics[split] = judged.metrics
            if jax.process_index() == 0:
                if judged.metrics:
                    analysed[split] = analyse(
                        self._task, self._task.splits[split], judged.decided, judged.metrics
                    )
                lines = "".join(json.dumps(row) + "\n" for row in judged.predictions)
                write_aside(predictions / f"{split}.jsonl", lines)
        about = {**describe_task(self._task), "train_rows": len(self.train_features(last))}
        return metrics, {**about, "step": step, "splits": analysed}

    def train_features(self, phase: int) -> Features:
        """The rows that a phase trains on."""
        return self._features("train", self._experiment.train.phases[phase].length)

    def _make_features(self, split: str, length: int) -> Features:
        return make_features(self._task, split, self._vocabulary, length, self._data.stride)

    def _loader(self, phase: int, position: int) -> LabelledLoader:
        sizes = self._experiment.train.phases[phase]
        return LabelledLoader(
            self.train_features(phase),
            self._data.lengths(sizes.length),
            batch_size=sizes.batch_size,
            seed=self._experiment.seed + phase,
            pad_id=self._vocabulary.pad_id,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
            start=position,
        )

    def _split_evaluator(
        self, program: Program, split: str, phase: int, mesh: jax.sharding.Mesh
    ) -> TaskEvaluator:
        assert isinstance(program, FineTuningProgram)
        length = self._experiment.train.phases[phase].length
        return TaskEvaluator(
            program,
            self._task,
            split,
            self._features(split, length),
            self._data.lengths(length),
            batch_size=self._evaluation_rows(mesh),
            pad_id=self._vocabulary.pad_id,
            mesh=mesh,
        )

    def _evaluation_rows(self, mesh: jax.sharding.Mesh) -> int:
        """Rows of a batch that is not trained on."""
        batch_size = (self._experiment.train.evaluation or DevSplit()).batch_size
        sharding.check_batch_size(batch_size, 1, mesh)
        return batch_size
