"""seqio tasks over text: the front door for corpora.

A corpus is registered in a few lines, in a file of the user's own:

    # my_tasks.py
    import seqio
    from bert_jax.data.sources import TextFiles, Tfds
    from bert_jax.data.tasks import register_text_task

    books = TextFiles({"train": "books/*.txt.gz", "validation": "held_out/*.txt.gz"})
    register_text_task("books", books, vocabulary="vocabulary")
    register_text_task("wiki", Tfds(dataset="wikipedia/20230601.en"), vocabulary="vocabulary")
    seqio.MixtureRegistry.add("books_and_wiki", [("books", 1), ("wiki", 3)])

`bert-jax prepare --task books --module my_tasks.py --output prepared` runs it up to its cache
placeholder, once, for training. Masked sentence pairs come straight from it, too:

    task = seqio.get_mixture_or_task("books_and_wiki")
    lengths = {"input_ids": 128, "masked_lm_positions": 20}
    pairs = task.get_dataset(sequence_length=lengths, split="train", seed=0)

and `seqio.get_dataset(..., feature_converter=MaskedPairConverter())` pads them to batch fields.
"""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.data.config import Masking, Pairs
from bert_jax.data.documents import EncodedDocument
from bert_jax.data.numpy_steps import text_dataset
from bert_jax.data.pair_preprocessor import MaskedPairs
from bert_jax.data.preprocessors import CleanText, EncodeSentences, SelectText, SplitSentences
from bert_jax.data.records import ids_dtype
from bert_jax.data.seqio_vocabulary import SeqioVocabulary
from bert_jax.data.sources import PythonDocuments, TextFiles, Tfds
from bert_jax.errors import UserError

# So many output shards at most when a task that is not made of text files is prepared.
MOST_SHARDS = 256


def register_text_task(
    name: str,
    source: TextFiles | Tfds | PythonDocuments,
    *,
    vocabulary: str,
    splitter: str = "rules",
    pairs: Pairs | None = None,
    masking: Masking | None = None,
) -> seqio.Task:
    """Adds a task documents -> sentences -> token ids -> masked sentence pairs to seqio's registry.

    Args:
      name: the task's name.
      source: where documents come from.
      vocabulary: a path for load_vocabulary.
      splitter: a sentence splitter of text/sentences.py.
      pairs, masking: rates; the defaults are BERT's.
    """
    ids = SeqioVocabulary(vocabulary)
    first: list[Any] = [SelectText(source.text_key)] if isinstance(source, Tfds) else []
    row = seqio.Feature(ids, add_eos=False)
    other_row = seqio.Feature(seqio.PassThroughVocabulary(size=0), add_eos=False)
    label = seqio.Feature(seqio.PassThroughVocabulary(size=2), add_eos=False, rank=0)
    return seqio.TaskRegistry.add(
        name,
        source=_data_source(source),
        preprocessors=[
            *first,
            CleanText(),
            SplitSentences(splitter),
            EncodeSentences(ids),
            seqio.CacheDatasetPlaceholder(),
            MaskedPairs(ids, pairs or Pairs(), masking or Masking()),
        ],
        output_features={
            "input_ids": row,
            "token_type_ids": other_row,
            "masked_lm_positions": other_row,
            "masked_lm_ids": row,
            "next_sentence_labels": label,
        },
    )


class TextFilesSource(seqio.DataSource):
    """Text files as a seqio source; a shard is a share of the files."""

    def __init__(self, files: TextFiles):
        assert not isinstance(files.splits, str)
        super().__init__(splits=tuple(files.splits))
        self.files = files

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return False

    def list_shards(self, split: str) -> list[str]:
        return [file.path for file in self.files.list_files(split)]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **_: Any,
    ) -> tf.data.Dataset:
        """Documents as {"text": scalar string}; `shuffle` shuffles the files of the shard."""
        files = list(self.files.list_files(split))
        if shard_info is not None:
            files = files[shard_info.index :: shard_info.num_shards]
        if shuffle:
            order = np.random.default_rng(seed).permutation(len(files))
            files = [files[i] for i in order]
        return text_dataset(lambda: self.files.texts(files))

    def __repr__(self) -> str:
        return f"TextFilesSource({self.files!r})"


def _data_source(source: TextFiles | Tfds | PythonDocuments) -> Any:
    if isinstance(source, TextFiles):
        return TextFilesSource(source)
    if isinstance(source, Tfds):
        return seqio.TfdsDataSource(
            tfds_name=source.dataset,
            tfds_data_dir=source.data_dir,
            splits=dict(source.splits) if source.splits else None,
        )

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del shuffle_files, seed  # the order is the function's own
        return text_dataset(source.splits[split])

    return seqio.FunctionDataSource(dataset, splits=tuple(source.splits))


@dataclass(frozen=True, kw_only=True)
class TaskSteps:
    """What `prepare` wants to know of a task.

    `files` are its text files if its steps up to the cache placeholder are just the ones that
    `register_text_task` puts there: then it can be prepared without TensorFlow.
    """

    vocabulary: str
    splitter: str
    files: TextFiles | None


def find_task(name: str, module: str | None) -> seqio.Task:
    """A registered task, after running the Python file `module` that registers it.

    Raises:
      UserError: no such file, no such task, a mixture, or a task without a cache placeholder.
    """
    if module is not None and name not in seqio.TaskRegistry.names():
        _run_module(module)
    if name in seqio.MixtureRegistry.names():
        raise UserError(f"{name} is a mixture; prepare each of its tasks")
    if name not in seqio.TaskRegistry.names():
        known = ", ".join(sorted(seqio.TaskRegistry.names())) or "none"
        raise UserError(
            f"no task {name!r} is registered (registered: {known}); name the file that registers "
            "it with --module"
        )
    task = seqio.TaskRegistry.get(name)
    if not task.supports_caching:
        raise UserError(
            f"task {name!r} has no seqio.CacheDatasetPlaceholder() among its preprocessors, so "
            "there is nothing to prepare; see register_text_task"
        )
    return task


def task_steps(task: seqio.Task) -> TaskSteps:
    """Looks at the steps of a task up to its cache placeholder.

    Raises:
      UserError: its ids are not made by one of our vocabularies.
    """
    steps = _steps_before_cache(task)
    encoders = [step for step in steps if isinstance(step, EncodeSentences)]
    splitters = [step for step in steps if isinstance(step, SplitSentences)]
    if len(encoders) != 1:
        raise UserError(
            f"task {task.name!r} does not make ids and sentence_ends with EncodeSentences before "
            "its cache placeholder; see register_text_task"
        )
    ours = [type(step) for step in steps] == [CleanText, SplitSentences, EncodeSentences]
    source = task.source
    return TaskSteps(
        vocabulary=encoders[0].vocabulary.path,
        splitter=splitters[0].splitter if splitters else "none",
        files=source.files if ours and isinstance(source, TextFilesSource) else None,
    )


def source_shards(task: seqio.Task, split: str, wanted: int | None) -> int:
    """In how many parts the source of a task can be read, at most `wanted`.

    Raises:
      UserError: there is no such split.
    """
    if split not in task.splits:
        raise UserError(f"task {task.name!r} has no split {split!r}; splits: {list(task.splits)}")
    return min(wanted or MOST_SHARDS, len(task.source.list_shards(split)))


def cache_point_documents(
    task: seqio.Task, split: str, number: int, total: int
) -> Iterable[EncodedDocument | str]:
    """Part `number` of `total` of what a task has at its cache placeholder, in a fixed order."""
    shard = seqio.ShardInfo(index=number, num_shards=total) if total > 1 else None
    dataset = task.source.get_dataset(split=split, shuffle=False, shard_info=shard)
    dtype = ids_dtype(_encoder_vocabulary_size(task))
    for document in task.preprocess_precache(dataset).as_numpy_iterator():
        dropped = document["dropped"].decode()
        yield dropped or EncodedDocument(
            document["ids"].astype(dtype),
            document["sentence_ends"].astype(np.uint32),
            int(document["text_bytes"]),
        )


def _encoder_vocabulary_size(task: seqio.Task) -> int:
    (encoder,) = [s for s in _steps_before_cache(task) if isinstance(s, EncodeSentences)]
    return encoder.vocabulary.vocab_size


def _steps_before_cache(task: seqio.Task) -> list[Any]:
    steps = list(task.preprocessors)
    (cache,) = [i for i, s in enumerate(steps) if isinstance(s, seqio.CacheDatasetPlaceholder)]
    return steps[:cache]


def _run_module(module: str) -> None:
    path = Path(module)
    if not path.is_file():
        raise UserError(f"--module {module}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
