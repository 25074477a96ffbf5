"""The held-out pass of pretraining: fixed examples with fixed masks, so that numbers compare."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.data.config import LoaderConfig
from bert_jax.data.loader import evaluation_batches
from bert_jax.data.manifest import VOCABULARY, read_manifest
from bert_jax.data.prepared import PreparedCorpus, tokenization
from bert_jax.errors import UserError
from bert_jax.parallel.sharding import batch_sharding, put_batch
from bert_jax.programs.program import Program
from bert_jax.text.compatibility import check_same_vocabulary
from bert_jax.train.config import Evaluation, Phase

SEED = 0
"""Of the held-out examples and masks; the same in every run, whatever the run's own seed."""


def check_heldout(corpus: PreparedCorpus, heldout: str) -> None:
    """Compares the manifests of the training corpus and of the held-out corpus.

    Raises:
      UserError: the held-out corpus is not a prepared corpus, has another vocabulary than `corpus`,
        or has the same documents.
    """
    manifest = read_manifest(heldout)
    check_same_vocabulary(
        corpus.tokenization,
        tokenization(heldout, manifest),
        "Prepare the held-out text again with "
        f"`bert-jax prepare --vocab {corpus.folder / VOCABULARY}`.",
    )
    same_folder = Path(heldout).resolve() == corpus.folder.resolve()
    if same_folder or manifest.fingerprint == corpus.manifest.fingerprint:
        raise UserError(
            f"the held-out corpus {heldout} has the same documents as the training corpus "
            f"{corpus.folder} ({manifest.counts.documents:,} documents, fingerprint "
            f"{manifest.fingerprint[:12]}). Prepare text that is not in the training corpus with "
            f"`bert-jax prepare --vocab {corpus.folder / VOCABULARY}`."
        )


def heldout_batches(
    config: Evaluation,
    data: LoaderConfig,
    phase: Phase,
    *,
    host_index: int = 0,
    host_count: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
    """The batches of one held-out pass.

    They depend on the held-out corpus, on `data.examples`, and on the length and predictions of
    `phase`, on nothing else.

    Raises:
      UserError: not a prepared corpus.
    """
    return evaluation_batches(
        PreparedCorpus(config.prepared),
        dataclasses.replace(
            data, prepared=config.prepared, masking=data.masking and config.masking
        ),
        length=phase.length,
        batch_size=config.batch_size,
        max_predictions=phase.max_predictions,
        examples=config.examples,
        seed=SEED,
        host_index=host_index,
        host_count=host_count,
    )


class HeldOut:
    """Evaluates parameters on the held-out pass; compiles once."""

    def __init__(
        self,
        program: Program,
        config: Evaluation,
        data: LoaderConfig,
        phase: Phase,
        mesh: jax.sharding.Mesh,
    ):
        self._sharding = batch_sharding(mesh)
        self._step = jax.jit(
            lambda params, batch: program.losses(params, batch, program.normalisers(batch), None)
        )
        hosts = {"host_index": jax.process_index(), "host_count": jax.process_count()}
        self._batches = list(heldout_batches(config, data, phase, **hosts))

    def __call__(self, params: Any) -> dict[str, float]:
        """Means over all held-out examples; "loss" is the mean of the batches' losses."""
        # One at a time: several processes with several CPU devices each hang when some thirty
        # programs wait in line (jaxlib 0.10.2).
        fetched = [
            jax.device_get(self._step(params, put_batch(batch, self._sharding)))
            for batch in self._batches
        ]
        result = {"loss": float(np.mean([part.loss for part in fetched]))}
        for name in fetched[0].metrics:
            total = sum(float(part.metrics[name].total) for part in fetched)
            weight = sum(float(part.metrics[name].weight) for part in fetched)
            result[name] = total / max(weight, 1e-9)
        return result
