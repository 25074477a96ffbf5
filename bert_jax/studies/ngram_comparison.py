"""Fits n-gram baselines on a run's corpus and evaluates them at its held-out masked positions."""

from tqdm import tqdm

from bert_jax.data.config import PretrainingData
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.errors import UserError
from bert_jax.evals.ngram_baselines import NgramBaselines
from bert_jax.experiment import Experiment
from bert_jax.train.config import HeldOutEval
from bert_jax.train.sources.held_out import check_held_out_corpus, held_out_batches


def ngram_baseline_losses(experiment: Experiment) -> dict[str, float]:
    """Computes unigram and interpolated bigram losses at the masked positions of held-out text.

    The positions are those of the run's last evaluation.

    Returns:
      {"unigram": nats per masked token, "bigram": the same, "tokens": number of masked tokens}.

    Raises:
      UserError: the run has no held-out corpus or no masking, a corpus is missing, or the two
        corpora have different vocabularies or the same documents.
    """
    evaluation, data = experiment.train.evaluation, experiment.data
    if not isinstance(evaluation, HeldOutEval) or not isinstance(data, PretrainingData):
        raise UserError(
            f"{experiment.name} has no held-out corpus, which n-gram baselines are evaluated on"
        )
    if data.masking is None:
        raise UserError(
            f"{experiment.name} masks no tokens, but n-gram baselines predict masked tokens"
        )
    corpus = PreparedCorpus(data.corpus)
    check_held_out_corpus(corpus, evaluation.corpus)
    record_indices = tqdm(
        range(len(corpus.tokens_per_part)),
        "counting bigrams",
        unit=" parts",
        leave=False,
        disable=None,
    )
    baselines = NgramBaselines.fit(
        (corpus.read(record_index).ids for record_index in record_indices),
        corpus.manifest.vocab_size,
    )
    return baselines.losses(held_out_batches(evaluation, data, experiment.train.phases[-1]))
