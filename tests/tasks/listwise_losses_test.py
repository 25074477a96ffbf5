"""Covers bert_jax/tasks/listwise_losses.py; sentence-transformers is compared in tests/parity/."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_config
from bert_jax.config.distillation import SoftLabels
from bert_jax.config.objectives import LISTWISE_LOSSES, FineTuning
from bert_jax.config.train import MeshConfig, Phase, TrainConfig, WarmupLinear
from bert_jax.data.finetuning.example import TextExample
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import RankingHead, RegressionHead
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.parallel import sharding
from bert_jax.tasks.listwise_losses import listwise_spec
from bert_jax.tasks.ranking import Ranking
from tests.helpers.quick_init import quick_init

SIZE, LENGTH = 16, 8
RNG = np.random.default_rng(0)
QUERY_IDS = np.array([4, 1, 4, 4, 2, 1, 2, 2, 4, 2, 9, 9, 2, 1, 0, 0], np.int32)
BATCH = {
    "query_ids": QUERY_IDS,
    "label_values": (RNG.integers(0, 4, SIZE) / 3).astype(np.float32),
    "example_weights": np.array([1.0] * 14 + [0.0] * 2, np.float32),
}
LOGITS = RNG.normal(size=SIZE).astype(np.float32)


def slow_loss(name: str) -> tuple[float, float]:
    """Computes sum and divisor of a loss with loops, from the definitions in the papers."""
    total, weight = 0.0, 0.0
    for query in set(QUERY_IDS[:14].tolist()):
        rows = np.flatnonzero(QUERY_IDS[:14] == query)
        labels, scores = BATCH["label_values"][rows].astype(float), LOGITS[rows].astype(float)
        if name == "listnet":
            targets = np.exp(labels) / np.exp(labels).sum()
            total -= float(targets @ (scores - math.log(np.exp(scores).sum())))
            weight += 1
            continue
        ranks = 1 + np.argsort(np.argsort(-scores))
        ideal = sum((2**y - 1) / math.log2(2 + i) for i, y in enumerate(sorted(labels)[::-1]))
        for i in range(len(rows)):
            for j in range(len(rows)):
                if labels[i] <= labels[j]:
                    continue
                factor = 1.0
                if name == "lambdaloss":
                    distance = abs(ranks[i] - ranks[j])
                    near = 1 / math.log2(1 + distance) - 1 / math.log2(2 + distance)
                    swap = abs(1 / math.log2(1 + ranks[i]) - 1 / math.log2(1 + ranks[j]))
                    factor = (10 * near + swap) * (2 ** labels[i] - 2 ** labels[j]) / ideal
                total += factor * math.log2(1 + math.exp(scores[j] - scores[i]))
                weight += 1
    return total, weight


@pytest.mark.parametrize("name", LISTWISE_LOSSES)
def test_losses_follow_their_definitions(name):
    spec = listwise_spec(Ranking.spec, name)
    loss, metrics = spec.compute_loss({"values": jax.numpy.asarray(LOGITS)}, BATCH, (), 0.0)
    np.testing.assert_allclose((loss.total, loss.weight), slow_loss(name), rtol=1e-5)
    weights = np.asarray(spec.label_weights(BATCH, ()))
    assert weights.sum() == pytest.approx(float(loss.weight)) and not weights[14:].any()
    assert 0 < float(metrics["pair_accuracy"].total) < float(metrics["pair_accuracy"].weight)


def test_ndcg_is_that_of_scikit_learn():
    from sklearn.metrics import ndcg_score

    rows = [r for r in range(14) if QUERY_IDS[r] != 9]
    texts = [f"query {QUERY_IDS[r]}" for r in rows]
    examples = [TextExample(id=str(i), text=t, text_pair="x") for i, t in enumerate(texts)]
    alone = [TextExample(id=t, text=t, text_pair="x") for t in ("alone", "no label", "no label")]
    labels, logits = np.append(BATCH["label_values"][rows], [1, 0, 0]), LOGITS[[*rows, 13, 14, 15]]
    expected = [
        ndcg_score(labels[None, :-3][:, own], logits[None, :-3][:, own])
        for own in (np.array(texts) == query for query in dict.fromkeys(texts))
    ]
    metrics = Ranking().example_metrics([*examples, *alone], labels, logits)
    assert metrics == {"ndcg": pytest.approx(np.mean(expected))} and expected[0] < 1
    assert Ranking().example_metrics(alone, labels[-3:], logits[-3:]) == {}


def value_and_gradients(objective, params, batch):
    def loss(params):
        return objective.compute_loss(params, batch, objective.loss_denominators(batch), None).loss

    return jax.jit(jax.value_and_grad(loss))(params)


def test_eight_devices_give_the_loss_of_one():
    """The texts of a query are on several devices."""
    config = FineTuning(
        model=small_config(num_hidden_layers=1), head=RankingHead(), listwise_loss="lambdaloss"
    )
    objective = FineTuningObjective(config)
    params = quick_init(objective.abstract())
    mask = np.arange(LENGTH) < RNG.integers(3, LENGTH + 1, (SIZE, 1))
    batch = BATCH | {
        "input_ids": (RNG.integers(5, 18, (SIZE, LENGTH)) * mask).astype(np.int32),
        "token_type_ids": np.zeros((SIZE, LENGTH), np.int32),
        "attention_mask": mask.astype(np.int32),
    }
    expected = value_and_gradients(objective, params, batch)
    mesh = sharding.make_mesh(MeshConfig(data=4, fsdp=2))
    sharded = jax.device_put(params, sharding.parameter_shardings(params, mesh))
    with jax.set_mesh(mesh):
        shards = sharding.put_batch(batch, sharding.batch_sharding(mesh))
        actual = value_and_gradients(objective, sharded, shards)
    assert float(expected[0]) > 0
    for left, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(left - right) <= 3e-6 * max(1.0, np.linalg.norm(right))


def test_errors_of_configs():
    fields: Any = {"model": small_config(), "head": RankingHead(), "listwise_loss": "listnet"}
    for changes, message in (
        ({"head": RegressionHead()}, "objective.head is a RegressionHead; expected that of a re"),
        ({"listwise_loss": "x"}, "is 'x'; expected one of listnet, ranknet, lambdaloss"),
        ({"distillation": SoftLabels()}, "expected a SequenceClassificationHead"),
    ):
        with pytest.raises(ConfigError, match=message):
            FineTuning(**(fields | changes))
    phase = Phase(steps=4, seq_length=8, batch_size=4, gradient_accumulation_steps=2)
    train = TrainConfig(phases=(phase,), schedule=WarmupLinear(warmup_steps=1))
    with pytest.raises(ConfigError, match="gradient_accumulation_steps 2; expected 1"):
        FineTuning(**fields).check_training(train)
