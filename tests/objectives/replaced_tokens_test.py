"""Covers bert_jax/objectives/replaced_tokens/: sampling, replacement, losses, parameters."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import (
    ReplacedTokens,
)
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.data.pretraining.rng import Stream, random_bits
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.electra.config import GENERATOR_FRACTIONS, ElectraConfig, generator_config
from bert_jax.models.layers.config import LearnedPositions, NoPositions
from bert_jax.models.model import build_network
from bert_jax.models.sharding import parameter_axes
from bert_jax.objectives.replaced_tokens import (
    ReplacedTokensObjective,
    discriminator_params,
    generator_params,
    replace_tokens,
    replaced_token_loss,
    sample_tokens,
)
from bert_jax.params import paths
from bert_jax.train.optimizer import WEIGHT_DECAY, learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step

MODEL = ElectraConfig(
    vocab_size=60,
    embedding_size=12,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    positions=LearnedPositions(max_position_embeddings=24),
)
CONFIG = ReplacedTokens(model=MODEL, generator=generator_config(MODEL, 0.5), mask_token_id=4)
BATCH = pretraining_batch(batch_size=4, seq_length=20, max_predictions_per_seq=4, vocab_size=60)


def seeds(count: int) -> np.ndarray:
    """Returns seeds as the loader makes them, int32 [1, count]."""
    keys = np.random.default_rng(0).integers(0, 2**64, count, np.uint64)
    bits = random_bits(keys, Stream.SAMPLING_SEED, np.arange(count) % 512)
    return (bits >> np.uint64(32)).astype(np.uint32).view(np.int32)[None]


def assert_frequencies(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Checks counts by Pearson's chi-squared statistic, which is within 5 standard deviations."""
    expected = counts.sum() * probabilities
    assert expected.min() > 5
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), counts.size - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom), statistic


def test_samples_have_the_probabilities_of_the_softmax():
    probabilities = np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.01, 5e-3, 2e-3, 1e-3, 5e-4, 1e-4, 2e-5])
    probabilities = np.append(probabilities, np.full(8, (1 - probabilities.sum()) / 8))
    count, logits = 1_000_000, np.log(probabilities) + 3.0
    logits = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (1, count, logits.size))
    samples = np.asarray(jax.jit(sample_tokens)(logits, seeds(count)))[0]
    assert_frequencies(np.bincount(samples, minlength=20), probabilities)
    # Samples of neighboring positions are independent.
    pairs = np.bincount(samples[:-1].clip(0, 4) * 5 + samples[1:].clip(0, 4), minlength=25)
    five = np.append(probabilities[:4], probabilities[4:].sum())
    assert_frequencies(pairs, np.outer(five, five).ravel())


def test_samples_of_a_large_vocabulary_are_uniform_for_equal_logits():
    samples = jax.jit(sample_tokens)(jnp.zeros((1, 400, 30522)), seeds(400))
    groups = np.bincount(np.asarray(samples)[0] // 1018, minlength=30)
    assert_frequencies(groups, np.append(np.full(29, 1018), 30522 - 29 * 1018) / 30522)


def test_replacement_equals_a_loop_over_the_predictions():
    rng = np.random.default_rng(1)
    sampled = rng.integers(5, 60, (4, 4)).astype(np.int32)
    sampled[0, 0] = BATCH["masked_lm_ids"][0, 0]  # the original by chance
    batch = {name: jnp.asarray(field) for name, field in BATCH.items()}
    found, is_replaced = replace_tokens(batch, jnp.asarray(sampled))
    ids, expected = BATCH["input_ids"].copy(), np.zeros((4, 20), bool)
    for row in range(4):
        for entry in range(4):
            if BATCH["masked_lm_weights"][row, entry]:
                position = BATCH["masked_lm_positions"][row, entry]
                ids[row, position] = sampled[row, entry]
                original = BATCH["masked_lm_ids"][row, entry]
                expected[row, position] = sampled[row, entry] != original
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_array_equal(is_replaced, expected)
    assert 0 in BATCH["masked_lm_weights"] and expected.any()
    assert not expected[0, BATCH["masked_lm_positions"][0, 0]]
    np.testing.assert_array_equal(found[:, 0], BATCH["input_ids"][:, 0])  # unused entries name it


def test_loss_is_binary_cross_entropy_over_real_tokens():
    logits = np.array([[2.0, -1.0, 0.5, 9.0], [-3.0, 4.0, -0.2, 0.1]], np.float32)
    is_replaced = np.array([[True, False, False, True], [False, True, True, False]])
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    losses = -np.log(np.where(is_replaced, probabilities, 1 - probabilities))
    loss, metrics = replaced_token_loss(*map(jnp.asarray, (logits, is_replaced, mask)))
    assert float(loss.total) == pytest.approx((losses * mask).sum(), rel=1e-6)
    means = {name: float(mean.total / mean.weight) for name, mean in metrics.items()}
    assert means["rtd_accuracy"] == pytest.approx(4 / 7)
    assert means["rtd_precision"] == pytest.approx(2 / 4)  # of four positive logits
    assert means["rtd_recall"] == pytest.approx(2 / 3)


def test_parameters_are_those_of_both_networks_with_one_set_of_embeddings():
    model = ElectraConfig.from_size("base")
    generator = generator_config(model, GENERATOR_FRACTIONS["base"])
    objective = ReplacedTokensObjective(
        ReplacedTokens(model=model, generator=generator, mask_token_id=103)
    )
    params = objective.abstract()

    def count(tree: Any) -> int:
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(tree).values())

    embeddings = count(params["encoder"]["embeddings"])
    assert embeddings == (30522 + 512 + 2 + 2) * 768
    assert count(params) == 109_483_009 + 33_740_602 - embeddings
    expected = paths.flatten(build_network(generator, ("masked_lm",)).abstract())
    found = paths.flatten(generator_params(params))
    assert {n: leaf.shape for n, leaf in found.items()} == {
        n: leaf.shape for n, leaf in expected.items()
    }


@functools.cache
def initial_params(config: ReplacedTokens) -> Any:
    """Compiles the initialization once for all tests of a config."""
    objective = ReplacedTokensObjective(config)
    return jax.device_get(jax.jit(objective.init)(jax.random.key(0)))


def gradient(**weights: float) -> dict[str, np.ndarray]:
    objective = ReplacedTokensObjective(dataclasses.replace(CONFIG, **weights))
    batch = {name: jnp.asarray(BATCH[name]) for name in objective.batch_fields()}
    denominators = objective.loss_denominators(batch)
    params = initial_params(CONFIG)  # the weights of the losses do not change it
    grads = jax.jit(jax.grad(lambda p: objective.compute_loss(p, batch, denominators, None).loss))(
        params
    )
    return {path: np.asarray(leaf) for path, leaf in paths.flatten(grads).items()}


def test_each_loss_trains_its_network_and_the_shared_embeddings():
    of_rtd, of_mlm = gradient(mlm_weight=0.0), gradient(rtd_weight=0.0)
    for path in of_rtd:
        in_generator = path.startswith("generator/")
        is_shared = path.startswith("encoder/embeddings/")
        assert of_rtd[path].any() == (not in_generator), path
        assert of_mlm[path].any() == (in_generator or is_shared), path


def test_initial_losses_are_those_of_guesses():
    objective = ReplacedTokensObjective(CONFIG)
    batch = {name: jnp.asarray(BATCH[name]) for name in objective.batch_fields()}
    denominators = objective.loss_denominators(batch)
    assert float(denominators["rtd"]) == BATCH["attention_mask"].sum()
    loss, metrics, _ = jax.jit(objective.compute_loss)(
        initial_params(CONFIG), batch, denominators, jax.random.key(1)
    )
    means = {name: float(mean.total / mean.weight) for name, mean in metrics.items()}
    assert means["mlm_loss"] == pytest.approx(math.log(60), abs=0.2)
    assert means["rtd_loss"] == pytest.approx(math.log(2), abs=0.1)
    assert float(loss) == pytest.approx(means["mlm_loss"] + 50 * means["rtd_loss"], rel=1e-5)


DEBERTA = DebertaV2Config(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    positions=NoPositions(max_position_embeddings=24),
    position_buckets=8,
    max_relative_positions=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
DISENTANGLED = ReplacedTokens(
    model=DEBERTA,
    generator=dataclasses.replace(DEBERTA, num_attention_heads=4),
    mask_token_id=4,
    embedding_sharing="gradient_disentangled",
    rtd_weight=10.0,
)
WORDS = "encoder/embeddings/word_embeddings"


def disentangled_params(objective: ReplacedTokensObjective) -> dict[str, Any]:
    """Returns initial parameters as NumPy arrays by path, with differences that are not 0."""
    flat = dict(paths.flatten(initial_params(objective.config)))
    assert not flat[f"{WORDS}/difference"].any()
    flat[f"{WORDS}/difference"] = np.random.default_rng(1).normal(0, 0.02, (60, 16)).astype("f4")
    return flat


def reference_gradients(
    flat: dict[str, np.ndarray], batch: dict[str, Any]
) -> tuple[float, dict[str, np.ndarray]]:
    """Computes loss and gradients network by network, each with a complete table of its own.

    First the generator's loss; then the tokens are replaced one by one, and the discriminator reads
    the sum of the generator's table, which is a constant, and its difference.
    """
    of_generator = {p[len("generator/") :]: v for p, v in flat.items() if p.startswith("generator")}
    of_discriminator = {p: v for p, v in flat.items() if not p.startswith("generator")}
    difference = of_discriminator.pop(f"{WORDS}/difference")
    table = of_generator[f"{WORDS}/embedding"] + difference
    of_discriminator[f"{WORDS}/embedding"] = table
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    rows, entries = np.nonzero(batch["masked_lm_weights"])
    columns, labels = (batch[n][rows, entries] for n in ("masked_lm_positions", "masked_lm_ids"))

    def generator_loss(params: dict[str, Any]) -> Any:
        network = build_network(DISENTANGLED.generator, ("masked_lm",))
        logits = network.merge(paths.unflatten(params))(inputs)["masked_lm"][rows, columns]
        return -jnp.mean(jax.nn.log_softmax(logits)[np.arange(len(rows)), labels]), logits

    (mlm_loss, logits), mlm_gradients = jax.jit(jax.value_and_grad(generator_loss, has_aux=True))(
        of_generator
    )
    ids, is_replaced = batch["input_ids"].copy(), np.zeros(batch["input_ids"].shape)
    seeds_P = batch["sampling_seeds"][rows, entries]
    sampled = np.asarray(sample_tokens(logits[None], jnp.asarray(seeds_P)[None]))[0]
    for row, column, token_id, label in zip(rows, columns, sampled, labels, strict=True):
        ids[row, column], is_replaced[row, column] = token_id, token_id != label
    assert is_replaced.any()
    real = batch["attention_mask"] > 0

    def discriminator_loss(params: dict[str, Any]) -> Any:
        network = build_network(DEBERTA, ("replaced_token",))
        logits = network.merge(paths.unflatten(params))({**inputs, "input_ids": ids})
        probabilities = jax.nn.sigmoid(logits["replaced_token"])
        right = jnp.where(is_replaced > 0, probabilities, 1 - probabilities)
        return 10.0 * jnp.mean(-jnp.log(right[real]))

    rtd_loss, rtd_gradients = jax.jit(jax.value_and_grad(discriminator_loss))(of_discriminator)
    rtd_gradients[f"{WORDS}/difference"] = rtd_gradients.pop(f"{WORDS}/embedding")
    gradients = {f"generator/{path}": g for path, g in mlm_gradients.items()} | rtd_gradients
    return float(mlm_loss + rtd_loss), jax.device_get(gradients)


def test_step_with_disentangled_embeddings_equals_two_separate_networks():
    objective = ReplacedTokensObjective(DISENTANGLED)
    flat, batch = disentangled_params(objective), dict(BATCH)
    expected_loss, gradients = reference_gradients(flat, batch)
    assert gradients.keys() == flat.keys()
    config = AdamW(epsilon=1e-3, weight_decay=0.01, bias_correction=False)
    train = TrainConfig(
        phases=(Phase(steps=2, seq_length=20, batch_size=4, max_predictions_per_seq=4),),
        optimizer=config,
        schedule=WarmupLinear(peak_learning_rate=0.01, warmup_steps=1),
        max_grad_norm=None,
    )
    optimizer, schedule = make_optimizer(train), learning_rate_schedule(train.schedule, 2)
    params = jax.tree.map(jnp.asarray, paths.unflatten(flat))
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule))
    state, metrics = step(state, {name: batch[name] for name in objective.batch_fields()})
    assert float(metrics["loss"]) == pytest.approx(expected_loss, rel=1e-5)
    updated = paths.flatten(state["params"])
    for path, value in flat.items():
        gradient = gradients[path]
        update = (1 - config.b1) * gradient / (np.sqrt((1 - config.b2) * gradient**2) + 1e-3)
        has_decay = path.endswith(("kernel", "embedding", "difference"))
        expected = value - 0.01 * (update + 0.01 * value * has_decay)
        np.testing.assert_allclose(updated[path], expected, rtol=0, atol=1e-5, err_msg=path)


def test_discriminator_has_the_sum_of_table_and_difference():
    objective = ReplacedTokensObjective(DISENTANGLED)
    flat = disentangled_params(objective)
    found = paths.flatten(discriminator_params(paths.unflatten(flat)))
    table = flat[f"generator/{WORDS}/embedding"] + flat[f"{WORDS}/difference"]
    np.testing.assert_array_equal(found[f"{WORDS}/embedding"], table)
    assert found.keys() == paths.flatten(objective.network.abstract()).keys()


@pytest.mark.parametrize(
    ("sharing", "in_generator", "differences"),
    [
        ("shared", set(), set()),
        (
            "gradient_disentangled",
            {"word_embeddings", "position_embeddings", "token_type_embeddings", "norm"},
            {"word_embeddings", "position_embeddings"},
        ),
        (None, {"word_embeddings", "position_embeddings", "token_type_embeddings", "norm"}, set()),
    ],
)
def test_parameters_of_each_way_of_sharing(sharing, in_generator, differences):
    config = dataclasses.replace(CONFIG, embedding_sharing=sharing)
    params = ReplacedTokensObjective(config).abstract()
    assert params["generator"]["encoder"].get("embeddings", {}).keys() == in_generator
    tables = params["encoder"]["embeddings"]
    assert {name for name, table in tables.items() if "difference" in table} == differences
    assert all("embedding" not in tables[name] for name in differences)
    expected = build_network(config.generator, ("masked_lm",)).abstract()
    assert paths.flatten(generator_params(params)).keys() == paths.flatten(expected).keys()
    for path in paths.flatten(params):
        assert parameter_axes()[path] is not None
        assert WEIGHT_DECAY[path] == path.endswith(("kernel", "embedding", "difference"))


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"generator": dataclasses.replace(MODEL, hidden_size=32)},
            r"generator\.hidden_size is 32, which is wider than .*hidden_size 16; expected",
        ),
        (
            {"generator": dataclasses.replace(MODEL, embedding_size=8)},
            r"objective\.generator\.embedding_size is 8, but objective\.model\..* is 12",
        ),
        (
            {"generator": dataclasses.replace(MODEL, vocab_size=61)},
            r"objective\.generator\.vocab_size is 61, .* because both use the same embeddings",
        ),
        ({"rtd_weight": -1.0}, r"objective\.rtd_weight is -1\.0, expected a number at least 0"),
        (
            {"mask_token_id": 60},
            r"mask_token_id 60 is not an id below",
        ),
        (
            {"model": BertConfig(vocab_size=60)},
            r"objective\.model is BERT, which has no head that detects replaced tokens; expected",
        ),
        (
            {
                "embedding_sharing": "gradient_disentangled",
                "generator": dataclasses.replace(MODEL, embedding_size=8),
            },
            r"objective\.generator\.embedding_size is 8, .* because the discriminator's embeddings",
        ),
        (
            {"embedding_sharing": None, "generator": dataclasses.replace(MODEL, vocab_size=61)},
            r"objective\.generator\.vocab_size is 61, .* because the discriminator reads tokens",
        ),
    ],
)
def test_networks_that_do_not_fit_together_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **fields)
