"""N-gram baselines for a run: fitted on its training text, judged on its held-out positions."""

from tqdm import tqdm

from bert_jax.data.config import PretrainingData
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.errors import UserError
from bert_jax.evals.ngram_baselines import NgramBaselines
from bert_jax.experiment import Experiment
from bert_jax.train.config import HeldOutEval
from bert_jax.train.sources.held_out import check_held_out_corpus, held_out_batches


def ngram_baseline_losses(experiment: Experiment) -> dict[str, float]:
    """Unigram and interpolated bigram losses on the masked positions of the run's last evaluation.

    Returns:
      {"unigram": nats per masked token, "bigram": the same, "tokens": masked tokens}.

    Raises:
      UserError: the run has no held-out corpus or masks nothing, or a corpus is missing; the two
        corpora have different vocabularies or the same documents.
    """
    evaluation, data = experiment.train.evaluation, experiment.data
    if not isinstance(evaluation, HeldOutEval) or not isinstance(data, PretrainingData):
        raise UserError(f"{experiment.name} has no held-out corpus to compare n-gram models on")
    if data.masking is None:
        raise UserError(f"{experiment.name} has no masked positions to compare n-gram models on")
    corpus = PreparedCorpus(data.corpus)
    check_held_out_corpus(corpus, evaluation.corpus)
    record_indices = tqdm(
        range(len(corpus.tokens_per_part)),
        "counting pairs",
        unit=" parts",
        leave=False,
        disable=None,
    )
    baselines = NgramBaselines.fit(
        (corpus.read(record_index).ids for record_index in record_indices),
        corpus.manifest.vocab_size,
    )
    return baselines.losses(held_out_batches(evaluation, data, experiment.train.phases[-1]))
