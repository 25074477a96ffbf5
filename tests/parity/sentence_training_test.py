"""Compares 20 steps of training a sentence encoder with sentence-transformers, without dropout."""

from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.config.sentence_embeddings import (
    DistillKLDivLoss,
    MultipleNegativesRankingLoss,
    SentenceEmbedding,
    UnsupervisedSimCSE,
)
from bert_jax.config.train import AdamW
from bert_jax.export.export import export
from bert_jax.objectives.sentence_embeddings import SentenceEmbeddingObjective
from tests.helpers.torch_training import (
    STEPS,
    texts_of_examples,
    train_config,
    train_jax,
    train_torch,
)

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
reference_losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

SIZE, LENGTH = 8, 10
TRAIN = train_config(
    2e-3, AdamW(epsilon=1e-8, weight_decay=0.01), seq_length=LENGTH, batch_size=SIZE
)
LOSSES = {
    "ranking": MultipleNegativesRankingLoss(),
    "simcse": UnsupervisedSimCSE(),
    "distill-kl": DistillKLDivLoss(temperature=2.0),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model without dropout, and the folder to which it is exported."""
    folder = tmp_path_factory.mktemp("sentence-training")
    no_dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = small_model(folder / "words", **no_dropout)
    export(model, folder / "model")
    return model, folder / "model"


def make_batches(num_texts: int) -> list[dict[str, np.ndarray]]:
    """Returns the batches of all steps; a positive shares most tokens with its anchor."""
    rng, batches = np.random.default_rng(0), []
    for _ in range(STEPS):
        ids = np.repeat(rng.integers(5, 18, (SIZE, 1, LENGTH)), num_texts, axis=1)
        ids[:, 1:, 5:] = rng.integers(5, 18, (SIZE, num_texts - 1, LENGTH - 5))
        mask = np.arange(LENGTH) < rng.integers(4, LENGTH + 1, (SIZE, num_texts, 1))
        if num_texts == 2:  # two views of one text
            ids, mask = ids[:, :1].repeat(2, axis=1), mask[:, :1].repeat(2, axis=1)
        batches.append(
            {
                "choice_input_ids": (ids * mask).astype(np.int32),
                "choice_token_type_ids": np.zeros(ids.shape, np.int32),
                "choice_attention_mask": mask.astype(np.int32),
                # A teacher's scores of the texts after the first.
                "label_logits": np.tile(
                    3.0 - np.arange(num_texts - 1, dtype=np.float32), (SIZE, 1)
                ),
            }
        )
    return batches


@pytest.mark.parametrize(
    ("name", "num_texts"),
    [("ranking", 3), pytest.param("simcse", 2, marks=pytest.mark.slow), ("distill-kl", 4)],
)
def test_losses_of_20_steps_equal_sentence_transformers(model, name, num_texts):
    loaded, folder = model
    batches = make_batches(num_texts)
    objective = SentenceEmbeddingObjective(
        SentenceEmbedding(model=loaded.config, loss=LOSSES[name])
    )
    params = {"encoder": loaded.params["encoder"]}
    actual = train_jax(objective, params, batches, TRAIN, "loss")[:, 0]
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    if name == "distill-kl":
        loss_module = reference_losses.DistillKLDivLoss(reference, temperature=2.0)
    else:
        loss_module = reference_losses.MultipleNegativesRankingLoss(reference)

    def compute_losses(batch):
        scores = torch.from_numpy(batch["label_logits"]) if name == "distill-kl" else None
        return (loss_module(texts_of_examples(batch), scores),)

    losses, _ = train_torch(reference, batches, TRAIN, compute_losses)
    expected = losses[:, 0]
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert np.mean(actual[-4:]) < np.mean(actual[:4]) - 0.05
