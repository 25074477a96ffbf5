"""Mixes prepared corpora: plans quotas, and finds which example of which corpus is example i.

Examples are drawn in periods of `PERIOD`. A period has a fixed number of slots for each corpus, its
quota, in a random order that depends on the seed and the period. So the quotas are exact after each
period, and any process can begin at any example, without reading those before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config.data import (
    CorpusMixture,
    Denoising,
    DynamicMasking,
    PackedSegments,
    PretrainingData,
    StaticMasking,
)
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.finetuning.mixture import apportion
from bert_jax.data.pretraining.dataset import PretrainingDataset, make_dataset, sample_token_ids
from bert_jax.data.pretraining.denoising import (
    ConcatenatedDocumentsDataset,
    DocumentTextsDataset,
    make_denoising_dataset,
    max_text_length,
)
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.text.compatibility import check_same_tokenizer
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
      first_example: [number of corpora + 1], examples of one epoch before each corpus.
      quotas: [number of corpora], examples of each corpus in a period.

    Raises:
      ConfigError: a corpus has such a small fraction that a period has no example of it.
    """

    def __init__(self, mixed: MixedCorpora, datasets: Sequence[Any]) -> None:
        """Takes the dataset of each corpus, all of the same input format."""
        self._datasets = datasets
        num_documents = [corpus.num_documents for corpus in mixed.corpora]
        num_examples = [dataset.num_examples for dataset in self._datasets]
        example_tokens = [dataset.mean_example_tokens for dataset in self._datasets]
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
                self._datasets[index].find_documents(in_corpus) + self._first_document[index]
            )
        return documents

    def seq_lengths(self, document_indices: np.ndarray) -> np.ndarray:
        """Returns the tokens [n] of examples of documents [n], as `SingleSegmentDataset`."""
        corpus_indices = np.searchsorted(self._first_document, document_indices, side="right") - 1
        lengths = np.empty_like(document_indices)
        for index in np.unique(corpus_indices).tolist():
            chosen = corpus_indices == index
            in_corpus = document_indices[chosen] - self._first_document[index]
            lengths[chosen] = self._datasets[index].seq_lengths(in_corpus)
        return lengths

    def read(self, example_index: int, document_index: int, key: int, epoch_key: int) -> Any:
        """Makes an example as the dataset of its corpus does."""
        index = int(np.searchsorted(self.first_example, example_index, side="right")) - 1
        return self._datasets[index].read(
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
      [number of corpora] int64, each at least 1; their sum is `PERIOD`.

    Raises:
      ConfigError: a corpus has no example in a period.
    """
    # Fractions are of tokens, but slots are of examples: a corpus of short documents needs more
    # slots for the same number of tokens.
    rates = np.array(mixed.token_fractions) / np.array(example_tokens)
    rates /= rates.sum()
    limited = sorted(mixed.limited)
    quotas = np.floor(rates * PERIOD + 1e-9).astype(int)  # what should be 3 may be 2.9999999
    free = [index for index in range(len(rates)) if index not in mixed.limited]
    free_rates = rates[free] / rates[free].sum() if limited else rates
    named_rates = {str(index): rate for index, rate in zip(free, free_rates.tolist(), strict=True)}
    quotas[free] = list(apportion(named_rates, PERIOD - int(quotas[limited].sum())).values())
    for index, corpus in enumerate(mixed.corpora):
        if quotas[index] == 0:
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
      quotas: examples of each corpus in a period, each at least 1.

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


def sample_mixture_ids(mixed: MixedCorpora, vocab_arrays: VocabArrays) -> np.ndarray:
    """Samples tokens of all corpora in proportion to their fractions of the training tokens."""
    samples = [sample_token_ids(corpus, vocab_arrays) for corpus in mixed.corpora]
    num_tokens = min(
        len(sample) / fraction
        for sample, fraction in zip(samples, mixed.token_fractions, strict=True)
    )
    chosen = []
    for sample, fraction in zip(samples, mixed.token_fractions, strict=True):
        count = max(1, int(fraction * num_tokens))
        # Equal distances instead of random draws: the sample is the same in every process without a
        # key.
        chosen.append(sample[np.arange(count) * len(sample) // count])
    return np.concatenate(chosen)


MAX_USEFUL_EPOCHS = 4
"""Text that is read more often helps clearly less (Muennighoff et al. 2023, on decoders)."""

_MAX_ROUNDS = 100
_TOLERANCE = 1e-6


class PhaseSize(NamedTuple):
    """Holds the size of a training phase: source and target length, and number of sequences."""

    seq_length: int
    target_length: int
    num_sequences: int


@dataclass(frozen=True, kw_only=True)
class CorpusUse:
    """Describes how much of a corpus a run reads.

    `num_tokens` is an estimate without padding; whole-sentence inputs and packed rows hold slightly
    fewer.
    """

    folder: str
    token_fraction: float
    num_tokens: int
    epochs: float

    def __str__(self) -> str:
        return (
            f"{self.token_fraction:.2%} of the training tokens (about {self.num_tokens:,}), "
            f"{self.epochs:.3g} epochs"
        )


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """Holds what a run reads of several corpora.

    Attributes:
      uses: what the run reads of each corpus.
      quotas: for each phase, the examples of each corpus in a period. Equal quotas of equal corpora
        give equal batches.
    """

    mixed: MixedCorpora
    uses: tuple[CorpusUse, ...]
    quotas: tuple[tuple[int, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Returns what must be the same when a run is resumed."""
        return {
            "corpora": [corpus.manifest.fingerprint for corpus in self.mixed.corpora],
            "quotas": [list(quotas) for quotas in self.quotas],
        }


class _PhaseCounts(NamedTuple):
    """Holds the sequences of a phase, and the examples of each corpus and their mean length.

    `packed` is None if each sequence holds one example.
    """

    num_sequences: int
    packed: tuple[int, int] | None  # tokens of a sequence, special tokens of an example
    num_examples: np.ndarray
    example_tokens: np.ndarray


def plan_mixture(
    config: CorpusMixture, data: PretrainingData, phases: Sequence[PhaseSize]
) -> MixturePlan:
    """Opens the corpora of a mixture and computes their fractions of the training tokens.

    Raises:
      UserError: a folder is no prepared corpus, two corpora have different tokenizers or the same
        documents, or the limits of epochs allow fewer tokens than the run reads.
      ConfigError: a fraction is too small.
    """
    corpora = tuple(PreparedCorpus(corpus.folder) for corpus in config.corpora)
    _check_corpora(corpora)
    vocab_arrays = VocabArrays.from_tokenizer(corpora[0].tokenizer())
    num_special_tokens = vocab_arrays.template.num_single_special_tokens
    counts = []
    for phase in phases:
        datasets = [
            make_corpus_dataset(corpus, data, vocab_arrays, phase.seq_length, phase.target_length)
            for corpus in corpora
        ]
        is_packed = isinstance(data.input_format, PackedSegments)
        counts.append(
            _PhaseCounts(
                phase.num_sequences,
                (phase.seq_length, num_special_tokens) if is_packed else None,
                np.array([dataset.num_examples for dataset in datasets]),
                np.array([dataset.mean_example_tokens for dataset in datasets]),
            )
        )
    mixed, quotas = _round_quotas(config, corpora, counts)
    epochs, tokens = _epochs_and_tokens([each / PERIOD for each in quotas], counts)
    uses = tuple(
        CorpusUse(
            folder=corpus.folder,
            token_fraction=float(tokens[index] / tokens.sum()),
            num_tokens=round(float(tokens[index])),
            epochs=float(epochs[index]),
        )
        for index, corpus in enumerate(config.corpora)
    )
    return MixturePlan(
        mixed=mixed, uses=uses, quotas=tuple(tuple(each.tolist()) for each in quotas)
    )


# Another fingerprint or number of slots would shift all draws of a resumed run.
def write_or_check_mixture(mixture: MixturePlan, path: Path) -> None:
    """Writes the plan of a new run, or compares the plan of a resumed run.

    With other text or quotas, the batches would differ.

    Raises:
      UserError: a corpus was prepared again, or the quotas of the corpora are different now.
    """
    plan = mixture.to_json()
    if not path.is_file():
        write_json(path, plan)
        return
    saved = read_json_object(path)
    # Compared one by one first, because a changed corpus also changes the quotas, and the message
    # should name the cause.
    for old, new, use in zip(saved.get("corpora", ()), plan["corpora"], mixture.uses, strict=False):
        if old != new:
            raise UserError(
                f"{use.folder}: has the fingerprint {new[:12]}, but the run began with "
                f"{old[:12]} ({path}), so it cannot be resumed with the same batches; restore that "
                "corpus, or choose another run folder"
            )
    if saved != plan:
        raise UserError(
            f"{path}: the run began with the quotas {saved.get('quotas')} of its corpora, and they "
            f"are {plan['quotas']} now, so it cannot be resumed with the same batches; use the "
            "version of bert_jax that began the run, or choose another run folder"
        )


def _check_corpora(corpora: Sequence[PreparedCorpus]) -> None:
    """Raises a UserError if corpora have different tokenizers or the same documents."""
    first = corpora[0]
    for index, corpus in enumerate(corpora):
        check_same_tokenizer(
            first.tokenization,
            corpus.tokenization,
            f"prepare {corpus.folder} again with "
            f"`bert-jax prepare --tokenizer {first.folder / TOKENIZER_FOLDER}`",
        )
        for other in corpora[:index]:
            # The fingerprint is of the content, so a copy in another folder is found too.
            if other.manifest.fingerprint == corpus.manifest.fingerprint:
                raise UserError(
                    f"{other.folder} and {corpus.folder} have the same documents (fingerprint "
                    f"{corpus.manifest.fingerprint[:12]}); name one of them, with the sum of both "
                    "weights"
                )


def _fractions(config: CorpusMixture, corpora: Sequence[PreparedCorpus]) -> np.ndarray:
    """Returns the fractions of the training tokens before `max_epochs` is applied."""
    weights = np.array(
        [
            # Without a weight a corpus counts by its size, as if all were one.
            float(corpus.tokens_per_document.sum()) if named.weight is None else named.weight
            for named, corpus in zip(config.corpora, corpora, strict=True)
        ]
    )
    # The largest becomes 1, so that no power overflows.
    powers = (weights / weights.max()) ** (1 / config.temperature)
    return powers / powers.sum()


# Slots of a corpus with a limit are rounded down: 2 slots instead of 1.6 would be 25 % more than
# the limit.
def _round_quotas(
    config: CorpusMixture, corpora: tuple[PreparedCorpus, ...], counts: Sequence[_PhaseCounts]
) -> tuple[MixedCorpora, list[np.ndarray]]:
    """Returns the mixture, and for each phase quotas with which no limit of epochs is exceeded.

    Raises:
      UserError: all corpora reach their limits before the run ends.
      ConfigError: a corpus has no example in a period.
    """
    limits, free_fractions = _epoch_limits(config), _fractions(config, corpora)
    fractions = _limited_fractions(limits, free_fractions, counts)
    # Whole quotas can exceed a limit: 1.6 examples rounded up to 2 are 25 % more. So the quotas of
    # limited corpora are rounded down.
    limited = frozenset(np.flatnonzero(fractions < free_fractions * (1 - _TOLERANCE)).tolist())
    epochs = tokens = np.zeros(len(limits))
    for _ in range(_MAX_ROUNDS):
        mixed = MixedCorpora(corpora, tuple(fractions.tolist()), limited)
        quotas = [period_quotas(mixed, phase.example_tokens.tolist()) for phase in counts]
        epochs, tokens = _epochs_and_tokens([each / PERIOD for each in quotas], counts)
        exceeded = np.flatnonzero(epochs > limits * (1 + _TOLERANCE)).tolist()
        if not exceeded:
            return mixed, quotas
        again = sorted(limited.intersection(exceeded))
        fractions[again] *= limits[again] / epochs[again]
        limited |= {*exceeded}
        if len(limited) == len(limits):
            break
    raise _too_few_epochs(limits, epochs, tokens)


def _epoch_limits(config: CorpusMixture) -> np.ndarray:
    return np.array(
        [np.inf if each.max_epochs is None else each.max_epochs for each in config.corpora]
    )


def _limited_fractions(
    limits: np.ndarray, fractions: np.ndarray, counts: Sequence[_PhaseCounts]
) -> np.ndarray:
    """Lowers the fractions of corpora that would be read too often, and raises the others.

    Raises:
      UserError: all corpora reach their limits before the run ends.
    """
    is_limited, limited = np.zeros(len(limits), dtype=bool), fractions.copy()
    for _ in range(_MAX_ROUNDS):
        rates = [limited / phase.example_tokens for phase in counts]
        epochs, tokens = _epochs_and_tokens([each / each.sum() for each in rates], counts)
        if (epochs <= limits * (1 + _TOLERANCE)).all():
            return limited
        is_limited |= epochs > limits
        # Each round comes closer, because the fractions of the others change their epochs too.
        limited[is_limited] *= limits[is_limited] / epochs[is_limited]
        left = 1 - limited[is_limited].sum()
        if is_limited.all() or left <= 0:
            break
        limited[~is_limited] = left * fractions[~is_limited] / fractions[~is_limited].sum()
    else:
        return limited
    raise _too_few_epochs(limits, epochs, tokens)


def _too_few_epochs(limits: np.ndarray, epochs: np.ndarray, tokens: np.ndarray) -> UserError:
    allowed = float((tokens * np.minimum(limits / epochs, 1)).sum())
    return UserError(
        f"the run reads {float(tokens.sum()):,.0f} tokens, but the max_epochs of the corpora allow "
        f"{allowed:,.0f}: the mixture would end after {allowed / float(tokens.sum()):.2%} of the "
        "run. Lower the steps in train.phases, raise max_epochs, or leave it out for one corpus"
    )


def _epochs_and_tokens(
    rates: Sequence[np.ndarray], counts: Sequence[_PhaseCounts]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how often and how many tokens of each corpus all phases read.

    Args:
      rates: for each phase, the fraction of the examples of each corpus.
    """
    epochs = tokens = np.zeros(len(rates[0]))
    for phase, rate in zip(counts, rates, strict=True):
        num_examples = float(phase.num_sequences)
        if phase.packed is not None:  # about as many as fit
            seq_length, num_special_tokens = phase.packed
            num_examples *= seq_length / float(rate @ (phase.example_tokens + num_special_tokens))
        epochs = epochs + num_examples * rate / phase.num_examples
        tokens = tokens + num_examples * rate * phase.example_tokens
    return epochs, tokens
