"""Registers denoising tasks with seqio: the sources and targets by which encoder-decoders pretrain.

A task reads corpora that `bert-jax prepare` has written, and makes the examples of the training
loader, with its functions and in its order:

    register_denoising_task("books", "prepared", noise=SpanCorruption())
    task = seqio.get_mixture_or_task("books")
    lengths = {"inputs": 512, "targets": 114}
    examples = task.get_dataset(sequence_length=lengths, split="train", seed=0)

The features have the names that `seqio.EncDecFeatureConverter` expects. That converter pads with 0
and gives no weight to targets that are 0. It is therefore for vocabularies in which 0 is the
padding token, such as T5's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.config.data import (
    BartDenoising,
    ConcatenatedDocuments,
    Denoising,
    InputFormat,
    PretrainingData,
    SingleSegment,
)
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.denoising import Denoiser
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.seqio.tf_numpy import (
    SCALAR,
    VECTOR,
    Dataset,
    TensorDict,
    no_autograph,
    numpy_function,
)
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.errors import ConfigError, UserError


def register_denoising_task(
    name: str,
    corpora: str | Mapping[str, str],
    *,
    noise: Denoising,
    input_format: InputFormat | None = None,
) -> seqio.Task:
    """Registers a seqio task with the examples of the training loader.

    With the seed and the lengths of a run, the task yields the examples of the run in the same
    order, each epoch with new noise; seqio does not shuffle them again. Shard i of n has the
    examples i, i + n, i + 2n, ... of each epoch.

    Args:
      name: the task's name.
      corpora: a folder of `bert-jax prepare` for the split "train", or split -> folder.
      noise: how text is changed.
      input_format: how text is cut; by default `SingleSegment` for BART's noise and
        `ConcatenatedDocuments` otherwise.

    Raises:
      ConfigError: the input format does not fit the noise.
      UserError: a folder is not a prepared corpus, or the splits have different tokenizers.
    """
    folders = {"train": corpora} if isinstance(corpora, str) else dict(corpora)
    if not folders:
        raise UserError(f"task {name!r} has no splits; expected at least one prepared corpus")
    if input_format is None:
        is_bart = isinstance(noise, BartDenoising)
        input_format = SingleSegment() if is_bart else ConcatenatedDocuments()
    for folder in folders.values():
        # Only made for the checks of its fields.
        PretrainingData(corpus=folder, input_format=input_format, masking=noise)
    fingerprints = {PreparedCorpus(each).tokenization.fingerprint for each in folders.values()}
    if len(fingerprints) > 1:
        raise UserError(
            f"task {name!r} has corpora with different tokenizers: {', '.join(folders.values())}; "
            "prepare them with the same tokenizer"
        )
    vocabulary = SeqioVocabulary(str(Path(next(iter(folders.values()))) / TOKENIZER_FOLDER))
    # The examples already end with the end token.
    feature = seqio.Feature(vocabulary, add_eos=False)
    source: Any = PreparedCorpusSource(folders)  # the protocol of seqio allows no missing counts
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[DenoisedTexts(vocabulary, noise, input_format)],
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=None,  # the order of the loader is already random
    )


class PreparedCorpusSource(seqio.DataSource):
    """Names the prepared corpus, the seed and the shard of a split, in one element for each epoch.

    `DenoisedTexts` reads the corpus: the number of examples depends on the sequence lengths, which
    seqio passes to preprocessors only.
    """

    def __init__(self, folders: Mapping[str, str]):
        super().__init__(splits=tuple(folders), performs_internal_shuffling=True)
        self.folders = dict(folders)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    def list_shards(self, split: str) -> list[str]:
        return [self.folders[split]]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **_: Any,
    ) -> "tf.data.Dataset[Any]":
        """Returns the description of an epoch; ignores `shuffle`, and takes 0 for no seed."""
        shard = shard_info or seqio.ShardInfo(index=0, num_shards=1)
        epoch: Any = {
            "folder": self.folders[split],
            # In the element and not in the object, because seqio passes seed and shard to sources
            # only, and the examples are made by a preprocessor.
            "seed": tf.constant(0 if seed is None else seed, tf.int64),
            "shard_index": tf.constant(shard.index, tf.int64),
            "num_shards": tf.constant(shard.num_shards, tf.int64),
        }
        return tf.data.Dataset.from_tensors(epoch)

    def __repr__(self) -> str:
        return f"PreparedCorpusSource({self.folders!r})"


@dataclass(frozen=True)
class DenoisedTexts:
    """Makes the examples of each epoch as {"inputs", "targets"}; a preprocessor of seqio.

    `sequence_length` sets the largest number of tokens of both, special tokens included.
    """

    vocabulary: SeqioVocabulary
    noise: Denoising
    input_format: InputFormat
    sequence_length: Mapping[str, int] | None = None

    def __call__(self, dataset: Dataset) -> Dataset:
        examples = _LoaderExamples(self, *self._lengths())

        @no_autograph
        def one_epoch(index: tf.Tensor, epoch: TensorDict) -> Dataset:
            corpus = epoch["folder"], epoch["seed"]
            (count,) = numpy_function(examples.count, corpus, [(tf.int64, SCALAR)])
            first, end = index * count + epoch["shard_index"], (index + 1) * count
            positions = tf.data.Dataset.range(first, end, epoch["num_shards"])

            @no_autograph
            def read(position: tf.Tensor) -> TensorDict:
                outputs = [(tf.int32, VECTOR), (tf.int32, VECTOR)]
                arrays = numpy_function(examples.read, [*corpus, position], outputs)
                return dict(zip(("inputs", "targets"), arrays, strict=True))

            return positions.map(read)

        # seqio repeats the source for each epoch before it calls preprocessors.
        return dataset.enumerate().flat_map(one_epoch)

    def _lengths(self) -> tuple[int, int]:
        lengths = dict(self.sequence_length or {})
        if not {"inputs", "targets"} <= lengths.keys():
            raise UserError(
                f"sequence_length is {lengths}; expected the lengths of the encoder and of the "
                "decoder: pass sequence_length={'inputs': 512, 'targets': 114} to get_dataset"
            )
        vocab_arrays = VocabArrays.from_tokenizer(self.vocabulary.tokenizer)
        try:  # errors inside a pipeline would be TensorFlow's, with its stack
            Denoiser(self.noise, lengths["inputs"], lengths["targets"], vocab_arrays)
        except ConfigError as error:
            raise UserError(f"sequence_length is {lengths}: {error}") from None
        return lengths["inputs"], lengths["targets"]


# The examples of the loader, not of seqio's preprocessors: with seqio's seeds they could not equal
# the examples of a run.
class _LoaderExamples:
    """Builds single examples with the batch builder of the training loader."""

    def __init__(self, settings: DenoisedTexts, seq_length: int, target_length: int):
        self._settings = settings
        self._lengths = seq_length, target_length
        self._builders: dict[tuple[str, int], BatchBuilder] = {}

    def count(self, folder: Any, seed: Any) -> tuple[np.int64]:
        """Returns the number of examples of an epoch."""
        return (np.int64(self._builder(folder, seed).examples_per_epoch),)

    def read(self, folder: Any, seed: Any, position: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and the target of an example, without padding."""
        fields, _ = self._builder(folder, seed).build_batch(int(position))
        source, target = fields["input_ids"], fields["decoder_target_ids"]
        return (
            source[fields["attention_mask"] > 0],
            target[fields["decoder_target_weights"] > 0],
        )

    def _builder(self, folder: Any, seed: Any) -> BatchBuilder:
        # A scalar string is bytes in a graph, and an array of shape [] in eager mode.
        key = np.asarray(folder).item().decode(), int(seed)
        if key not in self._builders:
            settings, (seq_length, target_length) = self._settings, self._lengths
            self._builders[key] = BatchBuilder(
                PreparedCorpus(key[0]),
                VocabArrays.from_tokenizer(settings.vocabulary.tokenizer),
                PretrainingData(
                    corpus=key[0], input_format=settings.input_format, masking=settings.noise
                ),
                seq_length=seq_length,
                batch_size=1,
                max_predictions_per_seq=1,
                seed=key[1],
                target_length=target_length,
            )
        return self._builders[key]
