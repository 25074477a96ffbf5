"""Compares optimizer and schedule with independent references in NumPy and optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    AdamW,
    Lamb,
    Phase,
    StableAdamW,
    TrainConfig,
    WarmupLinear,
    WarmupStableDecay,
)
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.train.optimizer import WEIGHT_DECAY, learning_rate_schedule, make_optimizer

PHASES = (Phase(steps=10, seq_length=8, batch_size=4, max_predictions_per_seq=2),)


def train(**changes) -> TrainConfig:
    values = {
        "phases": PHASES,
        "schedule": WarmupLinear(peak_learning_rate=1e-2, warmup_steps=4),
        **changes,
    }
    return TrainConfig(**values)


def toy_params():
    random = np.random.default_rng(0)
    shapes = {"a/kernel": (3, 4), "a/bias": (4,), "norm/scale": (4,), "word/embedding": (5, 4)}
    flat = {path: jnp.asarray(random.normal(size=s), jnp.float32) for path, s in shapes.items()}
    return paths.unflatten(flat)


def toy_grads(step):
    random = np.random.default_rng(100 + step)
    return jax.tree.map(
        lambda p: jnp.asarray(3 * random.normal(size=p.shape), jnp.float32), toy_params()
    )


def spiky_grads(step):
    """Returns gradients that are ten times as large in update 4 as in the others."""
    size = 10.0 if step == 4 else 1.0 - 0.1 * step
    return jax.tree.map(lambda g: size * jnp.sign(g), toy_grads(step))


def test_warmup_rises_to_the_peak_and_falls_to_the_end():
    rate = learning_rate_schedule(WarmupLinear(peak_learning_rate=1.0, warmup_steps=4), 10)
    got = [np.asarray(rate(step)) for step in range(10)]
    expected = [0.25, 0.5, 0.75, 1.0] + [(10 - step) / 6 for step in range(4, 10)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_no_warmup_starts_at_the_peak():
    rate = learning_rate_schedule(WarmupLinear(peak_learning_rate=2.0, warmup_steps=0), 4)
    np.testing.assert_allclose([np.asarray(rate(s)) for s in range(4)], [2.0, 1.5, 1.0, 0.5])


def test_stable_rate_decays_by_the_square_root_at_the_end():
    schedule = WarmupStableDecay(peak_learning_rate=2.0, warmup_steps=2, decay_steps=4)
    rate = learning_rate_schedule(schedule, 10)
    decay = [2.0 * (1 - (k / 4) ** 0.5) for k in range(5)]
    expected = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, *decay]
    np.testing.assert_allclose([np.asarray(rate(s)) for s in range(11)], expected, rtol=1e-6)


def test_stable_rate_without_decay_stays_at_the_peak():
    rate = learning_rate_schedule(WarmupStableDecay(peak_learning_rate=2.0, warmup_steps=0), 4)
    np.testing.assert_array_equal([np.asarray(rate(s)) for s in (0, 3, 100)], [2.0, 2.0, 2.0])


def test_warmup_and_decay_must_fit_into_the_run():
    schedule = WarmupStableDecay(warmup_steps=4, decay_steps=7)
    with pytest.raises(ConfigError, match=r"4 warmup_steps and 7 decay_steps, but .* 10 steps"):
        train(schedule=schedule)


def test_decay_table_excludes_biases_and_norms():
    program = PretrainingObjective(
        Pretraining(model=BertConfig.from_size("tiny", vocab_size=50), mask_token_id=4)
    )
    for path in paths.flatten(program.abstract()):
        assert WEIGHT_DECAY[path] == (path.rsplit("/", 1)[1] not in ("bias", "scale")), path


def reference(choice, corrected: bool, steps: int, make_grads=toy_grads, max_norm=1.0):
    """Computes Adam with decoupled decay, clipping and schedule in float64 NumPy."""
    params = {k: np.asarray(v, np.float64) for k, v in paths.flatten(toy_params()).items()}
    mu = {k: np.zeros_like(v) for k, v in params.items()}
    nu = {k: np.zeros_like(v) for k, v in params.items()}
    rates = [0.25e-2, 0.5e-2, 0.75e-2, 1e-2, 1e-2, 1e-2 * 5 / 6]
    for step in range(steps):
        grads = {k: np.asarray(v, np.float64) for k, v in paths.flatten(make_grads(step)).items()}
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        scale = min(1.0, max_norm / norm)
        for k, g in grads.items():
            g = g * scale
            mu[k] = choice.b1 * mu[k] + (1 - choice.b1) * g
            nu[k] = choice.b2 * nu[k] + (1 - choice.b2) * g**2
            m, v = mu[k], nu[k]
            if corrected:
                m, v = m / (1 - choice.b1 ** (step + 1)), v / (1 - choice.b2 ** (step + 1))
            update = m / (np.sqrt(v) + choice.epsilon)
            decayed = k.endswith(("kernel", "embedding"))
            if decayed:
                update = update + choice.weight_decay * params[k]
            if isinstance(choice, StableAdamW):
                rms = np.sqrt(np.mean(g**2 / np.maximum(v, choice.epsilon**2)))
                assert step == 0 or (rms > 1) == (step == 4)  # only the spike is clipped
                update = update / max(1.0, rms)
            if isinstance(choice, Lamb) and decayed:
                p, u = np.linalg.norm(params[k]), np.linalg.norm(update)
                update = update * (p / u if p > 0 and u > 0 else 1.0)
            params[k] = params[k] - rates[step] * update
    return params


@pytest.mark.parametrize(
    ("choice", "corrected"),
    [(AdamW(), True), (AdamW(bias_correction=False), False), (Lamb(), True)],
    ids=["adamw", "bert-adam", "lamb"],
)
def test_updates_equal_the_reference(choice, corrected):
    optimizer = make_optimizer(train(optimizer=choice))
    params: Any = toy_params()
    state = optimizer.init(params)
    for step in range(6):
        updates, state = optimizer.update(toy_grads(step), state, params)
        params = optax.apply_updates(params, updates)
    expected = reference(choice, corrected, 6)
    for path, leaf in paths.flatten(params).items():
        np.testing.assert_allclose(leaf, expected[path], rtol=2e-5, atol=1e-6, err_msg=path)


def test_stable_adamw_divides_only_updates_that_are_too_large():
    choice = StableAdamW(b2=0.98, weight_decay=0.1)
    optimizer = make_optimizer(train(optimizer=choice, max_grad_norm=None))
    params: Any = toy_params()
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(6):
        updates, state = update(spiky_grads(step), state, params)
        params = optax.apply_updates(params, updates)
    expected = reference(choice, True, 6, spiky_grads, max_norm=np.inf)
    for path, leaf in paths.flatten(params).items():
        np.testing.assert_allclose(leaf, expected[path], rtol=2e-5, atol=1e-6, err_msg=path)


def test_gradients_are_not_clipped_without_a_norm():
    grads = jax.tree.map(lambda g: 100 * g, toy_grads(0))
    states = {}
    for norm in (None, 1e9, 1.0):
        optimizer = make_optimizer(train(max_grad_norm=norm))
        states[norm] = optimizer.update(grads, optimizer.init(toy_params()), toy_params())[1]
    assert jax.tree.structure(states[None]) == jax.tree.structure(states[1.0])
    equal = jax.tree.map(np.array_equal, states[None], states[1e9])
    assert jax.tree.all(equal)
    assert not jax.tree.all(jax.tree.map(np.array_equal, states[None], states[1.0]))
