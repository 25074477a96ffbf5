"""N-gram baselines for a run: fitted on its training text, judged on its held-out positions."""

from tqdm import tqdm

from bert_jax.data.config import LoaderConfig
from bert_jax.data.prepared import PreparedCorpus
from bert_jax.errors import UserError
from bert_jax.evals.baselines import NgramBaselines
from bert_jax.experiment import Experiment
from bert_jax.train.config import Evaluation
from bert_jax.train.heldout import check_heldout, heldout_batches


def ngram_losses(experiment: Experiment) -> dict[str, float]:
    """Unigram and interpolated bigram losses on the masked positions of the run's last evaluation.

    Returns:
      {"unigram": nats per masked token, "bigram": the same, "tokens": masked tokens}.

    Raises:
      UserError: the run has no held-out corpus or masks nothing, or a corpus is missing; the two
        corpora have different vocabularies or the same documents.
    """
    evaluation, data = experiment.train.evaluation, experiment.data
    if not isinstance(evaluation, Evaluation) or not isinstance(data, LoaderConfig):
        raise UserError(f"{experiment.name} has no held-out corpus to compare n-gram models on")
    if data.masking is None:
        raise UserError(f"{experiment.name} has no masked positions to compare n-gram models on")
    corpus = PreparedCorpus(data.prepared)
    check_heldout(corpus, evaluation.prepared)
    records = tqdm(
        range(len(corpus.part_tokens)), "counting pairs", unit=" parts", leave=False, disable=None
    )
    baselines = NgramBaselines.fit(
        (corpus.read(record).ids for record in records), corpus.manifest.vocabulary_size
    )
    return baselines.losses(heldout_batches(evaluation, data, experiment.train.phases[-1]))
