"""Compares 20 steps of training a sentence encoder with sentence-transformers, without dropout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.config.sentence_embeddings import (
    MultipleNegativesRankingLoss,
    SentenceEmbedding,
    UnsupervisedSimCSE,
)
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.export.export import export
from bert_jax.objectives.sentence_embeddings import SentenceEmbeddingObjective
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
reference_losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

STEPS, SIZE, LENGTH, CLIP, DECAY = 20, 8, 10, 1.0, 0.01
TRAIN = TrainConfig(
    phases=(Phase(steps=STEPS, seq_length=LENGTH, batch_size=SIZE),),
    optimizer=AdamW(epsilon=1e-8, weight_decay=DECAY),
    schedule=WarmupLinear(peak_learning_rate=2e-3, warmup_steps=4),
    max_grad_norm=CLIP,
)
LOSSES = {"ranking": MultipleNegativesRankingLoss(), "simcse": UnsupervisedSimCSE()}


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
            }
        )
    return batches


def train_jax(model, loss, batches) -> list[float]:
    objective = SentenceEmbeddingObjective(SentenceEmbedding(model=model.config, loss=loss))
    params = jax.tree.map(jnp.asarray, {"encoder": model.params["encoder"]})
    optimizer, schedule = make_optimizer(TRAIN), learning_rate_schedule(TRAIN.schedule, STEPS)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step, losses = jax.jit(make_train_step(objective, optimizer, schedule)), []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


def train_torch(folder, batches) -> list[float]:
    """Trains with the model, the pooling and the loss of sentence-transformers."""
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu").train()
    loss_module = reference_losses.MultipleNegativesRankingLoss(model)
    schedule, groups = learning_rate_schedule(TRAIN.schedule, STEPS), ([], [])
    for name, parameter in model.named_parameters():
        is_decayed = not (name.endswith("bias") or "LayerNorm" in name)
        groups[not is_decayed].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": DECAY}, {"params": groups[1], "weight_decay": 0.0}],
        eps=1e-8,
    )
    losses = []
    for step, batch in enumerate(batches):
        texts = [
            {
                name.removeprefix("choice_"): torch.from_numpy(array[:, index]).long()
                for name, array in batch.items()
            }
            for index in range(batch["choice_input_ids"].shape[1])
        ]
        for group in optimizer.param_groups:
            group["lr"] = np.asarray(schedule(step)).item()
        loss = loss_module(texts, None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "num_texts"), [("ranking", 3), pytest.param("simcse", 2, marks=pytest.mark.slow)]
)
def test_losses_of_20_steps_equal_sentence_transformers(model, name, num_texts):
    loaded, folder = model
    batches = make_batches(num_texts)
    actual = train_jax(loaded, LOSSES[name], batches)
    expected = train_torch(folder, batches)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert np.mean(actual[-4:]) < np.mean(actual[:4]) - 0.05
