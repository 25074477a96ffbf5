"""Compares optimizer and schedule with independent references in NumPy and optax."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config.objectives import Pretraining, ReplacedTokens
from bert_jax.config.train import (
    AdamW,
    Lamb,
    Muon,
    Phase,
    StableAdamW,
    TrainConfig,
    WarmupLinear,
    WarmupStableDecay,
)
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.electra.config import ElectraConfig, generator_config
from bert_jax.objectives.make import make_objective
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.train.optimizer import (
    MUON_PATTERNS,
    WEIGHT_DECAY,
    learning_rate_schedule,
    make_optimizer,
)

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


def layer_params():
    """Returns a wide, a tall and a square matrix of layers, and what Muon leaves to AdamW."""
    random = np.random.default_rng(1)
    shapes = {
        "encoder/layers/0/attention/query/kernel": (4, 4),
        "encoder/layers/0/feed_forward/intermediate/kernel": (4, 6),
        "encoder/groups/0/layers/0/feed_forward/output/kernel": (6, 4),
        "encoder/layers/0/attention/query/bias": (4,),
        "encoder/embeddings/word_embeddings/embedding": (5, 4),
        "encoder/embedding_projection/kernel": (3, 4),
        "masked_lm/transform/kernel": (4, 4),
        "classifier/kernel": (4, 2),
    }
    flat = {path: jnp.asarray(random.normal(size=s), jnp.float32) for path, s in shapes.items()}
    return paths.unflatten(flat)


def layer_grads(step):
    random = np.random.default_rng(200 + step)
    return jax.tree.map(
        lambda p: jnp.asarray(random.normal(size=p.shape), jnp.float32), layer_params()
    )


def orthogonalized(matrix):
    """Computes five Newton-Schulz steps as Jordan et al. 2024 define them, in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        gram = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
        poly = b * gram + c * gram @ gram
        x = a * x + (x @ poly if x.shape[0] > x.shape[1] else poly @ x)
    return x


def muon_reference(choice: Muon, steps: int):
    params = {k: np.asarray(v, np.float64) for k, v in paths.flatten(layer_params()).items()}
    mu = {k: np.zeros_like(v) for k, v in params.items()}
    nu = {k: np.zeros_like(v) for k, v in params.items()}
    rates = [0.25e-2, 0.5e-2, 0.75e-2, 1e-2, 1e-2, 1e-2 * 5 / 6]
    for step in range(steps):
        for k, grad in paths.flatten(layer_grads(step)).items():
            g, t, rate = np.asarray(grad, np.float64), step + 1, rates[step]
            if "layers/" in k and k.endswith("kernel"):
                beta, (rows, columns) = choice.momentum, g.shape
                mu[k] = beta * mu[k] + (1 - beta) * g
                nesterov = beta * mu[k] / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
                scale = {
                    "adamw_rms": 0.2 * max(rows, columns) ** 0.5,
                    "shape": max(1, columns / rows) ** 0.5,
                }[choice.update_scale]
                update = scale * orthogonalized(nesterov)
            else:
                mu[k] = choice.b1 * mu[k] + (1 - choice.b1) * g
                nu[k] = choice.b2 * nu[k] + (1 - choice.b2) * g**2
                m, v = mu[k] / (1 - choice.b1**t), nu[k] / (1 - choice.b2**t)
                update, rate = m / (np.sqrt(v) + choice.epsilon), rate * choice.adamw_rate_factor
            if not k.endswith("bias"):
                update = update + choice.weight_decay * params[k]
            params[k] = params[k] - rate * update
    return params


@pytest.mark.parametrize(
    "choice",
    [Muon(weight_decay=0.1), Muon(update_scale="shape", adamw_rate_factor=0.1, momentum=0.9)],
    ids=["adamw_rms", "shape"],
)
def test_muon_equals_the_reference(choice):
    optimizer = make_optimizer(train(optimizer=choice, max_grad_norm=None))
    params: Any = layer_params()
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(6):
        updates, state = update(layer_grads(step), state, params)
        params = optax.apply_updates(params, updates)
    expected = muon_reference(choice, 6)
    for path, leaf in paths.flatten(params).items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-4, atol=2e-6, err_msg=path)


def test_muon_updates_are_as_large_as_those_of_adamw():
    """Liu et al. 2025, section 2.2: the root mean square is 0.2, whatever the shape."""
    shapes = {"square": (96, 96), "wide": (64, 256), "tall": (256, 64)}
    random = np.random.default_rng(0)
    matrices = {
        name: {"kernel": jnp.asarray(random.normal(size=shape), jnp.float32)}
        for name, shape in shapes.items()
    }
    params: Any = {"encoder": {"layers": {"0": matrices}}}
    rate = WarmupLinear(peak_learning_rate=1.0, warmup_steps=0)
    optimizer = make_optimizer(train(optimizer=Muon(weight_decay=0.0), schedule=rate))
    updates: Any = optimizer.update(params, optimizer.init(params), params)[0]
    for path, update in paths.flatten(updates).items():
        # Newton-Schulz leaves singular values between about 0.7 and 1.2.
        assert float(jnp.sqrt(jnp.mean(update**2))) == pytest.approx(0.2, rel=0.2), path


def test_muon_has_no_moments_for_squares_of_matrices():
    state = jax.eval_shape(make_optimizer(train(optimizer=Muon())).init, layer_params())
    sizes = [leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim]
    matrices, others = 16 + 24 + 24, 4 + 20 + 12 + 16 + 8
    assert sum(sizes) == matrices + 2 * others + 3  # the coefficients of the polynomial


@pytest.mark.parametrize(
    "frozen", [("encoder/**/layers/**",), ("encoder/**/kernel",)], ids=["layers", "kernels"]
)
def test_muon_without_matrices_to_train_is_refused(frozen):
    config = train(optimizer=Muon(), tuning=TuningConfig(frozen=frozen))
    message = r"Muon, .* trains none of them, only classifier/.*; expected another optimizer"
    with pytest.raises(ConfigError, match=message):
        make_optimizer(config).init(layer_params())


def test_muon_trains_what_is_not_frozen():
    config = train(optimizer=Muon(), tuning=TuningConfig(frozen=("encoder/groups/**",)))
    optimizer, params = make_optimizer(config), layer_params()
    updates: Any = optimizer.update(layer_grads(0), optimizer.init(params), params)[0]
    for path, update in paths.flatten(updates).items():
        assert bool(jnp.any(update != 0)) == (not path.startswith("encoder/groups")), path


def test_muon_takes_the_layers_of_both_networks_of_electra():
    model = ElectraConfig.from_size("small", vocab_size=50)
    objective = ReplacedTokens(
        model=model, generator=generator_config(model, 0.25), mask_token_id=4
    )
    flat = paths.flatten(make_objective(objective).abstract())
    chosen = {path for path in flat if paths.matches_any(MUON_PATTERNS, path)}
    names = {path.split("layers/")[1].partition("/")[2] for path in chosen}
    assert names == {
        *(f"attention/{name}/kernel" for name in ("query", "key", "value", "output")),
        "feed_forward/intermediate/kernel",
        "feed_forward/output/kernel",
    }
    assert len(chosen) == 2 * 12 * 6


@pytest.mark.parametrize("field", ["momentum", "adamw_rate_factor", "b2"])
def test_muon_refuses_numbers_out_of_range(field):
    with pytest.raises(ConfigError, match=f"train.optimizer.{field} is -1"):
        dataclasses.replace(Muon(), **{field: -1.0})
