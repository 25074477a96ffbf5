"""Registers labeled tasks of any kind with seqio.

    register_labeled_task("rte", Glue(task="rte", folder="glue"), tokenizer="vocabulary")
    register_labeled_task("qnli", Glue(task="qnli"), tokenizer="vocabulary", task_id=1)  # TFDS
    register_mixture("both", ["rte", "qnli"], TemperatureMixing(temperature=2.0))
    both = seqio.get_mixture_or_task("both")
    dataset = both.get_dataset(sequence_length={"input_ids": 128}, split="train", seed=0)

Importing this module imports TensorFlow, so nothing else in the package imports it.
"""

import dataclasses

from bert_jax.config.labeled_data import Glue, TaskConfig
from bert_jax.data.finetuning.example import Example, Task
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.readers.glue import make_glue_task
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.seqio.labeled_tasks import (
    ConvertTfdsExamples,
    EncodeExamples,
    SeqioTask,
    add_task,
    in_memory_source,
    register_mixture,
    tfds_source,
)
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.tasks import kind_of, make_features

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
