"""Labelled tasks in seqio's registry, and mixtures of them.

    register_labeled_task("rte", Glue(task="rte", folder="glue"), tokenizer="vocabulary")
    register_labeled_task("qnli", Glue(task="qnli"), tokenizer="vocabulary", task_id=1)  # TFDS
    register_mixture("both", ["rte", "qnli"], TemperatureMixing(temperature=2.0))
    both = seqio.get_mixture_or_task("both")
    rows = both.get_dataset(sequence_length={"input_ids": 128}, split="train", seed=0)

Rows are those of `features.py`, not padded, under the names of `batch.py`, with `task_id` beside
them; what has no label has -1. Training reads its tasks without seqio (`loader.py`).
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.config_lib import from_json, to_json
from bert_jax.data.finetuning.config import Glue, Mixing, TaskConfig
from bert_jax.data.finetuning.example import Example
from bert_jax.data.finetuning.features import make_features
from bert_jax.data.finetuning.mixing_rates import mixing_rates
from bert_jax.data.finetuning.readers.glue import make_glue_task
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.finetuning.readers.tfds_glue import dataset_name, tfds_example, tfds_splits
from bert_jax.data.finetuning.rows import Features
from bert_jax.data.finetuning.task import Task, TaskKind
from bert_jax.data.seqio.preprocessors import Dataset, TensorDict
from bert_jax.data.seqio.tf_numpy import MATRIX, SCALAR, VECTOR, Shape, no_autograph, numpy_function
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.errors import UserError

# Batch fields of a row of each kind, with the dims of one row. Classification and regression have
# the same, so that both can be in one mixture.
_INPUT_FIELDS = {"input_ids": "L", "token_type_ids": "L"}
_TEXT_FIELDS = {**_INPUT_FIELDS, "labels": "", "label_values": ""}
FIELDS_BY_KIND: dict[TaskKind, dict[str, str]] = {
    "classification": _TEXT_FIELDS,
    "regression": _TEXT_FIELDS,
    "token_classification": {**_INPUT_FIELDS, "token_labels": "L", "token_label_weights": "L"},
    "question_answering": {**_INPUT_FIELDS, "start_positions": "", "end_positions": ""},
    "multiple_choice": {"choice_input_ids": "AL", "choice_token_type_ids": "AL", "labels": ""},
}
_FLOAT_FIELDS = ("label_values", "token_label_weights")
_SHAPES: dict[str, Shape] = {"": SCALAR, "L": VECTOR, "AL": MATRIX}


def register_labeled_task(
    name: str, config: TaskConfig, *, tokenizer: str, task_id: int = 0, window_overlap: int = 128
) -> seqio.Task:
    """Adds a task to seqio's registry: its files read now, or TFDS's dataset read by seqio.

    Args:
      name: the task's name in the registry.
      config: where the examples come from.
      vocabulary: a path for load_vocabulary.
      task_id: stands in every row, to tell the tasks of a mixture apart.
      stride: pieces that two windows of one long example share.
    """
    seqio_vocabulary = SeqioVocabulary(tokenizer)
    if isinstance(config, Glue) and config.folder is None:
        task = make_glue_task(config, {})
        source: Any = seqio.TfdsDataSource(
            tfds_name=dataset_name(config.task), splits=tfds_splits(config.task)
        )
        first_preprocessors = [_ConvertTfdsExamples(config.task)]
    else:
        task = load_task(config)
        source, first_preprocessors = _in_memory_source(task), []
    task_without_examples = dataclasses.replace(task, splits={})
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *first_preprocessors,
            EncodeExamples(seqio_vocabulary, task_without_examples, task_id, window_overlap),
        ],
        output_features=_output_features(task.kind, seqio_vocabulary),
    )


def register_mixture(name: str, tasks: Sequence[str], mixing: Mixing) -> seqio.Mixture:
    """Adds a mixture of registered tasks, drawn by the sizes of their training sets.

    Raises:
      UserError: a task that is not registered, has nothing to train on, or another kind of rows.
    """
    registered = seqio.TaskRegistry.names()
    for task in tasks:
        if task not in registered:
            raise UserError(
                f"no task {task!r} is registered (registered: {', '.join(sorted(registered))})"
            )
    registered_tasks = {task: seqio.TaskRegistry.get(task) for task in tasks}
    if len({tuple(task.output_features) for task in registered_tasks.values()}) > 1:
        raise UserError(f"the tasks {', '.join(tasks)} make rows of different fields")
    counts = {
        task: provider.num_input_examples("train") or 0 if "train" in provider.splits else 0
        for task, provider in registered_tasks.items()
    }
    return seqio.MixtureRegistry.add(name, list(mixing_rates(counts, mixing).items()))


@dataclass(frozen=True)
class EncodeExamples:
    """{"example": JSON of an Example} -> its rows; seqio fills in `sequence_length`."""

    vocabulary: SeqioVocabulary
    task: Task  # without examples
    task_id: int
    window_overlap: int
    sequence_length: Mapping[str, int] | None = None

    def __call__(self, dataset: Dataset) -> Dataset:
        fields = FIELDS_BY_KIND[self.task.kind]
        outputs = [
            (tf.float32 if name in _FLOAT_FIELDS else tf.int32, (None, *_SHAPES[dims]))
            for name, dims in fields.items()
        ]

        @no_autograph
        def encode(example: TensorDict) -> TensorDict:
            inputs = [example["example"]]
            *arrays, lengths = numpy_function(self._encode, inputs, [*outputs, (tf.int32, VECTOR)])
            return {**dict(zip(fields, arrays, strict=True)), "length": lengths}

        @no_autograph
        def trim(sequence: TensorDict) -> TensorDict:
            trimmed: dict[str, Any] = {name: sequence[name] for name in fields}
            for name, dims in fields.items():
                if dims:
                    trimmed[name] = trimmed[name][..., : sequence["length"]]
            return {**trimmed, "task_id": tf.constant(self.task_id, tf.int32)}

        return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE).unbatch().map(trim)

    def _encode(self, raw: Any) -> tuple[np.ndarray, ...]:
        """The rows of one example, padded to the longest of them, and their lengths."""
        example = from_json(Example, json.loads(np.asarray(raw).item()))
        task = dataclasses.replace(self.task, splits={"one": (example,)})
        max_length = (self.sequence_length or {}).get("input_ids")
        if max_length is None:
            raise UserError(
                f"sequence_length is {self.sequence_length}; expected the longest row, as in "
                "{'input_ids': 128}"
            )
        features = make_features(
            task, "one", self.vocabulary.tokenizer, max_length, self.window_overlap
        )
        arrays = (_padded_field(n, dims, features) for n, dims in FIELDS_BY_KIND[task.kind].items())
        return *arrays, features.lengths.astype(np.int32)


def _padded_field(name: str, dims: str, features: Features) -> np.ndarray:
    """One field of all rows, padded with zeros."""
    dtype = np.float32 if name in _FLOAT_FIELDS else np.int32
    num_sequences, max_length = len(features), int(features.lengths.max())
    if name.endswith(("input_ids", "token_type_ids")):
        texts = features.input_ids if name.endswith("input_ids") else features.token_type_ids
        padded = [np.pad(text, (0, max_length - len(text))) for text in texts]
        shape = (
            (num_sequences, max_length)
            if dims == "L"
            else (num_sequences, features.num_choices, max_length)
        )
        return np.array(padded, dtype).reshape(shape)
    values = features.targets.get(name)
    if dims == "L":
        blank = [np.zeros(0, dtype)] * num_sequences
        return np.array([np.pad(v, (0, max_length - len(v))) for v in values or blank], dtype)
    return np.array([-1] * num_sequences if values is None else values, dtype)


@dataclass(frozen=True)
class _ConvertTfdsExamples:
    """TFDS's fields of a task of GLUE -> {"example": JSON of an Example}."""

    task: str

    def __call__(self, dataset: Dataset) -> Dataset:
        @no_autograph
        def convert(fields: TensorDict) -> TensorDict:
            def to_bytes(*values: Any) -> tuple[bytes]:
                arrays = [np.asarray(value) for value in values]
                return (
                    _to_json_bytes(tfds_example(self.task, dict(zip(fields, arrays, strict=True)))),
                )

            (raw,) = numpy_function(to_bytes, list(fields.values()), [(tf.string, SCALAR)])
            return {"example": raw}

        return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def _in_memory_source(task: Task) -> Any:
    """The examples of a task that has been read, as {"example": JSON}."""
    raw: dict[str, Any] = {
        split: [_to_json_bytes(e) for e in examples] for split, examples in task.splits.items()
    }

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del shuffle_files, seed  # seqio shuffles examples itself
        texts: Any = {"example": raw[split]}
        return tf.data.Dataset.from_tensor_slices(texts)

    counts = {split: len(examples) for split, examples in raw.items()}
    return seqio.FunctionDataSource(dataset, splits=tuple(raw), num_input_examples=counts)


def _to_json_bytes(example: Example) -> bytes:
    return json.dumps(to_json(example)).encode()


def _output_features(kind: TaskKind, seqio_vocabulary: SeqioVocabulary) -> dict[str, Any]:
    passthrough: Callable[..., Any] = seqio.PassThroughVocabulary
    features = {
        name: seqio.Feature(
            seqio_vocabulary if name.endswith("input_ids") else passthrough(size=0),
            add_eos=False,
            dtype=tf.float32 if name in _FLOAT_FIELDS else tf.int32,
            rank=len(dims),
        )
        for name, dims in FIELDS_BY_KIND[kind].items()
    }
    task_id = seqio.Feature(passthrough(size=0), add_eos=False, rank=0)
    return {**features, "task_id": task_id}
