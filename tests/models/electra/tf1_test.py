"""Covers bert_jax/models/electra/tf1.py and interop/tf1.py: checkpoints of Google's ELECTRA.

A checkpoint is written with the names and shapes of the original code: both networks, embeddings
once, and the moments of the optimizer.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.errors import UserError
from bert_jax.models.electra.config import ElectraConfig, generator_config
from bert_jax.models.electra.tf1 import DISCRIMINATOR, GENERATOR
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import build_network
from bert_jax.params import paths
from bert_jax.pretrained.initial import load_generator, load_model_or_tf1

tf = pytest.importorskip("tensorflow")

MODEL = ElectraConfig(
    vocab_size=15,
    embedding_size=24,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    positions=LearnedPositions(max_position_embeddings=20),
)
GENERATOR_MODEL = generator_config(MODEL, 0.5)


def random_parameters(config: ElectraConfig, head: str, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    abstract = paths.flatten(build_network(config, (head,)).abstract())
    return {p: rng.normal(0, 0.05, x.shape).astype(np.float32) for p, x in abstract.items()}


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Returns the folder of a checkpoint, and the parameters of both networks by path."""
    folder = tmp_path_factory.mktemp("electra_small")
    discriminator = random_parameters(MODEL, "replaced_token", 0)
    generator = random_parameters(GENERATOR_MODEL, "masked_lm", 1)
    shared = {p: x for p, x in discriminator.items() if p.startswith("encoder/embeddings/")}
    generator |= shared
    variables = {**GENERATOR.to_external(generator), **DISCRIMINATOR.to_external(discriminator)}
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        for name, value in variables.items():
            tf.compat.v1.get_variable(name, initializer=value)
            for moment in ("adam_m", "adam_v"):
                tf.compat.v1.get_variable(f"{name}/{moment}", initializer=np.zeros_like(value))
        tf.compat.v1.get_variable("global_step", initializer=np.int64(7))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / "electra_small"))
    return folder, discriminator, generator


def test_names_are_those_of_the_original_code(released):
    variables = dict(tf.train.list_variables(str(released[0] / "electra_small")))
    for name, shape in {
        "electra/embeddings/word_embeddings": [15, 24],
        "electra/embeddings/LayerNorm/gamma": [24],
        "electra/embeddings_project/kernel": [24, 128],
        "electra/encoder/layer_1/attention/self/query/kernel": [128, 128],
        "electra/encoder/layer_1/output/LayerNorm/beta": [128],
        "generator/embeddings_project/kernel": [24, 64],
        "generator/encoder/layer_0/intermediate/dense/kernel": [64, 256],
        "generator_predictions/dense/kernel": [64, 24],
        "generator_predictions/LayerNorm/beta": [24],
        "generator_predictions/output_bias": [15],
        "discriminator_predictions/dense/kernel": [128, 128],
        "discriminator_predictions/dense_1/kernel": [128, 1],
    }.items():
        assert variables[name] == shape, name
    assert "generator/embeddings/word_embeddings" not in variables


def test_both_networks_are_read_bit_identical(released):
    folder, discriminator, generator = released
    for model, config, expected in (
        (load_model_or_tf1(folder), MODEL, discriminator),
        (load_generator(folder / "electra_small"), GENERATOR_MODEL, generator),
    ):
        assert model.config == config
        found = paths.flatten(model.params)
        assert found.keys() == expected.keys()
        for path, leaf in expected.items():
            np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def test_convert_writes_the_generator(released, tmp_path):
    output = str(tmp_path / "generator")
    assert main(["convert", str(released[0]), "--output", output, "--generator"]) == 0
    config = json.loads((tmp_path / "generator" / "config.json").read_text())
    assert config["architectures"] == ["ElectraForMaskedLM"] and config["hidden_size"] == 64


def test_checkpoint_of_bert_has_no_generator(shared):
    with pytest.raises(UserError, match="--generator is for ELECTRA, this is a checkpoint of BERT"):
        load_generator(shared / "checkpoints" / "tf_format_tiny")
