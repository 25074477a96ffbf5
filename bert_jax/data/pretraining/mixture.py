"""Mixes prepared corpora: finds which example of which corpus is example i.

Examples are drawn in periods of `PERIOD`. A period has a fixed number of slots for each corpus, its
quota, in a random order that depends on the seed and the period. So the quotas are exact after each
period, and any process can begin at any example, without reading those before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.config.data import Denoising, DynamicMasking, PretrainingData, StaticMasking
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.finetuning.mixture import apportion
from bert_jax.data.pretraining.dataset import PretrainingDataset, make_dataset, sample_token_ids
from bert_jax.data.pretraining.denoising import (
    ConcatenatedDocumentsDataset,
    DocumentTextsDataset,
    make_denoising_dataset,
    max_text_length,
)
from bert_jax.data.pretraining.rng import epoch_key, permute, unpermute
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import ConfigError
from bert_jax.text.tokenizer import Tokenizer

CorpusDataset = PretrainingDataset | ConcatenatedDocumentsDataset | DocumentTextsDataset

PERIOD = 10_000
"""Number of examples after which the fractions of the corpora are exact."""

# Multiplied by the index of a corpus and added to its epochs, so that corpora have other keys.
_CORPUS_EPOCH_OFFSET = 1 << 33
# Keys of periods must differ from keys of epochs, which stay far below 2^61 for any corpus.
_PERIOD_EPOCH_OFFSET = 1 << 61


@dataclass(frozen=True)
class MixedCorpora:
    """Holds open corpora with one tokenizer, and the fraction of the training tokens of each.

    The fractions are those of a phase of the run; one of 0 leaves the corpus out.

    Attributes:
      limited: the indices of the corpora whose fraction `max_epochs` limits. Their quotas are
        rounded down, so that no corpus is read more often than allowed.
    """

    corpora: tuple[PreparedCorpus, ...]
    token_fractions: tuple[float, ...]
    limited: frozenset[int] = frozenset()

    def tokenizer(self) -> Tokenizer:
        """Loads the tokenizer that made the ids of all corpora."""
        return self.corpora[0].tokenizer()


def corpora_of(text: PreparedCorpus | MixedCorpora) -> tuple[PreparedCorpus, ...]:
    """Returns the corpora of a mixture, or the one corpus."""
    return text.corpora if isinstance(text, MixedCorpora) else (text,)


def make_corpus_dataset(
    corpus: PreparedCorpus,
    config: PretrainingData,
    vocab_arrays: VocabArrays,
    seq_length: int,
    target_length: int,
) -> CorpusDataset:
    """Makes the dataset of a corpus for an input format, of texts if a decoder denoises them.

    Raises:
      ConfigError: a length is too short for the noise.
      UserError: the corpus has one document and the input format is sentence pairs.
    """
    if isinstance(config.masking, Denoising):
        max_num_tokens = max_text_length(config.masking, seq_length, target_length)
        return make_denoising_dataset(corpus, config, max_num_tokens)
    return make_dataset(corpus, config.input_format, seq_length, vocab_arrays)


# seqio draws the corpus of each example at random and cannot start in the middle. Here every period
# has the same number of slots for a corpus, so that the number of examples drawn before from it is
# a product and a rank.
class MixtureDataset:
    """Numbers the examples and documents of several corpora, one corpus after the other.

    A pair's random second text comes from the corpus of its first: otherwise the topic alone would
    tell that the texts do not belong together.

    Attributes:
      datasets: the dataset of each corpus.
      first_example: [number of corpora + 1], examples of one epoch before each corpus.
      quotas: [number of corpora], examples of each corpus in a period; 0 if it is left out.

    Raises:
      ConfigError: a corpus has such a small fraction that a period has no example of it.
    """

    def __init__(self, mixed: MixedCorpora, datasets: Sequence[Any]) -> None:
        """Takes the dataset of each corpus, all of the same input format."""
        self.datasets = datasets
        num_documents = [corpus.num_documents for corpus in mixed.corpora]
        num_examples = [dataset.num_examples for dataset in self.datasets]
        example_tokens = [dataset.mean_example_tokens for dataset in self.datasets]
        self._first_document = np.concatenate(([0], np.cumsum(num_documents)))
        self.first_example = np.concatenate(([0], np.cumsum(num_examples)))
        self.quotas = period_quotas(mixed, example_tokens)

    @property
    def num_examples(self) -> int:
        """Returns the number of examples in one epoch of all corpora together."""
        return int(self.first_example[-1])

    def find_documents(self, example_indices: np.ndarray) -> np.ndarray:
        """Returns the documents [n] that examples [n] come from."""
        corpus_indices = self._find_corpora(example_indices)
        documents = np.empty_like(example_indices)
        for index in np.unique(corpus_indices).tolist():
            chosen = corpus_indices == index
            in_corpus = example_indices[chosen] - self.first_example[index]
            documents[chosen] = (
                self.datasets[index].find_documents(in_corpus) + self._first_document[index]
            )
        return documents

    def seq_lengths(self, document_indices: np.ndarray) -> np.ndarray:
        """Returns the tokens [n] of examples of documents [n], as `SingleSegmentDataset`."""
        corpus_indices = np.searchsorted(self._first_document, document_indices, side="right") - 1
        lengths = np.empty_like(document_indices)
        for index in np.unique(corpus_indices).tolist():
            chosen = corpus_indices == index
            in_corpus = document_indices[chosen] - self._first_document[index]
            lengths[chosen] = self.datasets[index].seq_lengths(in_corpus)
        return lengths

    def read(self, example_index: int, document_index: int, key: int, epoch_key: int) -> Any:
        """Makes an example as the dataset of its corpus does."""
        index = int(np.searchsorted(self.first_example, example_index, side="right")) - 1
        return self.datasets[index].read(
            example_index - int(self.first_example[index]),
            document_index - int(self._first_document[index]),
            key,
            epoch_key,
        )

    def _find_corpora(self, example_indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.first_example, example_indices, side="right") - 1


def period_quotas(mixed: MixedCorpora, example_tokens: Sequence[float]) -> np.ndarray:
    """Divides the examples of a period so that each corpus has its fraction of the tokens.

    The quotas of limited corpora are rounded down, and the others get the remaining examples.

    Args:
      example_tokens: mean tokens of an example of each corpus. They differ if documents of some
        corpora are shorter than a sequence.

    Returns:
      [number of corpora] int64, each at least 1 or of a fraction of 0; their sum is `PERIOD`.

    Raises:
      ConfigError: a corpus has no example in a period.
    """
    # Fractions are of tokens, but slots are of examples: a corpus of short documents needs more
    # slots for the same number of tokens.
    rates = np.array(mixed.token_fractions) / np.array(example_tokens)
    rates /= rates.sum()
    limited = sorted(mixed.limited)
    quotas = np.floor(rates * PERIOD + 1e-9).astype(int)  # what should be 3 may be 2.9999999
    free = [index for index in range(len(rates)) if index not in mixed.limited and rates[index]]
    free_rates = rates[free] / rates[free].sum() if limited else rates[free]
    named_rates = {str(index): rate for index, rate in zip(free, free_rates.tolist(), strict=True)}
    quotas[free] = list(apportion(named_rates, PERIOD - int(quotas[limited].sum())).values())
    for index, corpus in enumerate(mixed.corpora):
        if quotas[index] == 0 and mixed.token_fractions[index]:
            remedy = "raise its max_epochs" if index in mixed.limited else "raise its weight"
            cause = "max_epochs allows " if index in mixed.limited else "it has "
            raise ConfigError(
                f"data.corpus: {corpus.folder}: {cause}the fraction "
                f"{mixed.token_fractions[index]:.2g} of the tokens, less than one example in "
                f"{PERIOD:,}; {remedy}, or leave it out"
            )
    return quotas


def draw_examples(
    global_indices: np.ndarray, quotas: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the corpora of global examples.

    Args:
      global_indices: [n] int64, in any order.
      quotas: examples of each corpus in a period, not all 0.

    Returns:
      The index of the corpus, and how many examples were drawn from that corpus before; [n] each.
    """
    first_slot = np.concatenate(([0], np.cumsum(quotas)))
    period_length = int(first_slot[-1])
    periods, slots = np.divmod(global_indices, period_length)
    # A batch touches one period, or a few if it is large, so this loop is short.
    for period in np.unique(periods).tolist():
        in_period = periods == period
        key = epoch_key(seed, period + _PERIOD_EPOCH_OFFSET)
        slots[in_period] = permute(slots[in_period], period_length, key)
    corpus_indices = np.searchsorted(first_slot, slots, side="right") - 1
    return corpus_indices, periods * quotas[corpus_indices] + slots - first_slot[corpus_indices]


def make_training_dataset(
    corpus: PreparedCorpus | MixedCorpora,
    config: PretrainingData,
    vocab_arrays: VocabArrays,
    seq_length: int,
    target_length: int,
) -> CorpusDataset | MixtureDataset:
    """Makes the dataset of a corpus, or of several; raises what `make_corpus_dataset` raises."""
    sizes = (seq_length, target_length)
    if not isinstance(corpus, MixedCorpora):
        return make_corpus_dataset(corpus, config, vocab_arrays, *sizes)
    datasets = [make_corpus_dataset(each, config, vocab_arrays, *sizes) for each in corpus.corpora]
    return MixtureDataset(corpus, datasets)


def locate_examples(
    dataset: CorpusDataset | MixtureDataset,
    global_indices: np.ndarray,
    seed: int,
    masking_schedule: DynamicMasking | StaticMasking,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of global examples in the dataset, and the keys of their epochs, [n]."""
    if isinstance(dataset, MixtureDataset):
        first_example = dataset.first_example
        corpora, draws = draw_examples(global_indices, dataset.quotas, seed)
    else:
        first_example = np.array([0, dataset.num_examples])
        corpora, draws = np.zeros_like(global_indices), global_indices
    corpus_sizes = np.diff(first_example)
    epochs = draws // corpus_sizes[corpora]
    example_indices = np.empty(len(global_indices), dtype=np.int64)
    epoch_keys = np.empty(len(global_indices), dtype=np.uint64)
    for corpus, epoch in set(zip(corpora.tolist(), epochs.tolist(), strict=True)):
        chosen = (corpora == corpus) & (epochs == epoch)
        size, offset = int(corpus_sizes[corpus]), corpus * _CORPUS_EPOCH_OFFSET
        key = epoch_key(seed, offset + epoch)
        indices = permute(draws[chosen] - epoch * size, size, key)
        example_indices[chosen] = first_example[corpus] + indices
        # The order still changes in every epoch; only the key that draws window and masks repeats,
        # as with BERT's files written `dupe_factor` times.
        if isinstance(masking_schedule, StaticMasking):
            key = epoch_key(seed, offset + epoch % masking_schedule.dupe_factor)
        epoch_keys[chosen] = key
    return example_indices, epoch_keys


def find_draws(
    dataset: CorpusDataset | MixtureDataset,
    example_indices: np.ndarray,
    corpus: int,
    epoch: int,
    seed: int,
) -> np.ndarray:
    """Returns the global examples [n] at which an epoch of a corpus reads its examples [n].

    The inverse of `locate_examples`.

    Args:
      example_indices: [n] int64, indices in the dataset, all of the corpus with index `corpus`.
      epoch: how often this corpus was read completely before.
    """
    is_mixture = isinstance(dataset, MixtureDataset)
    ends = dataset.first_example if is_mixture else (0, dataset.num_examples)
    first, end = ends[corpus], ends[corpus + 1]
    size, key = int(end - first), epoch_key(seed, corpus * _CORPUS_EPOCH_OFFSET + epoch)
    draws = epoch * size + unpermute(example_indices - first, size, key)
    if not is_mixture:
        return draws
    first_slot = np.concatenate(([0], np.cumsum(dataset.quotas)))
    periods, ranks = np.divmod(draws, dataset.quotas[corpus])
    slots = ranks + first_slot[corpus]
    for period in np.unique(periods).tolist():
        in_period = periods == period
        key = epoch_key(seed, period + _PERIOD_EPOCH_OFFSET)
        slots[in_period] = unpermute(slots[in_period], int(first_slot[-1]), key)
    return periods * int(first_slot[-1]) + slots


def sample_mixture_ids(mixed: MixedCorpora, vocab_arrays: VocabArrays) -> np.ndarray:
    """Samples tokens of all corpora in proportion to their fractions of the training tokens."""
    samples = [sample_token_ids(corpus, vocab_arrays) for corpus in mixed.corpora]
    used = [
        (sample, fraction)
        for sample, fraction in zip(samples, mixed.token_fractions, strict=True)
        if fraction
    ]
    num_tokens = min(len(sample) / fraction for sample, fraction in used)
    chosen = []
    for sample, fraction in used:
        count = max(1, int(fraction * num_tokens))
        # Equal distances instead of random draws: the sample is the same in every process without a
        # key.
        chosen.append(sample[np.arange(count) * len(sample) // count])
    return np.concatenate(chosen)
