"""Provides the data of pretraining: a prepared corpus and a held-out corpus for evaluation."""

import logging
import shutil
from pathlib import Path
from typing import Any

import jax

from bert_jax.config.data import CorpusMixture, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Seq2Seq
from bert_jax.config.train import HeldOutEval
from bert_jax.data.corpus.contamination.found_items import copy_items
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, Manifest, read_manifest
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import select_fields
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.data.pretraining.mixture import (
    MAX_USEFUL_EPOCHS,
    MixturePlan,
    PhaseSize,
    plan_mixture,
    write_or_check_mixture,
)
from bert_jax.io.atomic_io import atomic_path
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.pretrained.initial import check_initial_tokenizer
from bert_jax.pretrained.seq2seq import check_decoder_tokens
from bert_jax.runs import run_folder
from bert_jax.text.compatibility import (
    check_embedding_rows,
    check_input_template,
    check_pad_token_id,
)
from bert_jax.train.sources.held_out import (
    HeldOutEvaluator,
    check_held_out_corpus,
    check_held_out_fields,
)

logger = logging.getLogger(__name__)


class PretrainingSource:
    """Implements `Source` for experiments whose data is `PretrainingData`."""

    def __init__(self, experiment: Experiment, data: PretrainingData):
        """Opens the corpora.

        Raises:
          UserError: `data.corpus` is not a prepared corpus, or the mixture cannot be read.
        """
        self._experiment, self._data = experiment, data
        self._mixture: MixturePlan | None = None
        if isinstance(data.corpus, CorpusMixture):
            phases = [
                PhaseSize(phase.seq_length, phase.target_length, phase.steps * phase.batch_size)
                for phase in experiment.train.phases
            ]
            self._mixture = plan_mixture(data.corpus, data, phases)
            self._text = self._mixture.mixed
            self._corpora = self._text.corpora
        else:
            self._text = PreparedCorpus(data.corpus)
            self._corpora = (self._text,)

    def prepare_run_folder(self, folder: Path) -> None:
        """See `Source`."""
        if self._mixture is not None:
            _log_mixture(self._mixture)
            write_or_check_mixture(self._mixture, folder / run_folder.MIXTURE)
        corpus = self._corpora[0]  # all of a mixture have the same tokenizer
        tokenization = corpus.tokenization
        remedy = "prepare the text again with `bert-jax prepare --tokenizer {tokenizer}`"
        check_initial_tokenizer(self._experiment, folder, tokenization, remedy)
        objective, tokenizer = self._experiment.objective, corpus.tokenizer()
        check_embedding_rows(
            tokenization.vocab_size,
            objective.model.vocab_size,
            tokenization.path,
            f"set objective.model.vocab_size to {tokenization.vocab_size}",
        )
        if isinstance(objective, Seq2Seq):
            check_decoder_tokens(tokenizer, objective.model, tokenization.path)
        else:
            model = objective.model
            check_input_template(tokenizer, model.type_vocab_size, tokenization.path)
            check_pad_token_id(tokenizer, model.required_pad_token_id, tokenization.path)
        evaluation = self._experiment.train.evaluation
        if isinstance(evaluation, HeldOutEval):
            for each in self._corpora:
                check_held_out_corpus(each, evaluation.corpus)
        copy_items([each.folder for each in self._corpora], folder)
        if not (folder / TOKENIZER_FOLDER).exists():
            with atomic_path(folder / TOKENIZER_FOLDER) as partial_folder:
                shutil.copytree(corpus.folder / TOKENIZER_FOLDER, partial_folder)

    def data_fingerprint(self) -> str | None:
        """Returns the fingerprint of the corpus; mixture.json has those of a mixture."""
        return None if self._mixture else self._corpora[0].manifest.fingerprint

    def describe_data(self) -> dict[str, str]:
        """Returns the paths of the corpora with their numbers of documents and tokens."""
        described = {}
        for index, corpus in enumerate(self._corpora):
            number = f" {index + 1}" if self._mixture else ""
            described[f"Training corpus{number}"] = _describe_corpus(
                str(corpus.folder), corpus.manifest
            ) + (f"; {self._mixture.uses[index]}" if self._mixture else "")
        evaluation = self._experiment.train.evaluation
        if isinstance(evaluation, HeldOutEval):
            described["Held-out corpus"] = _describe_corpus(
                evaluation.corpus, read_manifest(evaluation.corpus)
            )
        return described

    def on_train_start(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path
    ) -> None:
        """Does nothing: masks are drawn in every epoch, so nothing is computed in advance."""

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """Returns the fields that the objective needs, and those of packed sequences."""
        fields = select_fields(self._data, objective.batch_fields())
        evaluation = self._experiment.train.evaluation
        if isinstance(evaluation, HeldOutEval):
            check_held_out_fields(evaluation, self._data, fields)
        return fields

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one shape for each phase."""
        return [self._experiment.train.phases[phase_index].sizes]

    def loader(self, phase_index: int, position: int) -> PretrainingLoader:
        """See `Source`."""
        phase_config = self._experiment.train.phases[phase_index]
        return PretrainingLoader(
            self._text,
            self._data,
            seq_length=phase_config.seq_length,
            batch_size=phase_config.batch_size,
            max_predictions_per_seq=phase_config.max_predictions_per_seq,
            target_length=phase_config.target_length,
            seed=self._experiment.seed + phase_index,  # another order of examples in every phase
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            start=position,
        )

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> HeldOutEvaluator | None:
        """See `Source`."""
        evaluation = self._experiment.train.evaluation
        if not isinstance(evaluation, HeldOutEval):
            return None
        sharding.check_batch_size(evaluation.batch_size, 1, mesh)
        phases = self._experiment.train.phases
        return HeldOutEvaluator(objective, evaluation, self._data, phases[phase_index], mesh)

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Does nothing: the metrics of the last evaluation are the final results."""


def _describe_corpus(path: str, manifest: Manifest) -> str:
    return f"{path}: {manifest.counts.documents:,} documents, {manifest.counts.tokens:,} tokens"


def _log_mixture(mixture: MixturePlan) -> None:
    """Logs how much of each corpus of a mixture the run reads; warns of many epochs."""
    for use in mixture.uses:
        logger.info("mixture: %s: %s", use.folder, use)
        if use.epochs > MAX_USEFUL_EPOCHS:
            logger.warning(
                "warning: %s is read %.3g times. Text that is read more than %d times teaches "
                "clearly less; lower its weight, or set max_epochs",
                use.folder,
                use.epochs,
                MAX_USEFUL_EPOCHS,
            )
    first = max(mixture.uses, key=lambda use: use.epochs)
    if first.epochs > 1:
        logger.info(
            "mixture: %s is the first to be read completely, after about %.0f %% of the run; "
            "it is then read again in a new order",
            first.folder,
            100 / first.epochs,
        )
