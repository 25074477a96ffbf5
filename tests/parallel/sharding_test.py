"""Covers bert_jax/parallel/ and models/sharding.py: meshes and shardings on 8 fake devices."""

import jax
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import MeshConfig, make_mesh_config
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.sharding import parameter_axes
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.parallel import sharding
from bert_jax.params import paths


def program(**changes):
    model = BertConfig.from_size("tiny", vocab_size=104)
    return PretrainingObjective(Pretraining(model=model, mask_token_id=4, **changes))


def test_every_parameter_has_one_row_with_its_rank():
    for path, leaf in paths.flatten(program().abstract()).items():
        assert len(parameter_axes()[path]) == leaf.ndim, path


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("dp", (8, 1, 1)), ("fsdp", (1, 8, 1)), ("tp", (4, 1, 2)), ("fsdp_tp", (1, 4, 2))],
)
def test_presets_on_eight_devices(preset, sizes):
    assert make_mesh_config(preset).axis_sizes(8) == sizes


def test_mesh_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="does not fit 8 devices"):
        MeshConfig(data=3).axis_sizes(8)
    with pytest.raises(ConfigError, match="does not fit 8 devices"):
        MeshConfig(tensor=3).axis_sizes(8)
    with pytest.raises(ConfigError, match="-1 at most once"):
        MeshConfig(data=-1, fsdp=-1)


def test_fsdp_tp_shards_parameters_and_moments_alike():
    devices = sharding.make_mesh(make_mesh_config("fsdp_tp"))
    params = program().abstract()
    specs = {
        path: leaf_sharding.spec
        for path, leaf_sharding in paths.flatten(
            sharding.parameter_shardings(params, devices)
        ).items()
    }
    assert specs["encoder/layers/0/attention/query/kernel"] == P("fsdp", "tensor")
    assert specs["encoder/layers/0/feed_forward/output/kernel"] == P("tensor", "fsdp")
    assert specs["encoder/embeddings/word_embeddings/embedding"] == P("tensor", "fsdp")
    assert specs["encoder/layers/0/attention_norm/scale"] == P(None)
    moments = sharding.optimizer_shardings(optax.scale_by_adam(), params, devices)
    assert paths.flatten(moments.mu)["pooler/dense/kernel"].spec == P("fsdp", None)
    assert moments.count.spec == P()


def test_dimension_that_is_not_divisible_stays_whole():
    devices = sharding.make_mesh(MeshConfig(data=1, tensor=8))
    spec = sharding.parameter_spec(
        "encoder/embeddings/word_embeddings/embedding", (30522, 128), devices
    )
    assert spec == P(None, "fsdp")


def test_batch_size_must_be_divisible():
    devices = sharding.make_mesh(make_mesh_config("dp"))
    sharding.check_batch_size(32, 4, devices)
    with pytest.raises(ConfigError, match="batch_size 30 is not divisible by 2 microbatches x 8"):
        sharding.check_batch_size(30, 2, devices)


def test_init_makes_parameters_sharded():
    devices = sharding.make_mesh(make_mesh_config("fsdp"))
    made = program()
    shardings = sharding.parameter_shardings(made.abstract(), devices)
    params = jax.jit(made.init, out_shardings=shardings)(jax.random.key(0))
    table = params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    assert table.addressable_shards[0].data.shape == (104, 16)
