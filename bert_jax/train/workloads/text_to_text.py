"""Provides the data of text-to-text fine-tuning: batches of tasks, evaluation by generation."""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax.batch import PACKED_DECODER_FIELDS
from bert_jax.config.experiment import Experiment
from bert_jax.config.generation import GenerationConfig
from bert_jax.config.labeled_data import TextToTextData
from bert_jax.config.objectives import Seq2Seq
from bert_jax.config.train import LabeledEval, Phase
from bert_jax.data.pretraining.denoising import SourceAndTarget
from bert_jax.data.text_to_text import (
    TextTask,
    TextToTextExample,
    TextToTextLoader,
    check_labels,
    encode_examples,
    label_index,
    load_text_task,
    parse_score,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import atomic_write, write_json
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.objectives.base import Objective
from bert_jax.predict.generator import Generator as TextGenerator
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq
from bert_jax.runs import run_folder
from bert_jax.runs.training_data import examples_fingerprint
from bert_jax.tasks.metrics.text_generation import (
    TEXT_METRICS,
    label_text_metrics,
    require_text_metrics,
    score_text_metrics,
    text_metrics,
)
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.train.workloads.base import Workload
from bert_jax.train.workloads.multi_task import MEAN_METRIC

logger = logging.getLogger(__name__)

_LABELED_KINDS = ("classification", "regression")
"""Kinds of tasks whose targets are labels or scores; all others have free texts."""


class TextToTextWorkload(Workload):
    """Fine-tunes an encoder-decoder on tasks that are written as text."""

    next_command = "bert-jax generate {run} --file FILE, or bert-jax export {run} --output exported"

    def __init__(self, experiment: Experiment, data: TextToTextData, objective: Seq2Seq):
        """Reads the tasks.

        Raises:
          UserError: a file is damaged, a label cannot be written, or a task has no training data.
        """
        super().__init__(experiment)
        self._data, self._model = data, objective.model
        # Of the settings of training, such as remat, generation uses only the dtype.
        self._compute = ComputeConfig(dtype=objective.compute.dtype)
        self._tokenizer = load_tokenizer(data.tokenizer)
        self._tasks = {named.name: load_text_task(named.task, named.name) for named in data.tasks}
        # Labels must fit into the shortest phase: a label that is cut could never be generated.
        target_length = min(phase.target_length for phase in experiment.train.phases)
        for name, task in self._tasks.items():
            check_labels(task, name, self._tokenizer, target_length)
            if "train" not in task.splits:
                raise UserError(f"the task {name!r} has no training examples; name a file")
            if task.kind not in _LABELED_KINDS:
                require_text_metrics()

    def prepare_run_folder(self, folder: Path) -> None:
        """Checks the tokenizer against the model and saves it; see `Workload`."""
        path = self._data.tokenizer
        self._check_and_save_tokenizer(self._tokenizer, path, self._model, folder)

    def data_fingerprint(self) -> str:
        """Returns a hash of the training examples of each task."""
        train = ((name, task.splits["train"]) for name, task in self._tasks.items())
        return " ".join(f"{name}:{examples_fingerprint(rows)}" for name, rows in train)

    def describe_data(self) -> dict[str, str]:
        """Returns the names of the tasks with the number of examples of each split."""
        return {
            f"Task {name}": ", ".join(f"{len(rows):,} {split}" for split, rows in splits.items())
            for name, splits in ((name, task.splits) for name, task in self._tasks.items())
        }

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """Returns the fields that the objective reads, and the fields of packed sequences."""
        return objective.batch_fields() + (PACKED_DECODER_FIELDS if self._data.packing else ())

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one shape for each phase: all batches are padded to its lengths."""
        return [self._phases[phase_index].sizes]

    @contextlib.contextmanager
    def loader(self, phase_index: int, position: int) -> Generator[TextToTextLoader]:
        """Opens the training loader; see `Workload`."""
        phase = self._phases[phase_index]
        lengths = phase.seq_length, phase.target_length
        examples: dict[str, list[SourceAndTarget]] = {}
        for name, task in self._tasks.items():
            examples[name], num_truncated = encode_examples(
                task.splits["train"], self._tokenizer, *lengths
            )
            if num_truncated:
                limits = "seq_length {} or target_length {}".format(*lengths)
                message = (
                    "task %r: %d of %d training examples are longer than %s and were truncated"
                )
                logger.warning(message, name, num_truncated, len(examples[name]), limits)
        yield TextToTextLoader(
            examples,
            self._data.mixing,
            lengths=lengths,
            batch_size=phase.batch_size,
            packing=self._data.packing,
            pad_id=self._tokenizer.pad_id,
            seed=self._seed + phase_index,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            start=position,
        )

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> "GenerationEvaluator | None":
        """Returns the evaluator of the split that the config names; see `Workload`.

        Raises:
          ConfigError: no task has the split, or its examples have no targets.
        """
        if not isinstance(evaluation := self._evaluation, LabeledEval):
            return None
        splits = [task.splits.get(evaluation.split, ()) for task in self._tasks.values()]
        if not any(splits) or not all(map(_have_targets, splits)):
            found = "examples without targets" if any(splits) else "no examples"
            raise ConfigError(
                f"train.evaluation.split is {evaluation.split!r}, for which there are {found}; "
                "expected a split with targets, such as 'dev', or set train.evaluation to null"
            )
        phase = self._phases[phase_index]
        return self._make_evaluator(evaluation.split, phase, mesh)

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes `predictions/<task>-<split>.jsonl`, and the metrics of splits with targets."""
        metrics: dict[str, dict[str, float]] = {}
        found_splits = {split for task in self._tasks.values() for split in task.splits}
        for split in filter(found_splits.__contains__, self._data.predicted_splits):
            evaluator = self._make_evaluator(split, self._phases[-1], mesh)
            outputs = evaluator.generate(params)
            # Generation is a collective computation of all processes, so this comes after it and
            # not before.
            if jax.process_index():
                continue
            if metrics_of_split := evaluator.metrics(outputs):
                metrics[split] = metrics_of_split
            for name, texts in outputs.items():
                file = folder / "predictions" / f"{name}-{split}.jsonl"
                file.parent.mkdir(exist_ok=True)
                atomic_write(file, _prediction_lines(self._tasks[name].splits[split], texts))
        if metrics:
            write_json(folder / run_folder.EVALUATION, metrics)

    def _make_evaluator(
        self, split: str, phase: Phase, mesh: jax.sharding.Mesh
    ) -> "GenerationEvaluator":
        model = LoadedSeq2Seq(
            params={}, config=self._model, tokenizer=self._tokenizer, path=self._experiment.name
        )
        settings = GenerationConfig(
            max_new_tokens=phase.target_length, max_source_tokens=phase.seq_length
        )
        return GenerationEvaluator(model, settings, self._compute, self._tasks, split, mesh)


class GenerationEvaluator:
    """Generates texts for the examples of a split, greedily, and compares them with the targets.

    The devices of the mesh share the texts of each batch, and every process gets all texts.
    """

    def __init__(
        self,
        model: LoadedSeq2Seq,
        settings: GenerationConfig,
        compute: ComputeConfig,
        tasks: dict[str, TextTask],
        split: str,
        mesh: jax.sharding.Mesh,
    ):
        self._model, self._settings, self._compute = model, settings, compute
        self._tasks, self._split, self._mesh = tasks, split, mesh

    @property
    def known_metrics(self) -> tuple[str, ...]:
        """Returns the names of all metrics."""
        tasks = self._split_tasks.items()
        names = [self._prefix(name) + each for name, task in tasks for each in _metric_names(task)]
        return (MEAN_METRIC, *names) if len(self._tasks) > 1 else tuple(names)

    @property
    def _split_tasks(self) -> dict[str, TextTask]:
        return {name: task for name, task in self._tasks.items() if self._split in task.splits}

    def _prefix(self, name: str) -> str:
        return f"{name}/" if len(self._tasks) > 1 else ""

    # All devices share the rows of a batch, so a batch ends when the texts of all devices have
    # ended.
    def generate(self, params: Any) -> dict[str, list[str]]:
        """Returns the generated text of each example, by task."""
        model = dataclasses.replace(self._model, params=params)
        generator = TextGenerator(model, self._settings, self._compute, self._mesh)
        return {
            name: [each.text for each in generator([e.source for e in task.splits[self._split]])]
            for name, task in self._split_tasks.items()
        }

    def __call__(self, params: Any) -> dict[str, float]:
        """Generates all texts and returns their metrics."""
        return self.metrics(self.generate(params))

    def metrics(self, outputs: dict[str, list[str]]) -> dict[str, float]:
        """Computes metrics from generated texts, as "<task>/<metric>" if there are several tasks.

        These also have `MEAN_METRIC`, the mean of their main metrics as fractions from 0 to 1.
        """
        result: dict[str, float] = {}
        main: list[float] = []
        for name, texts in outputs.items():
            task = self._tasks[name]
            if not _have_targets(task.splits[self._split]):
                continue
            metrics = task_metrics(task, self._split, texts)
            # BLEU and ROUGE are from 0 to 100, metrics of labels from 0 to 1.
            scale = 1.0 if task.kind in _LABELED_KINDS else 0.01
            main.append(scale * metrics[_metric_names(task)[0]])
            result |= {self._prefix(name) + metric: value for metric, value in metrics.items()}
        if main and len(self._tasks) > 1:
            return {MEAN_METRIC: sum(main) / len(main), **result}
        return result


def task_metrics(task: TextTask, split: str, texts: list[str]) -> dict[str, float]:
    """Computes the metrics of a task for the generated texts of a split."""
    targets = [example.targets for example in task.splits[split]]
    match task.kind:
        case "classification":
            labels = [label_index(first, task.labels) for first, *_ in targets]
            # A text that is no label is wrong for every label; in the F1 of MRPC and QQP it
            # counts as the other class, as in T5.
            predictions = [label_index(text, task.labels) for text in texts]
            scores = label_text_metrics(labels, predictions, task.labels)
        case "regression":
            numbers = [parse_score(first) for first, *_ in targets]
            scores = score_text_metrics(numbers, [parse_score(text) for text in texts])
        case _:
            return text_metrics(targets, texts)
    return {name: value for name, value in scores.items() if name in task.metrics}


def _metric_names(task: TextTask) -> tuple[str, ...]:
    """Returns the names of the metrics of `task_metrics`, the main one first."""
    return task.metrics if task.kind in _LABELED_KINDS else TEXT_METRICS


def _have_targets(examples: Sequence[TextToTextExample]) -> bool:
    return all(example.targets for example in examples)


def _prediction_lines(examples: Sequence[TextToTextExample], texts: Sequence[str]) -> str:
    rows = [
        {"id": example.id, "prediction": text, "targets": example.targets}
        for example, text in zip(examples, texts, strict=True)
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
