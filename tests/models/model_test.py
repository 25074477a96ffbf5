"""Covers bert_jax/models/model.py and functional.py: the forward pass, also for a Flax user."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.families import build_encoder
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.layers.config import (
    ComputeConfig,
    LearnedPositions,
    PaddingOffsetPositions,
)
from bert_jax.models.model import EncoderWithHeads, build_network, forward
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.params import functional, paths
from tests.helpers.quick_init import quick_init

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
BERT = BertConfig(positions=LearnedPositions(max_position_embeddings=24), **SIZES)
ROBERTA = RobertaConfig(positions=PaddingOffsetPositions(max_position_embeddings=26), **SIZES)
both_families = pytest.mark.parametrize("config", [BERT, ROBERTA], ids=["bert", "roberta"])
# RoBERTa's layers are BERT's.
bert_is_fast = pytest.mark.parametrize(
    "config", [BERT, pytest.param(ROBERTA, marks=pytest.mark.slow)], ids=["bert", "roberta"]
)
IDS = jnp.array([[5, 6, 7, 8], [9, 10, 11, 12]], jnp.int32)


class Classifier(nnx.Module):
    """Adds a head to an encoder, as a Flax user would."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.encoder = build_encoder(config, ComputeConfig(), rngs)
        self.head = nnx.Linear(config.hidden_size, 3, rngs=rngs)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        return self.head(self.encoder(input_ids).last_hidden_state[:, 0])


@bert_is_fast
def test_flax_user_adds_a_head_and_differentiates_with_nnx(config):
    model = Classifier(config, nnx.Rngs(0))

    def loss(model):
        return jnp.sum(jnp.square(model(IDS)))

    gradient = nnx.jit(nnx.grad(loss))(model)
    leaves = dict(nnx.to_flat_state(gradient))
    assert jnp.any(leaves["head", "kernel"][...])
    assert jnp.any(leaves["encoder", "layers", 0, "attention", "query", "kernel"][...])
    compiled_loss = nnx.jit(loss)
    before = float(compiled_loss(model))
    parameters = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda p, g: p - 1e-4 * g, parameters, gradient))
    assert float(compiled_loss(model)) < before


@bert_is_fast
def test_flax_user_differentiates_with_plain_jax(config):
    params, merge = functional.split(Classifier(config, nnx.Rngs(0)))

    @jax.jit
    @jax.grad
    def gradient(params):
        return jnp.sum(jnp.square(merge(params)(IDS)))

    for path, leaf in paths.flatten(gradient(params)).items():
        assert np.isfinite(leaf).all(), path


@both_families
def test_split_and_merge_keep_the_parameters_and_the_outputs(config):
    model = Classifier(config, nnx.Rngs(0))
    params, merge = functional.split(model)
    assert params["encoder"]["layers"]["0"]["attention"]["query"]["kernel"].shape == (16, 16)
    np.testing.assert_array_equal(merge(params)(IDS), model(IDS))


@both_families
def test_module_and_pure_functions_compute_the_same(config):
    network = build_network(config, config.pretraining_heads)
    params = network.init(jax.random.key(0))
    batch = {"input_ids": IDS, "token_type_ids": IDS * 0, "attention_mask": IDS * 0 + 1}
    model = EncoderWithHeads(
        config, ComputeConfig(), nnx.Rngs(jax.random.key(0)), heads=config.pretraining_heads
    )
    found, expected = forward(params, config, batch), model(batch)
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal(found["masked_lm"], expected["masked_lm"])
    np.testing.assert_array_equal(model.encoder(IDS).last_hidden_state, found["hidden_states"][-1])


@pytest.mark.parametrize(
    "heads, message",
    [
        (("next_sentence",), "'next_sentence' uses the output of the pooler; add 'pooler'"),
        (("mlm",), "heads contains 'mlm'; expected names from pooler, prediction_head, masked_lm"),
    ],
)
def test_heads_that_cannot_be_built_are_refused(heads, message):
    with pytest.raises(ConfigError, match=message):
        build_network(BERT, heads)


def test_outputs_have_the_documented_shapes_and_dtypes():
    head = SequenceClassificationHead(labels=("a", "b", "c"))
    compute = ComputeConfig(dtype="bfloat16")
    batch = {"input_ids": IDS, "token_type_ids": IDS * 0, "attention_mask": IDS * 0 + 1}

    def shapes(heads: tuple[str, ...]) -> dict[str, Any]:
        network = build_network(BERT, heads, head, compute)
        return jax.eval_shape(lambda params: network.merge(params)(batch), network.abstract())

    found = shapes(("pooler", "masked_lm", "next_sentence"))
    assert [(x.shape, x.dtype) for x in found.pop("hidden_states")] == [
        ((2, 4, 16), jnp.bfloat16)
    ] * 3
    assert {name: (x.shape, x.dtype) for name, x in found.items()} == {
        "masked_lm": ((2, 4, 40), jnp.float32),
        "pooled": ((2, 16), jnp.bfloat16),
        "next_sentence": ((2, 2), jnp.float32),
        "task": ((2, 3), jnp.float32),
    }
    assert shapes(()).keys() == {"hidden_states", "task"}


def test_abstract_parameters_are_those_of_init():
    network = build_network(ROBERTA, (), SequenceClassificationHead(labels=("a", "b")))
    made, abstract = network.init(jax.random.key(0)), network.abstract()
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), made) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), abstract
    )
    assert paths.flatten(abstract)["classifier/out_proj/kernel"].shape == (16, 2)
    assert "pooler" not in abstract


@functools.cache
def gradient_of_first_unit(config, compute):
    network = build_network(config, compute=compute)
    params = quick_init(build_network(config).abstract())
    return jax.jit(
        jax.grad(lambda p: jnp.sum(network.merge(p).encoder(IDS).last_hidden_state[:, 0, 0]))
    )(params)


@bert_is_fast
@pytest.mark.parametrize(
    "compute",
    [ComputeConfig(layer_loop="scanned"), ComputeConfig(remat="full")],
    ids=["scanned", "remat"],
)
def test_layer_loops_give_the_same_gradients(config, compute):
    expected = paths.flatten(gradient_of_first_unit(config, ComputeConfig()))
    for path, leaf in paths.flatten(gradient_of_first_unit(config, compute)).items():
        np.testing.assert_allclose(leaf, expected[path], atol=1e-6, err_msg=path)
