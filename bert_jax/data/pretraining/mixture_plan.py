"""Plans how much of each prepared corpus of a mixture a run reads, in each of its phases.

The fractions of the training tokens follow from weights or sizes, from a temperature, and from the
limits of epochs. They become quotas: the examples of each corpus in a period (`mixture.py`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config.data import CorpusMixture, PackedSegments, PretrainingData
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.mixture import (
    PERIOD,
    MixedCorpora,
    make_corpus_dataset,
    period_quotas,
)
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.text.compatibility import check_same_tokenizer

MAX_USEFUL_EPOCHS = 4
"""Text that is read more often helps clearly less (Muennighoff et al. 2023, on decoders)."""

_MAX_ROUNDS = 100
_TOLERANCE = 1e-6


class PhaseSize(NamedTuple):
    """Holds the size of a training phase, and what it reads of the corpora.

    Attributes:
      seq_length, target_length, num_sequences: source and target length, and number of sequences.
      weights, temperature: as in `Phase`; () and None for those of the mixture.
    """

    seq_length: int
    target_length: int
    num_sequences: int
    weights: tuple[float | None, ...] = ()
    temperature: float | None = None


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
      phases: the corpora with the fractions of each phase.
      uses: what the run reads of each corpus.
      quotas: for each phase, the examples of each corpus in a period. Equal quotas of equal corpora
        give equal batches.
    """

    phases: tuple[MixedCorpora, ...]
    uses: tuple[CorpusUse, ...]
    quotas: tuple[tuple[int, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Returns what must be the same when a run is resumed."""
        return {
            "corpora": [corpus.manifest.fingerprint for corpus in self.phases[0].corpora],
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
    mixed, quotas = _round_quotas(config, corpora, phases, counts)
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
        phases=mixed, uses=uses, quotas=tuple(tuple(each.tolist()) for each in quotas)
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


def _fractions(
    config: CorpusMixture, corpora: Sequence[PreparedCorpus], phase: PhaseSize
) -> np.ndarray:
    """Returns the fractions of a phase's tokens before `max_epochs` is applied."""
    given = phase.weights or tuple(named.weight for named in config.corpora)
    weights = np.array(
        [
            # Without a weight a corpus counts by its size, as if all were one.
            float(corpus.tokens_per_document.sum()) if weight is None else weight
            for weight, corpus in zip(given, corpora, strict=True)
        ]
    )
    temperature = config.temperature if phase.temperature is None else phase.temperature
    # The largest becomes 1, so that no power overflows.
    powers = (weights / weights.max()) ** (1 / temperature)
    return powers / powers.sum()


# Slots of a corpus with a limit are rounded down: 2 slots instead of 1.6 would be 25 % more than
# the limit.
def _round_quotas(
    config: CorpusMixture,
    corpora: tuple[PreparedCorpus, ...],
    phases: Sequence[PhaseSize],
    counts: Sequence[_PhaseCounts],
) -> tuple[tuple[MixedCorpora, ...], list[np.ndarray]]:
    """Returns for each phase the mixture, and quotas with which no limit of epochs is exceeded.

    Raises:
      UserError: all corpora reach their limits before the run ends.
      ConfigError: a corpus has no example in a period.
    """
    limits = _epoch_limits(config)
    free_fractions = np.array([_fractions(config, corpora, phase) for phase in phases])
    fractions = _limited_fractions(limits, free_fractions, counts)
    # Whole quotas can exceed a limit: 1.6 examples rounded up to 2 are 25 % more. So the quotas of
    # limited corpora are rounded down.
    is_lower = (fractions < free_fractions * (1 - _TOLERANCE)).any(axis=0)
    limited = frozenset(np.flatnonzero(is_lower).tolist())
    epochs = tokens = np.zeros(len(limits))
    for _ in range(_MAX_ROUNDS):
        mixed = tuple(MixedCorpora(corpora, tuple(row), limited) for row in fractions.tolist())
        quotas = [
            period_quotas(of_phase, phase.example_tokens.tolist())
            for of_phase, phase in zip(mixed, counts, strict=True)
        ]
        epochs, tokens = _epochs_and_tokens([each / PERIOD for each in quotas], counts)
        exceeded = np.flatnonzero(epochs > limits * (1 + _TOLERANCE)).tolist()
        if not exceeded:
            return mixed, quotas
        again = sorted(limited.intersection(exceeded))
        fractions[:, again] *= limits[again] / epochs[again]
        limited |= {*exceeded}
        if not _has_other_corpora(free_fractions, limited):
            break
    raise _too_few_epochs(limits, epochs, tokens)


def _has_other_corpora(fractions: np.ndarray, limited: Collection[int]) -> bool:
    """Returns whether every phase reads a corpus that no limit lowers, to take over."""
    others = [index for index in range(fractions.shape[1]) if index not in limited]
    return bool((fractions[:, others].sum(axis=1) > 0).all())


def _epoch_limits(config: CorpusMixture) -> np.ndarray:
    return np.array(
        [np.inf if each.max_epochs is None else each.max_epochs for each in config.corpora]
    )


def _limited_fractions(
    limits: np.ndarray, fractions: np.ndarray, counts: Sequence[_PhaseCounts]
) -> np.ndarray:
    """Lowers the fractions of corpora that would be read too often, and raises the others.

    A corpus is lowered by the same factor in every phase, so that it is not read in some of them
    only.

    Args:
      limits: the epochs of each corpus.
      fractions: those of each phase, [number of phases, number of corpora].

    Raises:
      UserError: all corpora reach their limits before the run ends.
    """
    is_limited, limited = np.zeros(len(limits), dtype=bool), fractions.copy()
    for _ in range(_MAX_ROUNDS):
        rates = [row / phase.example_tokens for row, phase in zip(limited, counts, strict=True)]
        epochs, tokens = _epochs_and_tokens([each / each.sum() for each in rates], counts)
        if (epochs <= limits * (1 + _TOLERANCE)).all():
            return limited
        is_limited |= epochs > limits
        # Each round comes closer, because the fractions of the others change their epochs too.
        limited[:, is_limited] *= limits[is_limited] / epochs[is_limited]
        left = 1 - limited[:, is_limited].sum(axis=1)
        if not _has_other_corpora(fractions, np.flatnonzero(is_limited)) or (left <= 0).any():
            break
        others = fractions[:, ~is_limited]
        limited[:, ~is_limited] = left[:, None] * others / others.sum(axis=1)[:, None]
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
