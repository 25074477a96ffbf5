"""Compares bert_jax/objectives/denoising_embeddings.py with sentence-transformers' TSDAE."""

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.config.embedding_losses import DenoisingAutoEncoderLoss
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.config.train import AdamW
from bert_jax.export.export import export
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.objectives.denoising_embeddings import DenoisingEmbeddingObjective
from tests.helpers.torch_training import STEPS, train_config, train_jax, train_torch

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.models")
reference_losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

SIZE, LENGTH = 8, 10
TRAIN = train_config(
    2e-3, AdamW(epsilon=1e-8, weight_decay=0.01), seq_length=LENGTH, batch_size=SIZE
)
FIELDS = ("input_ids", "token_type_ids", "attention_mask")


def make_batches() -> list[dict[str, np.ndarray]]:
    """Returns texts of random tokens with [CLS] 2 and [SEP] 3, and a part of each."""
    rng, batches = np.random.default_rng(0), []
    for _ in range(STEPS):
        ids = np.zeros((SIZE, 2, LENGTH), np.int32)
        for row in ids:
            tokens = rng.integers(5, 18, rng.integers(2, LENGTH - 1))
            for text, part in zip(row, (tokens[:: rng.integers(1, 3)], tokens), strict=True):
                text[: len(part) + 2] = [2, *part, 3]
        batches.append(
            {
                "choice_input_ids": ids,
                "choice_token_type_ids": np.zeros_like(ids),
                "choice_attention_mask": (ids > 0).astype(np.int32),
            }
        )
    return batches


def test_losses_of_training_equal_those_of_sentence_transformers(tmp_path):
    no_dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    loaded = small_model(tmp_path / "words", initializer_range=0.2, **no_dropout)
    export(loaded, tmp_path / "model")
    config = SentenceEmbedding(
        model=loaded.config,
        sentence_encoder=SentenceEncoderConfig(pooling=("cls",)),
        loss=DenoisingAutoEncoderLoss(),
    )
    objective = DenoisingEmbeddingObjective(config)
    params = {
        name: loaded.params.get(name, own)
        for name, own in objective.init(jax.random.key(0)).items()
    }
    batches = make_batches()

    transformer = modules.Transformer(str(tmp_path / "model"))
    reference = sentence_transformers.SentenceTransformer(
        modules=[transformer, modules.Pooling(16, "cls")], device="cpu"
    )
    loss_module = reference_losses.DenoisingAutoEncoderLoss(reference)
    for layer, own in zip(
        loss_module.decoder.bert.encoder.layer, params["reconstruction"].values(), strict=True
    ):
        attention = layer.crossattention
        pairs = ((attention.self.value, own["value"]), (attention.output.dense, own["output"]))
        for linear, values in pairs:
            linear.weight.data = torch.from_numpy(np.array(values["kernel"]).T.copy())
            linear.bias.data = torch.from_numpy(np.array(values["bias"]))
    actual = train_jax(objective, params, batches, TRAIN, "loss")[:, 0]

    def compute_losses(batch):
        texts = [
            {name: torch.from_numpy(batch[f"choice_{name}"][:, n]).long() for name in FIELDS}
            for n in range(2)
        ]
        return (loss_module(texts, None),)

    losses, _ = train_torch(loss_module, batches, TRAIN, compute_losses)
    assert losses[-1, 0] < losses[0, 0]
    np.testing.assert_allclose(actual[0], losses[0, 0], atol=1e-5)
    np.testing.assert_allclose(actual, losses[:, 0], atol=1e-4)
