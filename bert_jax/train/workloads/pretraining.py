"""Provides the data of pretraining: a prepared corpus, and held-out examples with fixed masks."""

import dataclasses
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.data import (
    CorpusMixture,
    Denoising,
    DiffusionMasking,
    FixedRateMasking,
    PretrainingData,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import EncoderObjective, Seq2Seq
from bert_jax.config.train import HeldOutEval, Phase, num_predictions
from bert_jax.data.corpus.contamination.found_items import copy_items
from bert_jax.data.corpus.document_list import read_document_list
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, Manifest, read_manifest
from bert_jax.data.corpus.reader import PreparedCorpus, corpus_tokenization
from bert_jax.data.pretraining.batch_builder import BatchBuilder, batch_fields, select_fields
from bert_jax.data.pretraining.loader import PretrainingLoader, evaluation_batches
from bert_jax.data.pretraining.mixture import MixedCorpora, corpora_of
from bert_jax.data.pretraining.mixture_plan import (
    MAX_USEFUL_EPOCHS,
    MixturePlan,
    PhaseSize,
    plan_mixture,
    write_or_check_mixture,
)
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import atomic_path, atomic_write
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.parallel.sharding import batch_sharding, put_batch
from bert_jax.pretrained.initial import check_initial_tokenizer
from bert_jax.runs import run_folder
from bert_jax.text.compatibility import (
    check_embedding_rows,
    check_same_tokenizer,
)
from bert_jax.train.workloads.base import Workload, check_model_inputs

logger = logging.getLogger(__name__)


class PretrainingWorkload(Workload):
    """Pretrains on prepared corpora, with any objective of pretraining."""

    def __init__(
        self, experiment: Experiment, data: PretrainingData, objective: EncoderObjective | Seq2Seq
    ):
        """Opens the corpora.

        Raises:
          UserError: `data.corpus` is not a prepared corpus, the mixture cannot be read, or
            `data.without` is no list of its documents.
        """
        super().__init__(experiment)
        self._data, self._model = data, objective.model
        self._mixture, self._texts = open_texts(experiment, data)
        self._corpora = corpora_of(self._texts[0])
        self._removed = (
            read_document_list(data.without, self._corpora) if data.without is not None else None
        )

    def prepare_run_folder(self, folder: Path) -> None:
        """See `Workload`."""
        if self._mixture is not None:
            _log_mixture(self._mixture)
            write_or_check_mixture(self._mixture, folder / run_folder.MIXTURE)
        corpus = self._corpora[0]  # all of a mixture have the same tokenizer
        remedy = "prepare the text again with `bert-jax prepare --tokenizer {tokenizer}`"
        check_initial_tokenizer(self._experiment, folder, corpus.tokenization, remedy)
        self.check_corpora()
        copy_items([each.folder for each in self._corpora], folder)
        if self._data.without is not None:
            _copy_or_check_list(Path(self._data.without), folder / run_folder.WITHOUT)
        if not (folder / TOKENIZER_FOLDER).exists():
            with atomic_path(folder / TOKENIZER_FOLDER) as partial_folder:
                # A copy, because prediction and export need the tokenizer even if the corpus is
                # gone.
                shutil.copytree(corpus.folder / TOKENIZER_FOLDER, partial_folder)

    def check_corpora(self) -> None:
        """Raises a UserError if the model or the held-out corpus does not fit the corpora."""
        corpus = self._corpora[0]
        tokenization = corpus.tokenization
        check_embedding_rows(
            tokenization.vocab_size,
            self._model.vocab_size,
            tokenization.path,
            f"set objective.model.vocab_size to {tokenization.vocab_size}",
        )
        check_model_inputs(corpus.tokenizer(), tokenization.path, self._model)
        evaluation = self._evaluation
        if isinstance(evaluation, HeldOutEval):
            for each in self._corpora:
                check_held_out_corpus(each, evaluation.corpus)

    def data_fingerprint(self) -> str | None:
        """Returns the fingerprint of the corpus; mixture.json has the fingerprints of a mixture."""
        return None if self._mixture else self._corpora[0].manifest.fingerprint

    def describe_data(self) -> dict[str, str]:
        """Returns the paths of the corpora with their numbers of documents and tokens."""
        described = {}
        for index, corpus in enumerate(self._corpora):
            number = f" {index + 1}" if self._mixture else ""
            described[f"Training corpus{number}"] = _describe_corpus(
                str(corpus.folder), corpus.manifest
            ) + (f"; {self._mixture.uses[index]}" if self._mixture else "")
        evaluation = self._evaluation
        if isinstance(evaluation, HeldOutEval):
            described["Held-out corpus"] = _describe_corpus(
                evaluation.corpus, read_manifest(evaluation.corpus)
            )
        return described

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """Returns the fields that the objective needs, and the fields of packed sequences."""
        fields = select_fields(self._data, objective.batch_fields())
        evaluation = self._evaluation
        if isinstance(evaluation, HeldOutEval):
            check_held_out_fields(evaluation, self._data, fields)
        return fields

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one shape for each phase."""
        return [self._phases[phase_index].sizes]

    def loader(self, phase_index: int, position: int) -> PretrainingLoader:
        """See `Workload`."""
        phase_config, text = self._phases[phase_index], self._texts[phase_index]
        batch_builder = BatchBuilder(
            text,
            VocabArrays.from_tokenizer(text.tokenizer()),
            data_of_phase(self._data, phase_config),
            seq_length=phase_config.seq_length,
            batch_size=phase_config.batch_size,
            max_predictions_per_seq=phase_config.max_predictions_per_seq,
            target_length=phase_config.target_length,
            seed=self._seed + phase_index,  # another order of examples in every phase
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            removed=self._removed,
        )
        return PretrainingLoader(batch_builder, position)

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> "HeldOutEvaluator | None":
        """See `Workload`."""
        evaluation = self._evaluation
        if not isinstance(evaluation, HeldOutEval):
            return None
        sharding.check_batch_size(evaluation.batch_size, 1, mesh)
        phases = self._phases
        return HeldOutEvaluator(objective, evaluation, self._data, phases[phase_index], mesh)


def open_texts(
    experiment: Experiment, data: PretrainingData
) -> tuple[MixturePlan | None, Sequence[PreparedCorpus | MixedCorpora]]:
    """Opens the corpora of a run.

    Returns:
      The plan of a mixture, or None, and the text of each phase.

    Raises:
      UserError: a folder is no prepared corpus, or the mixture cannot be read.
    """
    if not isinstance(data.corpus, CorpusMixture):
        return None, (PreparedCorpus(data.corpus),) * len(experiment.train.phases)
    sizes = [
        PhaseSize(
            phase.seq_length,
            phase.target_length,
            phase.steps * phase.batch_size,
            phase.corpus_weights,
            phase.corpus_temperature,
        )
        for phase in experiment.train.phases
    ]
    plan = plan_mixture(data.corpus, data, sizes)
    return plan, plan.phases


def data_of_phase(data: PretrainingData, phase: Phase) -> PretrainingData:
    """Returns the data of a phase, which may have a masking rate of its own, or no masks."""
    if phase.causal_lm:
        return dataclasses.replace(data, masking=None)
    if phase.mlm_probability is None or not isinstance(data.masking, FixedRateMasking):
        return data
    masking = dataclasses.replace(data.masking, mlm_probability=phase.mlm_probability)
    return dataclasses.replace(data, masking=masking)


def _copy_or_check_list(source: Path, copy: Path) -> None:
    """Copies a list of documents into the run folder, or compares it with the copy there."""
    content = source.read_bytes()
    if not copy.exists():
        atomic_write(copy, content)
    elif copy.read_bytes() != content:
        raise UserError(
            f"{source}: differs from {copy}, the documents that this run has not read so far; "
            f"set data.without to {copy}, or choose another run folder"
        )


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
    if len({phase.token_fractions for phase in mixture.phases}) > 1:
        for index, phase in enumerate(mixture.phases):
            fractions = ", ".join(f"{fraction:.2%}" for fraction in phase.token_fractions)
            logger.info("mixture: phase %d: %s, in this order", index + 1, fractions)
        return  # a corpus may be read in one phase only
    first = max(mixture.uses, key=lambda use: use.epochs)
    if first.epochs > 1:
        logger.info(
            "mixture: %s is the first to be read completely, after about %.0f %% of the run; "
            "it is then read again in a new order",
            first.folder,
            100 / first.epochs,
        )


SEED = 0
"""Seed of the held-out examples and masks; the same in every run, whatever the run's seed."""


def check_held_out_corpus(corpus: PreparedCorpus, held_out: str) -> None:
    """Compares the manifests of the training corpus and of the held-out corpus.

    Raises:
      UserError: the held-out corpus is not a prepared corpus, has another vocabulary than `corpus`,
        or has the same documents.
    """
    manifest = read_manifest(held_out)
    check_same_tokenizer(
        corpus.tokenization,
        corpus_tokenization(held_out, manifest),
        "prepare the held-out text again with "
        f"`bert-jax prepare --tokenizer {corpus.folder / TOKENIZER_FOLDER}`",
    )
    same_folder = Path(held_out).resolve() == corpus.folder.resolve()
    # A copy of the corpus has another path, but the same fingerprint.
    if same_folder or manifest.fingerprint == corpus.manifest.fingerprint:
        raise UserError(
            f"the held-out corpus {held_out} has the same documents as the training corpus "
            f"{corpus.folder} ({manifest.counts.documents:,} documents, fingerprint "
            f"{manifest.fingerprint[:12]}). Prepare text that is not in the training corpus with "
            f"`bert-jax prepare --tokenizer {corpus.folder / TOKENIZER_FOLDER}`"
        )


def check_held_out_fields(
    config: HeldOutEval, data: PretrainingData, objective_fields: tuple[str, ...]
) -> None:
    """Raises a ConfigError if held-out batches lack a field that the objective needs."""
    masking = data.masking and config.masking
    if isinstance(data.masking, Denoising) != isinstance(masking, Denoising):
        raise ConfigError(
            f"train.evaluation.masking is {type(masking).__name__}, but data.masking is "
            f"{type(data.masking).__name__}; expected the same kind for training and evaluation"
        )
    available_fields = batch_fields(dataclasses.replace(data, masking=masking))
    for name in objective_fields:
        if name not in available_fields:
            raise ConfigError(
                f"train.evaluation.masking is {type(masking).__name__}, which does not make the "
                f"batch field {name!r} of the objective; expected {type(data.masking).__name__}, "
                "as data.masking"
            )


def held_out_batches(
    config: HeldOutEval,
    data: PretrainingData,
    phase: Phase,
    *,
    host_index: int = 0,
    host_count: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the batches of one held-out evaluation.

    They depend only on the held-out corpus, on `data.input_format`, and on the sequence length and
    the number of predictions of `phase`. There are predictions enough for the masking rate of the
    evaluation, which may be above the rate of the phase.

    Raises:
      UserError: `config.corpus` is not a prepared corpus.
    """
    max_predictions = phase.max_predictions_per_seq
    has_own_rate = phase.causal_lm or phase.mlm_probability is not None
    if isinstance(config.masking, DiffusionMasking):
        max_predictions = phase.seq_length
    elif has_own_rate and isinstance(config.masking, FixedRateMasking):
        needed = num_predictions(config.masking.mlm_probability, phase.seq_length)
        max_predictions = max(max_predictions, needed)
    corpus = PreparedCorpus(config.corpus)
    batch_builder = BatchBuilder(
        corpus,
        VocabArrays.from_tokenizer(corpus.tokenizer()),
        dataclasses.replace(
            data,
            corpus=config.corpus,
            masking=data.masking and config.masking,
            causal_fraction=0.0,  # held-out losses are those of masked LM
        ),
        seq_length=phase.seq_length,
        batch_size=config.batch_size,
        max_predictions_per_seq=max_predictions,
        target_length=phase.target_length,
        seed=SEED,
        process_index=host_index,
        process_count=host_count,
    )
    return evaluation_batches(batch_builder, config.num_examples)


class HeldOutEvaluator:
    """Evaluates parameters on the held-out batches; compiles once."""

    def __init__(
        self,
        objective: Objective,
        config: HeldOutEval,
        data: PretrainingData,
        phase: Phase,
        mesh: jax.sharding.Mesh,
    ):
        self._sharding = batch_sharding(mesh)
        has_masked_lm = "masked_lm_ids" in objective.batch_fields()
        self._known_metrics = ("loss", "mlm_loss") if has_masked_lm else ("loss",)
        self._step = jax.jit(
            lambda params, batch: objective.compute_loss(
                params, batch, objective.loss_denominators(batch), None
            )
        )
        hosts = {"host_index": jax.process_index(), "host_count": jax.process_count()}
        # Every evaluation has the same batches and masks, so they are made once.
        self._batches = list(held_out_batches(config, data, phase, **hosts))

    @property
    def known_metrics(self) -> tuple[str, ...]:
        """Returns the metrics that the objective is known to have."""
        return self._known_metrics

    def __call__(self, params: Any) -> dict[str, float]:
        """Returns the means over all held-out examples; "loss" is the mean of the batch losses."""
        # One batch at a time: multi-process runs on CPU hang with about 30 queued programs
        # (jaxlib 0.10.2).
        outputs = [
            jax.device_get(self._step(params, put_batch(batch, self._sharding)))
            for batch in self._batches
        ]
        result = {"loss": float(np.mean([output.loss for output in outputs]))}
        for name in outputs[0].metrics:
            total = sum(float(output.metrics[name].total) for output in outputs)
            weight = sum(float(output.metrics[name].weight) for output in outputs)
            result[name] = total / max(weight, 1e-9)
        return result
