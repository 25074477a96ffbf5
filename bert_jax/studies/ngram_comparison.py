"""Fits n-gram baselines on a run's corpus and evaluates them at its held-out masked positions."""

import logging
from pathlib import Path

from tqdm import tqdm

from bert_jax.atomic_io import write_json
from bert_jax.config_lib import from_json
from bert_jax.data.config import PretrainingData
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.config import CorpusMixture
from bert_jax.errors import UserError
from bert_jax.evals.ngram_baselines import NgramBaselines
from bert_jax.experiment import Experiment
from bert_jax.report.run_report import write_report
from bert_jax.runs import run_folder
from bert_jax.train.config import HeldOutEval
from bert_jax.train.sources.held_out import check_held_out_corpus, held_out_batches

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
    evaluation = run_folder.read_run_json(file) if file.exists() else {}
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

    The positions are those of the run's last evaluation.

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
