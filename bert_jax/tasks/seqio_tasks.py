"""Registers labeled tasks of any kind, and mixtures of them, with seqio.

    register_labeled_task("rte", Glue(task="rte", folder="glue"), tokenizer="vocabulary")
    register_labeled_task("qnli", Glue(task="qnli"), tokenizer="vocabulary", task_id=1)  # TFDS
    register_mixture("both", ["rte", "qnli"], TemperatureMixing(temperature=2.0))
    both = seqio.get_mixture_or_task("both")
    dataset = both.get_dataset(sequence_length={"input_ids": 128}, split="train", seed=0)

The sequences have the fields of `bert_jax.batch`, not padded, and a `task_id`; labels of unlabeled
examples are -1. Training reads its tasks without seqio (`data/finetuning/loader.py`). Importing
this module imports TensorFlow, so nothing else in the package imports it.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Before seqio: without seqio or TensorFlow, it raises an error that names the extra to install.
import bert_jax.data.seqio  # noqa: F401  # pyright: ignore[reportUnusedImport]

# isort: split
import seqio
import tensorflow as tf

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.labeled_data import Glue, Mixing, TaskConfig
from bert_jax.data.finetuning.example import Example, Task
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.mixture import mixing_rates
from bert_jax.data.finetuning.readers.glue import make_glue_task
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.finetuning.readers.tfds_glue import dataset_name, tfds_example, tfds_splits
from bert_jax.data.seqio.tf_numpy import (
    MATRIX,
    SCALAR,
    VECTOR,
    Dataset,
    Shape,
    TensorDict,
    no_autograph,
    numpy_function,
)
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.errors import UserError
from bert_jax.tasks.features import make_features
from bert_jax.tasks.registry import kind_of

_FLOAT_FIELDS = ("label_values", "token_label_weights")
_SHAPES: dict[str, Shape] = {"": SCALAR, "L": VECTOR, "AL": MATRIX, "C": VECTOR}

SeqioTask = seqio.Task
FeatureMaker = Callable[[Example, int], Features]
"""(example, maximum sequence length) -> its features."""


def add_task(
    name: str,
    source: Any,
    preprocessors: Sequence[Callable[[Dataset], Dataset]],
    encode_examples: "EncodeExamples",
) -> SeqioTask:
    """Adds a task to seqio's registry.

    Args:
      name: the name of the task in the registry.
      source: a seqio data source of the examples, as {"example": JSON} or in the form that
        `preprocessors` convert.
      encode_examples: the last preprocessor, which tokenizes.
    """
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[*preprocessors, encode_examples],
        output_features=_output_features(encode_examples.fields, encode_examples.vocabulary),
    )


def register_mixture(name: str, tasks: Sequence[str], mixing: Mixing) -> seqio.Mixture:
    """Adds a mixture of registered tasks to seqio's registry; rates follow training set sizes.

    Raises:
      UserError: a task is not registered or has no training examples, or the tasks have different
        fields.
    """
    registered = seqio.TaskRegistry.names()
    for task in tasks:
        if task not in registered:
            raise UserError(
                f"the task {task!r} is not registered; registered tasks: "
                f"{', '.join(sorted(registered))}"
            )
    registered_tasks = {task: seqio.TaskRegistry.get(task) for task in tasks}
    if len({tuple(task.output_features) for task in registered_tasks.values()}) > 1:
        raise UserError(
            f"the tasks {', '.join(tasks)} have sequences with different fields; expected tasks "
            "with the same fields"
        )
    counts = {
        task: provider.num_input_examples("train") or 0 if "train" in provider.splits else 0
        for task, provider in registered_tasks.items()
    }
    return seqio.MixtureRegistry.add(name, list(mixing_rates(counts, mixing).items()))


@dataclass(frozen=True)
class EncodeExamples:
    """Tokenizes {"example": JSON of an `Example`} into sequences; a preprocessor of seqio.

    Attributes:
      fields: batch field -> dims of one sequence, "", "L", "AL" or "C".
      num_labels: C, the number of class names.
      sequence_length: filled in by seqio, which passes it to preprocessors that have this name.
    """

    vocabulary: SeqioVocabulary
    fields: Mapping[str, str]
    make_features: FeatureMaker
    task_id: int
    num_labels: int
    sequence_length: Mapping[str, int] | None = None

    def __call__(self, dataset: Dataset) -> Dataset:
        fields = self.fields
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
                if "L" in dims:
                    trimmed[name] = trimmed[name][..., : sequence["length"]]
            return {**trimmed, "task_id": tf.constant(self.task_id, tf.int32)}

        # An example may have several sequences of different lengths: they leave NumPy as one padded
        # array, are unbatched, and lose their padding.
        return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE).unbatch().map(trim)

    def _encode(self, raw: Any) -> tuple[np.ndarray, ...]:
        """Returns the padded fields of all sequences of one example, and their lengths."""
        example = from_json(Example, json.loads(np.asarray(raw).item()))
        max_length = (self.sequence_length or {}).get("input_ids")
        if max_length is None:
            raise UserError(
                f"sequence_length is {self.sequence_length}; expected the maximum number of "
                "tokens, for example {'input_ids': 128}"
            )
        features = self.make_features(example, max_length)
        arrays = (
            _padded_field(name, dims, features, self.num_labels)
            for name, dims in self.fields.items()
        )
        return *arrays, features.lengths.astype(np.int32)


def _padded_field(name: str, dims: str, features: Features, num_labels: int) -> np.ndarray:
    """Returns one field of all sequences, padded with zeros; -1 for labels that are unknown."""
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
        # Unlabeled splits keep the fields of labeled ones, because a seqio task has one set of
        # features.
        arrays = [np.asarray(v) for v in values or [np.zeros(0, dtype)] * num_sequences]
        return np.array([np.pad(v, (0, max_length - len(v))) for v in arrays], dtype)
    if values is None:
        return np.full((num_sequences, *(num_labels,) * len(dims)), -1, dtype)
    return np.array(values, dtype)


@dataclass(frozen=True)
class ConvertTfdsExamples:
    """Converts a record of TFDS's GLUE to {"example": JSON of an `Example`}."""

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


def tfds_source(task: str) -> Any:
    """Returns seqio's source of a GLUE task in TensorFlow Datasets."""
    return seqio.TfdsDataSource(tfds_name=dataset_name(task), splits=tfds_splits(task))


def in_memory_source(task: Task) -> Any:
    """Returns a seqio source of the examples of a task, as {"example": JSON}."""
    raw: dict[str, Any] = {
        split: [_to_json_bytes(e) for e in examples] for split, examples in task.splits.items()
    }

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> "tf.data.Dataset[Any]":
        del shuffle_files, seed  # seqio shuffles examples itself
        texts: Any = {"example": raw[split]}
        return tf.data.Dataset.from_tensor_slices(texts)

    counts = {split: len(examples) for split, examples in raw.items()}
    return seqio.FunctionDataSource(dataset, splits=tuple(raw), num_input_examples=counts)


def _to_json_bytes(example: Example) -> bytes:
    return json.dumps(to_json(example)).encode()


def _output_features(
    fields: Mapping[str, str], seqio_vocabulary: SeqioVocabulary
) -> dict[str, Any]:
    passthrough: Callable[..., Any] = seqio.PassThroughVocabulary
    features = {
        name: seqio.Feature(
            seqio_vocabulary if name.endswith("input_ids") else passthrough(size=0),
            add_eos=False,
            dtype=tf.float32 if name in _FLOAT_FIELDS else tf.int32,
            rank=len(dims),
        )
        for name, dims in fields.items()
    }
    task_id = seqio.Feature(passthrough(size=0), add_eos=False, rank=0)
    return {**features, "task_id": task_id}


__all__ = ["register_labeled_task", "register_mixture"]


def register_labeled_task(
    name: str, config: TaskConfig, *, tokenizer: str, task_id: int = 0, window_overlap: int = 128
) -> SeqioTask:
    """Adds a labeled task to seqio's registry.

    Files are read now; a dataset of TensorFlow Datasets is read by seqio.

    Args:
      name: the name of the task in the registry.
      config: where the examples come from.
      tokenizer: a path for `load_tokenizer`.
      task_id: a field of every sequence, to tell the tasks of a mixture apart.
      window_overlap: number of tokens that neighboring windows of a long example share.
    """
    vocabulary = SeqioVocabulary(tokenizer)
    if isinstance(config, Glue) and config.folder is None:
        task = make_glue_task(config, {})
        source, preprocessors = tfds_source(config.task), [ConvertTfdsExamples(config.task)]
    else:
        task = load_task(config)
        source, preprocessors = in_memory_source(task), []
    encode_examples = EncodeExamples(
        vocabulary,
        kind_of(task).sequence_fields,
        _ExampleFeatures(dataclasses.replace(task, splits={}), vocabulary, window_overlap),
        task_id,
        len(task.labels),
    )
    return add_task(name, source, preprocessors, encode_examples)


@dataclasses.dataclass(frozen=True)
class _ExampleFeatures:
    """Makes the features of one example at a time."""

    task: Task  # without examples
    vocabulary: SeqioVocabulary  # loads its tokenizer at first use
    window_overlap: int

    def __call__(self, example: Example, max_length: int) -> Features:
        task = dataclasses.replace(self.task, splits={"one": (example,)})
        return make_features(
            task, "one", self.vocabulary.tokenizer, max_length, self.window_overlap
        )
