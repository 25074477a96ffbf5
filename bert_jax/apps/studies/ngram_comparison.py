"""Compares a masked LM with unigram and interpolated bigram baselines.

They predict the same masked positions as the masked LM. The bigram model (Jelinek and Mercer 1980;
Chen and Goodman 1999) mixes three estimates,

    P(w | v) = a(v) c(v, w) / c(v) + b(v) c(w) / N + (1 - a(v) - b(v)) / V,

with v the true token to the left of w. The weights depend on the count of v, in powers of two, and
are fitted by expectation maximization on a tenth of the training text, which is left out of the
counts until then. The unigram model is the same without the first term. Uses NumPy only.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bert_jax.config.config_lib import from_json
from bert_jax.config.data import CorpusMixture, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.train import HeldOutEval
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.report.run_report import write_report
from bert_jax.runs import run_folder
from bert_jax.train.workloads.pretraining import check_held_out_corpus, held_out_batches

# Every tenth part of the training text fits the weights.
HELD_OUT_EVERY = 10
# Histories share weights by count: 0, 1, 2-3, 4-7, ...; 2^62 is beyond any corpus.
NUM_BUCKETS = 64
# Tokens that are sorted at a time while pairs are counted: some 100 MB.
CHUNK_TOKENS = 4_000_000


@dataclass(frozen=True, kw_only=True)
class NgramBaselines:
    """Holds the counts and mixture weights that `fit` computes and `losses` uses."""

    vocab_size: int
    token_counts: np.ndarray  # int64 [V]
    history_counts: np.ndarray  # int64 [V], how often each token has another to its right
    pair_keys: np.ndarray  # int64 [M], ascending: previous * V + next
    pair_counts: np.ndarray  # int64 [M]
    unigram_weights: np.ndarray  # float64 [2]: counts, uniform
    bigram_weights: np.ndarray  # float64 [buckets, 3]: pair counts, counts, uniform

    @classmethod
    def fit(cls, token_sequences: Iterable[np.ndarray], vocab_size: int) -> "NgramBaselines":
        """Counts tokens and pairs of adjacent tokens, and fits the mixture weights.

        Args:
          token_sequences: ids, each integer [T]; a pair does not cross from one to the next.
          vocab_size: V; ids are in [0, V).

        Raises:
          UserError: there is too little text, or an id is outside of the vocabulary.
        """
        main_counter, held_out_counter = _NgramCounter(vocab_size), _NgramCounter(vocab_size)
        for number, token_sequence in enumerate(token_sequences):
            (
                held_out_counter if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else main_counter
            ).add(token_sequence)
        main_counter.flush()
        held_out_counter.flush()
        if main_counter.pair_keys.size == 0 or held_out_counter.pair_keys.size == 0:
            raise UserError(
                "too little training text for the n-gram baselines: "
                f"at least {HELD_OUT_EVERY} document parts of two tokens or more are needed"
            )
        unfitted = main_counter.to_baselines(np.full(2, 1 / 2), np.full((NUM_BUCKETS, 3), 1 / 3))
        previous, following = np.divmod(held_out_counter.pair_keys, vocab_size)
        components = unfitted._components(previous, following)
        one_bucket = np.zeros(len(previous), np.int64)
        unigram_weights, _ = fit_weights(
            components[:, 1:], one_bucket, np.full((1, 2), 1 / 2), held_out_counter.pair_counts
        )
        # A bucket without any history of the held-out text keeps the unigram model's weights.
        initial_weights = np.tile(np.append(0.0, unigram_weights), (NUM_BUCKETS, 1))
        buckets = _count_bucket(unfitted.history_counts[previous])
        initial_weights[np.unique(buckets)] = 1 / 3
        bigram_weights, _ = fit_weights(
            components, buckets, initial_weights, held_out_counter.pair_counts
        )
        main_counter.merge(held_out_counter)  # the final counts cover all training text
        return main_counter.to_baselines(unigram_weights[0], bigram_weights)

    def unigram_probability(self, following: np.ndarray) -> np.ndarray:
        """Returns P(w) of ids w, int [n], as float64 [n]."""
        counted = self.token_counts[following] / self.token_counts.sum()
        return self.unigram_weights @ [counted, np.full_like(counted, 1 / self.vocab_size)]

    def bigram_probability(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        """Returns P(w | v) of previous ids v and following ids w, both int [n], as float64 [n]."""
        weights = self.bigram_weights[_count_bucket(self.history_counts[previous])]
        return (weights * self._components(previous, following)).sum(axis=1)

    def losses(self, batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
        """Computes the mean negative log-likelihoods of masked tokens, in nats per token.

        Args:
          batches: dicts with `input_ids` [B, L] and `masked_lm_positions`, `masked_lm_ids`,
            `masked_lm_weights` [B, P].

        Returns:
          {"unigram": nats, "bigram": nats, "tokens": summed weights}.

        Raises:
          UserError: the batches have no masked positions.
        """
        sums = np.zeros(3)
        for batch in batches:
            previous, following, weights = masked_pairs(batch)
            unigram = -np.log(self.unigram_probability(following))
            bigram = -np.log(self.bigram_probability(previous, following))
            sums += [weights @ unigram, weights @ bigram, weights.sum()]
        if sums[2] == 0:
            raise UserError(
                "the evaluation batches have no masked positions, on which n-gram baselines are "
                "evaluated; use a larger held-out corpus or a higher masking rate"
            )
        return {
            "unigram": float(sums[0] / sums[2]),
            "bigram": float(sums[1] / sums[2]),
            "tokens": float(sums[2]),
        }

    def _components(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        """Returns three estimates of P(w | v), float64 [n, 3]: pair counts, counts, uniform."""
        keys = previous.astype(np.int64) * self.vocab_size + following
        indices = np.minimum(np.searchsorted(self.pair_keys, keys), len(self.pair_keys) - 1)
        pairs = np.where(self.pair_keys[indices] == keys, self.pair_counts[indices], 0)
        return np.stack(
            [
                pairs / np.maximum(self.history_counts[previous], 1),
                self.token_counts[following] / self.token_counts.sum(),
                np.full(len(keys), 1 / self.vocab_size),
            ],
            axis=1,
        )


def masked_pairs(batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (true token to the left, true token, weight) of each masked position, each [n].

    The token to the left may be masked too, so all original ids are restored first. Position 0 is
    [CLS], which is never masked and has no token to its left.
    """
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    positions = batch["masked_lm_positions"][rows, slots]
    following = batch["masked_lm_ids"][rows, slots]
    original = np.array(batch["input_ids"])
    original[rows, positions] = following
    if positions.size and positions.min() < 1:
        raise ValueError(
            "masked_lm_positions contains 0; expected at least 1, because [CLS] is at position 0"
        )
    weights = batch["masked_lm_weights"][rows, slots].astype(np.float64)
    return original[rows, positions - 1], following, weights


def fit_weights(
    components: np.ndarray,
    buckets: np.ndarray,
    initial_weights: np.ndarray,
    counts: np.ndarray,
    *,
    max_iterations: int = 100,
) -> tuple[np.ndarray, list[float]]:
    """Computes maximum-likelihood mixture weights for each bucket by expectation maximization.

    Args:
      components: float64 [n, K], the probability of each sample under each of K models.
      buckets: int [n], the row of weights that each sample uses.
      initial_weights: float64 [buckets, K]; each row sums to one. Rows that no sample uses are
        returned unchanged.
      counts: [n], how often each sample occurs.

    Returns:
      Weights float64 [buckets, K], where each row sums to one; and the mean log-likelihood of the
      samples before each iteration, which never decreases.
    """
    weights = initial_weights
    bucket_totals = np.bincount(buckets, counts, len(initial_weights))[:, None]
    likelihoods: list[float] = []
    for _ in range(max_iterations):
        joint = weights[buckets] * components
        total = joint.sum(axis=1)
        likelihoods.append(float(counts @ np.log(total) / counts.sum()))
        if len(likelihoods) > 1 and likelihoods[-1] - likelihoods[-2] < 1e-7:
            break
        responsibilities = joint * (counts / total)[:, None]
        summed = np.stack(
            [
                np.bincount(buckets, component, len(initial_weights))
                for component in responsibilities.T
            ],
            axis=1,
        )
        weights = np.where(bucket_totals > 0, summed / np.maximum(bucket_totals, 1), weights)
    return weights, likelihoods


def _count_bucket(counts: np.ndarray) -> np.ndarray:
    """Returns the bucket of each count: 0 for 0, else 1 + floor(log2(count))."""
    return np.frexp(counts.astype(np.float64))[1]


class _NgramCounter:
    """Counts tokens and pairs; the pairs are sparse, with sorted keys previous * V + next."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.token_counts = np.zeros(vocab_size, np.int64)
        self.pair_keys = np.zeros(0, np.int64)
        self.pair_counts = np.zeros(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0

    def add(self, token_sequence: np.ndarray) -> None:
        ids = np.asarray(token_sequence).astype(np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise UserError(
                f"token id {ids.max()} in the training text, but the vocabulary has "
                f"{self.vocab_size} entries: was the text prepared with another tokenizer?"
            )
        self.token_counts += np.bincount(ids, minlength=self.vocab_size)
        self._pending.append(ids[:-1] * self.vocab_size + ids[1:])
        self._pending_tokens += ids.size
        if self._pending_tokens >= CHUNK_TOKENS:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            self._merge(*np.unique(np.concatenate(self._pending), return_counts=True))
            self._pending, self._pending_tokens = [], 0

    def merge(self, other: "_NgramCounter") -> None:
        self.token_counts = self.token_counts + other.token_counts
        self._merge(other.pair_keys, other.pair_counts)

    def _merge(self, keys: np.ndarray, counts: np.ndarray) -> None:
        keys = np.concatenate([self.pair_keys, keys])
        order = np.argsort(keys, kind="stable")  # two sorted runs: stable sort merges them
        keys, counts = keys[order], np.concatenate([self.pair_counts, counts])[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        self.pair_keys = keys[first]
        self.pair_counts = np.add.reduceat(counts, first) if first.size else counts

    def history_counts(self) -> np.ndarray:
        """Returns how often each token has another token to its right, int64 [V]."""
        previous = self.pair_keys // self.vocab_size
        counts = np.zeros(self.vocab_size, np.int64)
        np.add.at(counts, previous, self.pair_counts)
        return counts

    def to_baselines(
        self, unigram_weights: np.ndarray, bigram_weights: np.ndarray
    ) -> NgramBaselines:
        return NgramBaselines(
            vocab_size=self.vocab_size,
            token_counts=self.token_counts,
            history_counts=self.history_counts(),
            pair_keys=self.pair_keys,
            pair_counts=self.pair_counts,
            unigram_weights=unigram_weights,
            bigram_weights=bigram_weights,
        )


logger = logging.getLogger(__name__)


def compare_with_ngrams(folder: Path) -> dict[str, float | None]:
    """Computes n-gram losses for a run folder, and reads the run's own held-out results.

    Writes the result to `baselines.json` in the run folder, and the report with it.

    Returns:
      {"mlm_loss", "nsp_accuracy": the run's last results, None before its end; "bigram", "unigram":
      nats per masked token; "masked_tokens": number of masked tokens}.

    Raises:
      UserError: `folder` is not a run folder, or the run has no held-out corpus.
    """
    experiment = from_json(Experiment, run_folder.read_config(folder))
    losses = ngram_baseline_losses(experiment)
    file = folder / run_folder.EVALUATION
    evaluation = read_json_object(file) if file.exists() else {}
    comparison = {
        "mlm_loss": evaluation.get("mlm_loss"),
        "bigram": losses["bigram"],
        "unigram": losses["unigram"],
        "masked_tokens": losses["tokens"],
        "nsp_accuracy": evaluation.get("nsp_accuracy"),
    }
    try:
        write_json(folder / run_folder.BASELINES, comparison)
        logger.info("report with these baselines: %s", write_report(folder))
    except UserError as error:  # as for a run folder that is read-only
        logger.warning("the baselines are not in the report: %s", error)
    return comparison


def ngram_baseline_losses(experiment: Experiment) -> dict[str, float]:
    """Computes unigram and interpolated bigram losses at the masked positions of held-out text.

    The positions are the ones of the run's last evaluation.

    Returns:
      {"unigram": nats per masked token, "bigram": the same, "tokens": number of masked tokens}.

    Raises:
      UserError: the run has no held-out corpus or no masking, a corpus is missing, or the two
        corpora have different vocabularies or the same documents.
    """
    evaluation, data = experiment.train.evaluation, experiment.data
    if not isinstance(data, PretrainingData):
        raise UserError(
            f"{experiment.name}: the data of the run are {type(data).__name__}, but n-gram "
            "baselines need a prepared corpus; choose a run of `bert-jax pretrain`"
        )
    if not isinstance(evaluation, HeldOutEval):
        raise UserError(
            f"{experiment.name}: the run has no held-out corpus, whose tokens the n-gram baselines "
            "predict; choose a run that was started with `--arg heldout=FOLDER`"
        )
    if data.masking is None:
        raise UserError(
            f"{experiment.name}: data.masking is None, but n-gram baselines predict masked tokens; "
            "choose a run with masking"
        )
    named = data.corpus.corpora if isinstance(data.corpus, CorpusMixture) else ()
    # The weights of a mixture do not count: each text is counted once.
    folders = [each.folder for each in named] or [str(data.corpus)]
    corpora = [PreparedCorpus(folder) for folder in folders]
    for corpus in corpora:
        check_held_out_corpus(corpus, evaluation.corpus)
    parts = [(corpus, index) for corpus in corpora for index in range(len(corpus.tokens_per_part))]
    progress = tqdm(parts, "counting bigrams", unit=" parts", leave=False, disable=None)
    baselines = NgramBaselines.fit(
        (corpus.read(part_index).ids for corpus, part_index in progress),
        corpora[0].manifest.vocab_size,
    )
    return baselines.losses(held_out_batches(evaluation, data, experiment.train.phases[-1]))
