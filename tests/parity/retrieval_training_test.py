"""Compares 20 steps of SPLADE and of ColBERT with the losses of sentence-transformers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.config.embedding_losses import (
    DistillKLDivLoss,
    MarginMSELoss,
    MaxSimRankingLoss,
    SpladeLoss,
)
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.config.train import AdamW
from bert_jax.data.sentence_embeddings.loader import regularizer_scale
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.sentence_encoder.config import (
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
    QueryExpansion,
    SparseEncoderConfig,
)
from bert_jax.objectives.make import make_objective
from bert_jax.pretrained.embedding_model import MultiVectorModel, SparseModel
from tests.helpers.torch_training import (
    STEPS,
    texts_of_examples,
    train_config,
    train_jax,
    train_torch,
)

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
sparse_losses = pytest.importorskip("sentence_transformers.sparse_encoder.losses")
multi_vector_losses = pytest.importorskip("sentence_transformers.multi_vector_encoder.losses")

SIZE, LENGTH, MASK_ID = 6, 10, 4
TRAIN = train_config(
    2e-3, AdamW(epsilon=1e-8, weight_decay=0.01), seq_length=LENGTH, batch_size=SIZE
)
SPLADE = SpladeLoss(document_regularizer_weight=0.05, query_regularizer_weight=0.08)
MULTI_VECTOR = MultiVectorEncoderConfig(
    modules=(Dense(in_features=16, out_features=8, bias=False, activation=None), Normalize()),
    expansion=QueryExpansion(length=12, token_id=MASK_ID),
    skip_token_ids=(17,),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a model without dropout."""
    no_dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return small_model(tmp_path_factory.mktemp("words"), initializer_range=0.1, **no_dropout)


def make_batches() -> list[dict[str, np.ndarray]]:
    """Returns queries, positives and hard negatives of all steps, in the first 6 tokens alike.

    A teacher scores the positive by 1 or 2, and the negative by 0 or 1.
    """
    rng, batches = np.random.default_rng(0), []
    for _ in range(STEPS):
        ids = np.repeat(rng.integers(5, 18, (SIZE, 1, LENGTH)), 3, axis=1)
        ids[:, 1:, 5:] = rng.integers(5, 18, (SIZE, 2, LENGTH - 5))
        ids[:, 2, 2:5] = rng.integers(5, 18, (SIZE, 3))
        mask = np.arange(LENGTH) < rng.integers(4, LENGTH + 1, (SIZE, 3, 1))
        batches.append(
            {
                "choice_input_ids": (ids * mask).astype(np.int32),
                "choice_token_type_ids": np.zeros(ids.shape, np.int32),
                "choice_attention_mask": mask.astype(np.int32),
                "label_logits": np.float32(rng.integers(0, 2, (SIZE, 2)) + np.array([1, 0])),
            }
        )
    return batches


SPARSE_LOSSES = {
    "ranking": (None, sparse_losses.SparseMultipleNegativesRankingLoss),
    "margin mse": (MarginMSELoss(), sparse_losses.SparseMarginMSELoss),
    "distill kl": (DistillKLDivLoss(temperature=2.0), sparse_losses.SparseDistillKLDivLoss),
}


@pytest.mark.parametrize("name", SPARSE_LOSSES)
def test_losses_of_splade_equal_sentence_transformers(model, tmp_path, name):
    distillation, make_reference_loss = SPARSE_LOSSES[name]
    sparse = SparseModel(model=model, config=SparseEncoderConfig())
    export_retrieval_encoder(sparse, tmp_path / "splade")
    batches = [
        {**batch, "regularizer_scale": np.full(SIZE, regularizer_scale(step, 6), np.float32)}
        for step, batch in enumerate(make_batches())
    ]
    loss = dataclasses.replace(SPLADE, distillation=distillation)
    config = SentenceEmbedding(model=model.config, sentence_encoder=sparse.config, loss=loss)
    actual = train_jax(make_objective(config), sparse.params, batches, TRAIN, "loss")

    reference = sentence_transformers.SparseEncoder(str(tmp_path / "splade"), device="cpu").train()
    loss_module = sparse_losses.SpladeLoss(
        reference,
        make_reference_loss(reference),
        document_regularizer_weight=SPLADE.document_regularizer_weight,
        query_regularizer_weight=SPLADE.query_regularizer_weight,
    )

    def compute_losses(batch):
        scale = float(batch["regularizer_scale"][0])
        loss_module.document_regularizer_weight = scale * SPLADE.document_regularizer_weight
        loss_module.query_regularizer_weight = scale * SPLADE.query_regularizer_weight
        return (sum(loss_module(texts_of_examples(batch), scores(batch)).values()),)

    expected, _ = train_torch(reference, batches, TRAIN, compute_losses)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def scores(batch) -> Any:
    """Returns a teacher's scores as a tensor."""
    return torch.from_numpy(batch["label_logits"])


def test_warmup_of_the_regularization_is_that_of_sentence_transformers():
    callbacks = pytest.importorskip(
        "sentence_transformers.sparse_encoder.callbacks.splade_callbacks"
    )
    callback = object.__new__(callbacks.SpladeRegularizerWeightSchedulerCallback)
    callback.scheduler_type = callbacks.SchedulerType.QUADRATIC
    for callback.warmup_steps in (1, 6):
        for step in range(8):
            expected = callback._calculate_weight_value(step, 3.0)
            actual = 3.0 * regularizer_scale(step, callback.warmup_steps)
            assert actual == pytest.approx(expected, abs=1e-12)


MULTI_VECTOR_LOSSES = {
    "ranking": (
        MaxSimRankingLoss(scale=2.0),
        lambda model: multi_vector_losses.MultiVectorMultipleNegativesRankingLoss(model, scale=2.0),
    ),
    "margin mse": (
        MaxSimRankingLoss(distillation=MarginMSELoss()),
        multi_vector_losses.MultiVectorMarginMSELoss,
    ),
    "distill kl": (
        MaxSimRankingLoss(distillation=DistillKLDivLoss()),
        multi_vector_losses.MultiVectorDistillKLDivLoss,
    ),
}


@pytest.mark.parametrize("name", MULTI_VECTOR_LOSSES)
def test_losses_of_late_interaction_equal_sentence_transformers(model, tmp_path, name):
    loss, make_reference_loss = MULTI_VECTOR_LOSSES[name]
    kernel = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    multi_vector = MultiVectorModel(
        model=model, config=MULTI_VECTOR, head_params={"dense": {"0": {"kernel": kernel}}}
    )
    export_retrieval_encoder(multi_vector, tmp_path / "colbert")
    batches = make_batches()
    config = SentenceEmbedding(model=model.config, sentence_encoder=MULTI_VECTOR, loss=loss)
    actual = train_jax(make_objective(config), multi_vector.params, batches, TRAIN, "loss")

    reference = sentence_transformers.MultiVectorEncoder(
        str(tmp_path / "colbert"), device="cpu"
    ).train()
    loss_module = make_reference_loss(reference)

    def compute_losses(batch):
        texts = texts_of_examples(batch)
        # As `Transformer.preprocess` does for queries.
        query = {n: torch.nn.functional.pad(v, (0, 12 - LENGTH)) for n, v in texts[0].items()}
        is_expansion = query["attention_mask"] == 0
        query["input_ids"] = query["input_ids"].masked_fill(is_expansion, MASK_ID)
        query["query_expansion_positions"] = is_expansion
        return (loss_module([query, *texts[1:]], scores(batch)),)

    expected, _ = train_torch(reference, batches, TRAIN, compute_losses)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert np.mean(actual[-4:]) < np.mean(actual[:4]) - 0.02
