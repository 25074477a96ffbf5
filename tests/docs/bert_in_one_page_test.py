"""Covers examples/bert_in_one_page.py: its loss and gradients, its masks, and a short run."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import Pretraining
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths

SIZES: Any = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    file = Path(__file__).parents[2] / "examples" / "bert_in_one_page.py"
    spec = importlib.util.spec_from_file_location("bert_in_one_page", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_loss_and_all_gradients_equal_those_of_the_package(example):
    model = BertConfig(**SIZES, positions=LearnedPositions(max_position_embeddings=20))
    objective = PretrainingObjective(Pretraining(model=model, mask_token_id=4))
    config = example.Config(**SIZES, max_position_embeddings=20)
    params = example.init(config, jax.random.key(0))
    shapes = {path: leaf.shape for path, leaf in paths.flatten(params).items()}
    assert shapes == {
        path: leaf.shape for path, leaf in paths.flatten(objective.abstract()).items()
    }
    # Larger than after `init`: with kernels of 0.02, every attention weight would be the same.
    keys = jax.random.split(jax.random.key(1), len(shapes))
    params = paths.unflatten(
        {
            path: leaf + 0.2 * jax.random.normal(key, leaf.shape)
            for key, (path, leaf) in zip(keys, paths.flatten(params).items(), strict=True)
        }
    )
    batch = pretraining_batch(batch_size=6, seq_length=16, max_predictions_per_seq=5, vocab_size=61)
    batch = {name: jnp.asarray(batch[name]) for name in objective.batch_fields()}

    def package_loss(params: Any) -> jax.Array:
        return objective.compute_loss(params, batch, objective.loss_denominators(batch), None).loss

    expected, expected_grads = jax.jit(jax.value_and_grad(package_loss))(params)
    found, found_grads = jax.jit(
        jax.value_and_grad(lambda params: example.compute_loss(params, config, batch)[0])
    )(params)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    expected_grads = paths.flatten(expected_grads)
    # Float32 sums in another order: errors relative to the largest entry of each gradient.
    for path, gradient in paths.flatten(found_grads).items():
        scale = float(np.abs(expected_grads[path]).max())
        # The gradient of the key's bias is 0: a softmax ignores what all scores have in common.
        assert scale > 1e-4 or path.endswith("key/bias"), path
        np.testing.assert_allclose(
            gradient, expected_grads[path], rtol=0, atol=max(5e-6 * scale, 1e-7), err_msg=path
        )


def test_masks_follow_80_10_10_and_spare_special_tokens(example):
    rng = np.random.default_rng(0)
    counts = {"masked": 0, "random": 0, "unchanged": 0}
    ids = np.array([example.CLS, *range(5, 45), example.SEP, *range(45, 85), example.SEP, 0, 0])
    for _ in range(400):
        fields = example.mask_tokens(ids.astype(np.int32), 5000, 14, rng)
        used = fields["masked_lm_weights"] > 0
        assert used.sum() == 12  # 15 % of 80 tokens
        positions = fields["masked_lm_positions"][used]
        np.testing.assert_array_equal(fields["masked_lm_ids"][used], ids[positions])
        inputs = fields["input_ids"]
        untouched = np.delete(np.arange(len(ids)), positions)
        np.testing.assert_array_equal(inputs[untouched], ids[untouched])
        assert set(positions.tolist()).isdisjoint({0, 41, 82, 83, 84})
        counts["masked"] += int(np.sum(inputs[positions] == example.MASK))
        counts["unchanged"] += int(np.sum(inputs[positions] == ids[positions]))
    counts["random"] = 4800 - counts["masked"] - counts["unchanged"]
    fractions = {name: count / 4800 for name, count in counts.items()}
    assert fractions == pytest.approx({"masked": 0.8, "random": 0.1, "unchanged": 0.1}, abs=0.02)


def test_run_on_a_small_text_prints_falling_losses(example, capsys):
    text = "\n\n".join(
        f"The {noun} is red. The {noun} is old. A {noun} sleeps by the sea."
        for noun in ("cat", "dog")
    )
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises floats to integer powers
        losses = np.array(example.train(text, steps=60, B=8, L=24, print_every=20)).sum(axis=1)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "20 steps", "40 steps", "60 steps"
    ]  # fmt: skip
