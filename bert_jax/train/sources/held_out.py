"""Evaluates pretraining on fixed held-out examples with fixed masks, to compare runs."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.data import Denoising, PretrainingData
from bert_jax.config.train import HeldOutEval, Phase
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, read_manifest
from bert_jax.data.corpus.reader import PreparedCorpus, corpus_tokenization
from bert_jax.data.pretraining.batch_builder import batch_fields
from bert_jax.data.pretraining.loader import evaluation_batches
from bert_jax.errors import ConfigError, UserError
from bert_jax.objectives.base import Objective
from bert_jax.parallel.sharding import batch_sharding, put_batch
from bert_jax.text.compatibility import check_same_tokenizer

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
    the number of predictions of `phase`.

    Raises:
      UserError: `config.corpus` is not a prepared corpus.
    """
    return evaluation_batches(
        PreparedCorpus(config.corpus),
        dataclasses.replace(data, corpus=config.corpus, masking=data.masking and config.masking),
        seq_length=phase.seq_length,
        batch_size=config.batch_size,
        max_predictions_per_seq=phase.max_predictions_per_seq,
        target_length=phase.target_length,
        num_examples=config.num_examples,
        seed=SEED,
        process_index=host_index,
        process_count=host_count,
    )


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
