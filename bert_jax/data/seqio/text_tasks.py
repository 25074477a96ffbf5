"""Registers seqio tasks that produce masked sentence pairs from any source of documents.

Each one is a dataclass, because seqio sets its `sequence_length` and `bert-jax prepare` inspects
the preprocessors before a task's cache placeholder.

    CleanText, SplitSentences, EncodeSentences: text -> ids, sentence_ends, text_bytes, dropped
    -- cache placeholder: what `bert-jax prepare` writes --
    MaskedPairs (pair_preprocessor.py) -> masked sentence pairs

Dropped documents remain in the dataset without text, with the reason in `dropped`, for counting.

A corpus is registered in a few lines of a Python file:

    # my_tasks.py
    import seqio
    from bert_jax.data.corpus.sources import TextFiles, Tfds
    from bert_jax.data.seqio.text_tasks import register_text_task

    books = TextFiles({"train": "books/*.txt.gz", "validation": "held_out/*.txt.gz"})
    register_text_task("books", books, tokenizer="vocabulary")
    register_text_task("wiki", Tfds(dataset="wikipedia/20230601.en:1.0.0"), tokenizer="vocabulary")
    seqio.MixtureRegistry.add("books_and_wiki", [("books", 1), ("wiki", 3)])

`bert-jax prepare --task books --module my_tasks.py --output prepared` runs its preprocessors up to
the cache placeholder once, for training. The task also yields masked sentence pairs:

    task = seqio.get_mixture_or_task("books_and_wiki")
    lengths = {"input_ids": 128, "masked_lm_positions": 20}
    pairs = task.get_dataset(sequence_length=lengths, split="train", seed=0)

and `seqio.get_dataset(..., feature_converter=MaskedPairFeatureConverter())` pads them to batch
fields.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.config.data import Masking, SentencePairs
from bert_jax.config.recipes import import_file
from bert_jax.data.corpus.shards import (
    NO_TOKENS,
    EncodedDocument,
    clean_document,
    encode_sentences,
    ids_dtype,
)
from bert_jax.data.corpus.sources import PythonDocuments, TextFiles, Tfds
from bert_jax.data.seqio.pair_preprocessor import MaskedPairs
from bert_jax.data.seqio.tf_numpy import (
    SCALAR,
    VECTOR,
    Dataset,
    TensorDict,
    no_autograph,
    numpy_function,
    text_dataset,
)
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.errors import UserError
from bert_jax.text.sentences import get_sentence_splitter


@dataclass(frozen=True)
class SelectText:
    """Keeps one field of an example and renames it to "text"."""

    key: str

    def __call__(self, dataset: Dataset) -> Dataset:
        return dataset.map(no_autograph(lambda example: {"text": example[self.key]}))


@dataclass(frozen=True)
class CleanText:
    """Cleans {"text"} to {"text", "dropped"}; `dropped` is the reason, or "" to keep it."""

    def __call__(self, dataset: Dataset) -> Dataset:
        def clean(text: bytes) -> tuple[bytes, bytes]:
            cleaned, reason = clean_document(text.decode("utf-8", "surrogatepass"))
            return cleaned.encode(), reason.encode()

        @no_autograph
        def clean_example(example: TensorDict) -> TensorDict:
            outputs = [(tf.string, SCALAR), (tf.string, SCALAR)]
            text, dropped = numpy_function(clean, [example["text"]], outputs)
            return {"text": text, "dropped": dropped}

        return seqio.map_over_dataset(clean_example)(dataset)


@dataclass(frozen=True)
class SplitSentences:
    """Splits {"text", "dropped"} into {"sentences" [S], "text_bytes", "dropped"}."""

    splitter: str

    def __call__(self, dataset: Dataset) -> Dataset:
        splitter = get_sentence_splitter(self.splitter)

        def split(text: bytes, dropped: bytes) -> tuple[np.ndarray]:
            sentences = [] if dropped else splitter.split(text.decode())
            return (np.array([sentence.encode() for sentence in sentences], dtype=object),)

        @no_autograph
        def split_example(example: TensorDict) -> TensorDict:
            inputs = [example["text"], example["dropped"]]
            (sentences,) = numpy_function(split, inputs, [(tf.string, VECTOR)])
            return {
                "sentences": sentences,
                "text_bytes": tf.cast(tf.strings.length(example["text"]), tf.int64),
                "dropped": example["dropped"],
            }

        return seqio.map_over_dataset(split_example)(dataset)


@dataclass(frozen=True)
class EncodeSentences:
    """Encodes {"sentences", ...} as {"ids" int32 [T], "sentence_ends" int32 [S], ...}."""

    vocabulary: SeqioVocabulary

    def __call__(self, dataset: Dataset) -> Dataset:
        def encode(sentences: np.ndarray, dropped: bytes) -> tuple[np.ndarray, np.ndarray, bytes]:
            texts = [sentence.decode() for sentence in sentences]
            ids, ends = encode_sentences(texts, self.vocabulary.tokenizer)
            reason = dropped if len(ids) or dropped else NO_TOKENS.encode()
            return ids.astype(np.int32), ends.astype(np.int32), reason

        @no_autograph
        def encode_example(example: TensorDict) -> TensorDict:
            ids, ends, dropped = numpy_function(
                encode,
                [example["sentences"], example["dropped"]],
                [(tf.int32, VECTOR), (tf.int32, VECTOR), (tf.string, SCALAR)],
            )
            return {
                "ids": ids,
                "sentence_ends": ends,
                "text_bytes": example["text_bytes"],
                "dropped": dropped,
            }

        return seqio.map_over_dataset(encode_example)(dataset)


# The largest number of output shards of a task whose source is not text files.
MAX_SHARDS = 256


def register_text_task(
    name: str,
    source: TextFiles | Tfds | PythonDocuments,
    *,
    tokenizer: str,
    splitter: str = "rules",
    pairs: SentencePairs | None = None,
    masking: Masking | None = None,
) -> seqio.Task:
    """Registers a seqio task that makes masked sentence pairs from documents.

    Args:
      name: the task's name.
      source: where documents come from.
      tokenizer: a path for `load_tokenizer`.
      splitter: a sentence splitter of text/sentences.py.
      pairs, masking: probabilities of pairs and masks; the defaults are BERT's.

    Raises:
      UserError: the name of a dataset of TFDS has no version.
    """
    seqio_vocabulary = SeqioVocabulary(tokenizer)
    first_preprocessors: list[Any] = (
        [SelectText(source.text_key)] if isinstance(source, Tfds) else []
    )
    ids_feature = seqio.Feature(seqio_vocabulary, add_eos=False)
    int_feature = seqio.Feature(seqio.PassThroughVocabulary(size=0), add_eos=False)
    label_feature = seqio.Feature(seqio.PassThroughVocabulary(size=2), add_eos=False, rank=0)
    return seqio.TaskRegistry.add(
        name,
        source=_data_source(source),
        preprocessors=[
            *first_preprocessors,
            CleanText(),
            SplitSentences(splitter),
            EncodeSentences(seqio_vocabulary),
            seqio.CacheDatasetPlaceholder(),
            MaskedPairs(seqio_vocabulary, pairs or SentencePairs(), masking or Masking()),
        ],
        output_features={
            "input_ids": ids_feature,
            "token_type_ids": int_feature,
            "masked_lm_positions": int_feature,
            "masked_lm_ids": ids_feature,
            "next_sentence_labels": label_feature,
        },
    )


class TextFilesDataSource(seqio.DataSource):
    """Reads text files as a seqio data source; a shard is a part of the files."""

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
    ) -> "tf.data.Dataset[Any]":
        """Returns documents as {"text": scalar string}; `shuffle` shuffles the files."""
        files = list(self.files.list_files(split))
        if shard_info is not None:
            files = files[shard_info.index :: shard_info.num_shards]
        if shuffle:
            order = np.random.default_rng(seed).permutation(len(files))
            files = [files[i] for i in order]
        return text_dataset(lambda: self.files.read_texts(files))

    def __repr__(self) -> str:
        return f"TextFilesDataSource({self.files!r})"


def _data_source(source: TextFiles | Tfds | PythonDocuments) -> Any:
    if isinstance(source, TextFiles):
        return TextFilesDataSource(source)
    if isinstance(source, Tfds):
        if ":" not in source.dataset:
            raise UserError(
                f"Tfds(dataset={source.dataset!r}): expected the version of the dataset, as in "
                f"{source.dataset}:1.0.0; seqio requires it, since versions contain different text"
            )
        return seqio.TfdsDataSource(
            tfds_name=source.dataset,
            tfds_data_dir=source.data_dir,
            splits=dict(source.splits) if source.splits else None,
        )

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> "tf.data.Dataset[Any]":
        del shuffle_files, seed  # the function decides the order
        return text_dataset(source.splits[split])

    return seqio.FunctionDataSource(dataset, splits=tuple(source.splits))


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Holds what `bert-jax prepare` needs of a task.

    `files` are its text files if its preprocessors before the cache placeholder are exactly those
    of `register_text_task`: it can then be prepared without TensorFlow. Otherwise None.
    """

    tokenizer: str
    splitter: str
    files: TextFiles | None


def find_task(name: str, module: str | None) -> seqio.Task:
    """Returns a registered task, after running the Python file `module` that registers it.

    Raises:
      UserError: the file or the task does not exist, another file has registered the name, the
        name belongs to a mixture, or the task has no cache placeholder.
    """
    if module is not None:
        _run_module_once(name, module)
    if name in seqio.MixtureRegistry.names():
        raise UserError(
            f"--task {name}: this is a mixture; expected a task. Prepare each of its tasks, and "
            "mix them with `bert-jax pretrain --corpora FOLDER=WEIGHT ...`"
        )
    if name not in seqio.TaskRegistry.names():
        registered = ", ".join(sorted(seqio.TaskRegistry.names())) or "none"
        raise UserError(
            f"no task {name!r} is registered (registered: {registered}); set --module to the file "
            "that registers it"
        )
    task = seqio.TaskRegistry.get(name)
    if not task.supports_caching:
        raise UserError(
            f"task {name!r} has no seqio.CacheDatasetPlaceholder() among its preprocessors; "
            "expected one after EncodeSentences, as in register_text_task"
        )
    return task


def read_task_settings(task: seqio.Task) -> TaskSettings:
    """Reads the settings of a task from its preprocessors before the cache placeholder.

    Raises:
      UserError: no EncodeSentences is among them.
    """
    preprocessors = _precache_preprocessors(task)
    encoders = [step for step in preprocessors if isinstance(step, EncodeSentences)]
    splitters = [step for step in preprocessors if isinstance(step, SplitSentences)]
    if len(encoders) != 1:
        raise UserError(
            f"task {task.name!r} has {len(encoders)} EncodeSentences preprocessors before its "
            "cache placeholder; expected one, as in register_text_task"
        )
    # Exactly these steps and no subclass: any other preprocessor may change the text, and then only
    # seqio can prepare it.
    is_text_task = [type(step) for step in preprocessors] == [
        CleanText,
        SplitSentences,
        EncodeSentences,
    ]
    source = task.source
    return TaskSettings(
        tokenizer=encoders[0].vocabulary.path,
        splitter=splitters[0].splitter if splitters else "none",
        files=source.files if is_text_task and isinstance(source, TextFilesDataSource) else None,
    )


def num_source_shards(task: seqio.Task, split: str, max_shards: int | None) -> int:
    """Returns the number of shards of a task's source, at most `max_shards`.

    Raises:
      UserError: there is no such split.
    """
    if split not in task.splits:
        raise UserError(f"task {task.name!r} has no split {split!r}; splits: {list(task.splits)}")
    return min(max_shards or MAX_SHARDS, len(task.source.list_shards(split)))


def precache_documents(
    task: seqio.Task, split: str, shard_index: int, num_shards: int
) -> Iterable[EncodedDocument | str]:
    """Yields a shard of a task's documents at its cache placeholder, in a fixed order."""
    shard_info = (
        seqio.ShardInfo(index=shard_index, num_shards=num_shards) if num_shards > 1 else None
    )
    # Not shuffled, so that the shards have the same bytes in every run.
    dataset = task.source.get_dataset(split=split, shuffle=False, shard_info=shard_info)
    dtype = ids_dtype(_encoder_vocab_size(task))
    for document in task.preprocess_precache(dataset).as_numpy_iterator():
        dropped = document["dropped"].decode()
        yield dropped or EncodedDocument(
            document["ids"].astype(dtype),
            document["sentence_ends"].astype(np.uint32),
            int(document["text_bytes"]),
        )


def _encoder_vocab_size(task: seqio.Task) -> int:
    (encoder,) = [s for s in _precache_preprocessors(task) if isinstance(s, EncodeSentences)]
    return encoder.vocabulary.vocab_size


def _precache_preprocessors(task: seqio.Task) -> list[Any]:
    preprocessors = list(task.preprocessors)
    (cache_index,) = [
        i for i, s in enumerate(preprocessors) if isinstance(s, seqio.CacheDatasetPlaceholder)
    ]
    return preprocessors[:cache_index]


_MODULE_OF_TASK: dict[str, str] = {}
"""The files that `find_task` has run in this process, by the names of their tasks."""


def _run_module_once(task_name: str, module: str) -> None:
    """Runs the file `module`, unless the task is registered already.

    A task that Python code has registered is used, and the file is then not run.
    """
    path = Path(module)
    resolved, registered = str(path.resolve()), set(seqio.TaskRegistry.names())
    # seqio raises an error if a task is registered twice, so the file runs once in a process.
    if task_name in registered:
        registered_by = _MODULE_OF_TASK.get(task_name, resolved)
        if registered_by != resolved:
            raise UserError(
                f"--module {module}: {registered_by} has already registered a task {task_name!r} "
                f"in this process; rename the task in {module}, or start a new process"
            )
        return
    if not path.is_file():
        raise UserError(f"--module {module}: no such file")
    import_file(path, "module")
    new_names = set(seqio.TaskRegistry.names()) - registered
    _MODULE_OF_TASK.update(dict.fromkeys(new_names, resolved))
