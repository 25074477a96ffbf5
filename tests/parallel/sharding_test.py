"""Covers bert_jax/parallel/ and models/sharding.py: meshes and shardings on 8 fake devices."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Chip:
    """Stands for a chip of a TPU slice: its number in the slice, and the process of its host."""

    id: int
    process_index: int


# Four hosts of 2 x 2 chips in a slice of 4 x 4, numbered row by row, as in v5e-16.
CHIPS = [Chip(4 * y + x, 2 * (y // 2) + x // 2) for y in range(4) for x in range(4)]


@pytest.mark.parametrize("preset", ["dp", "fsdp", "tp", "fsdp_tp"])
def test_rows_of_a_process_are_neighbors_in_a_global_batch(preset):
    mesh = sharding.make_mesh(make_mesh_config(preset), CHIPS)
    assert [chip.process_index for chip in mesh.devices.flat] == sorted([0, 1, 2, 3] * 4)
    assert sorted(mesh.devices.flat, key=lambda chip: chip.id) == CHIPS


def test_tensor_parallelism_within_a_process_only():
    with pytest.raises(ConfigError, match=r"mesh.tensor is 8, but a process has 4 of"):
        sharding.make_mesh(MeshConfig(tensor=8), CHIPS)


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
