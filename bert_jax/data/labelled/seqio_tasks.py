"""Labelled tasks in seqio's registry, and mixtures of them.

    register_labelled_task("rte", Glue(task="rte", folder="glue"), vocabulary="vocabulary")
    register_labelled_task("qnli", Glue(task="qnli"), vocabulary="vocabulary", task_id=1)  # TFDS
    register_mixture("both", ["rte", "qnli"], Temperature(temperature=2.0))
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

from bert_jax.config import from_json, to_json
from bert_jax.data.labelled.config import Glue, Mixing, TaskConfig
from bert_jax.data.labelled.example import Example
from bert_jax.data.labelled.features import make_features
from bert_jax.data.labelled.glue import glue_task
from bert_jax.data.labelled.mixing import mixing_rates
from bert_jax.data.labelled.read import read_task
from bert_jax.data.labelled.rows import Features
from bert_jax.data.labelled.task import Kind, Task
from bert_jax.data.labelled.tfds_glue import dataset_name, tfds_example, tfds_splits
from bert_jax.data.numpy_steps import ROW, ROWS, SCALAR, Shape, numpy_step, plain
from bert_jax.data.preprocessors import Dataset
from bert_jax.data.preprocessors import Example as Tensors
from bert_jax.data.seqio_vocabulary import SeqioVocabulary
from bert_jax.errors import UserError

# Batch fields of a row of each kind, with the dims of one row. Classification and regression have
# the same, so that both can be in one mixture.
_INPUTS = {"input_ids": "L", "token_type_ids": "L"}
_TEXT_FIELDS = {**_INPUTS, "labels": "", "label_values": ""}
ROW_FIELDS: dict[Kind, dict[str, str]] = {
    "classification": _TEXT_FIELDS,
    "regression": _TEXT_FIELDS,
    "tagging": {**_INPUTS, "token_labels": "L", "token_label_weights": "L"},
    "question_answering": {**_INPUTS, "start_positions": "", "end_positions": ""},
    "multiple_choice": {"choice_input_ids": "AL", "choice_token_type_ids": "AL", "labels": ""},
}
_FLOATS = ("label_values", "token_label_weights")
_SHAPES: dict[str, Shape] = {"": SCALAR, "L": ROW, "AL": ROWS}


def register_labelled_task(
    name: str, config: TaskConfig, *, vocabulary: str, task_id: int = 0, stride: int = 128
) -> seqio.Task:
    """Adds a task to seqio's registry: its files read now, or TFDS's dataset read by seqio.

    Args:
      name: the task's name in the registry.
      config: where the examples come from.
      vocabulary: a path for load_vocabulary.
      task_id: stands in every row, to tell the tasks of a mixture apart.
      stride: pieces that two windows of one long example share.
    """
    ids = SeqioVocabulary(vocabulary)
    if isinstance(config, Glue) and config.folder is None:
        task = glue_task(config, {})
        source: Any = seqio.TfdsDataSource(
            tfds_name=dataset_name(config.task), splits=tfds_splits(config.task)
        )
        first = [_FromTfds(config.task)]
    else:
        task = read_task(config)
        source, first = _memory_source(task), []
    empty = dataclasses.replace(task, splits={})
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[*first, EncodeExamples(ids, empty, task_id, stride)],
        output_features=_output_features(task.kind, ids),
    )


def register_mixture(name: str, tasks: Sequence[str], mixing: Mixing) -> seqio.Mixture:
    """Adds a mixture of registered tasks, drawn by the sizes of their training sets.

    Raises:
      UserError: a task that is not registered, has nothing to train on, or another kind of rows.
    """
    known = seqio.TaskRegistry.names()
    for task in tasks:
        if task not in known:
            raise UserError(
                f"no task {task!r} is registered (registered: {', '.join(sorted(known))})"
            )
    found = {task: seqio.TaskRegistry.get(task) for task in tasks}
    if len({tuple(task.output_features) for task in found.values()}) > 1:
        raise UserError(f"the tasks {', '.join(tasks)} make rows of different fields")
    counts = {
        task: provider.num_input_examples("train") or 0 if "train" in provider.splits else 0
        for task, provider in found.items()
    }
    return seqio.MixtureRegistry.add(name, list(mixing_rates(counts, mixing).items()))


@dataclass(frozen=True)
class EncodeExamples:
    """{"example": JSON of an Example} -> its rows; seqio fills in `sequence_length`."""

    vocabulary: SeqioVocabulary
    task: Task  # without examples
    task_id: int
    stride: int
    sequence_length: Mapping[str, int] | None = None

    def __call__(self, dataset: Dataset) -> Dataset:
        fields = ROW_FIELDS[self.task.kind]
        outputs = [
            (tf.float32 if name in _FLOATS else tf.int32, (None, *_SHAPES[dims]))
            for name, dims in fields.items()
        ]

        @plain
        def encode(example: Tensors) -> Tensors:
            inputs = [example["example"]]
            *rows, lengths = numpy_step(self._encode, inputs, [*outputs, (tf.int32, ROW)])
            return {**dict(zip(fields, rows, strict=True)), "length": lengths}

        @plain
        def trim(row: Tensors) -> Tensors:
            trimmed: dict[str, Any] = {name: row[name] for name in fields}
            for name, dims in fields.items():
                if dims:
                    trimmed[name] = trimmed[name][..., : row["length"]]
            return {**trimmed, "task_id": tf.constant(self.task_id, tf.int32)}

        return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE).unbatch().map(trim)

    def _encode(self, raw: Any) -> tuple[np.ndarray, ...]:
        """The rows of one example, padded to the longest of them, and their lengths."""
        example = from_json(Example, json.loads(np.asarray(raw).item()))
        task = dataclasses.replace(self.task, splits={"one": (example,)})
        length = (self.sequence_length or {}).get("input_ids")
        if length is None:
            raise UserError(
                f"sequence_length is {self.sequence_length}; expected the longest row, as in "
                "{'input_ids': 128}"
            )
        features = make_features(task, "one", self.vocabulary.vocabulary, length, self.stride)
        rows = (_rows(n, dims, features) for n, dims in ROW_FIELDS[task.kind].items())
        return *rows, features.lengths.astype(np.int32)


def _rows(name: str, dims: str, features: Features) -> np.ndarray:
    """One field of all rows, padded with zeros."""
    dtype = np.float32 if name in _FLOATS else np.int32
    count, longest = len(features), int(features.lengths.max())
    if name.endswith(("input_ids", "token_type_ids")):
        texts = features.input_ids if name.endswith("input_ids") else features.token_type_ids
        padded = [np.pad(text, (0, longest - len(text))) for text in texts]
        shape = (count, longest) if dims == "L" else (count, features.choices, longest)
        return np.array(padded, dtype).reshape(shape)
    values = features.targets.get(name)
    if dims == "L":
        blank = [np.zeros(0, dtype)] * count
        return np.array([np.pad(v, (0, longest - len(v))) for v in values or blank], dtype)
    return np.array([-1] * count if values is None else values, dtype)


@dataclass(frozen=True)
class _FromTfds:
    """TFDS's fields of a task of GLUE -> {"example": JSON of an Example}."""

    task: str

    def __call__(self, dataset: Dataset) -> Dataset:
        @plain
        def convert(fields: Tensors) -> Tensors:
            def to_bytes(*values: Any) -> tuple[bytes]:
                arrays = [np.asarray(value) for value in values]
                return (_as_bytes(tfds_example(self.task, dict(zip(fields, arrays, strict=True)))),)

            (raw,) = numpy_step(to_bytes, list(fields.values()), [(tf.string, SCALAR)])
            return {"example": raw}

        return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def _memory_source(task: Task) -> Any:
    """The examples of a task that has been read, as {"example": JSON}."""
    raw: dict[str, Any] = {
        split: [_as_bytes(e) for e in examples] for split, examples in task.splits.items()
    }

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del shuffle_files, seed  # seqio shuffles examples itself
        texts: Any = {"example": raw[split]}
        return tf.data.Dataset.from_tensor_slices(texts)

    counts = {split: len(examples) for split, examples in raw.items()}
    return seqio.FunctionDataSource(dataset, splits=tuple(raw), num_input_examples=counts)


def _as_bytes(example: Example) -> bytes:
    return json.dumps(to_json(example)).encode()


def _output_features(kind: Kind, ids: SeqioVocabulary) -> dict[str, Any]:
    other: Callable[..., Any] = seqio.PassThroughVocabulary
    features = {
        name: seqio.Feature(
            ids if name.endswith("input_ids") else other(size=0),
            add_eos=False,
            dtype=tf.float32 if name in _FLOATS else tf.int32,
            rank=len(dims),
        )
        for name, dims in ROW_FIELDS[kind].items()
    }
    task_id = seqio.Feature(other(size=0), add_eos=False, rank=0)
    return {**features, "task_id": task_id}
