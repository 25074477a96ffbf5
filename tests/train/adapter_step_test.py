"""Tests training steps with adapters: meshes, microbatches, several tasks, memory of the state.

Covers bert_jax/train/step.py, bert_jax/train/tuning/freezing.py and
bert_jax/apps/plan/memory.py.
"""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.plan.memory import state_bytes
from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import small_config
from bert_jax.batch import ENCODER_FIELDS
from bert_jax.config.config_lib import override
from bert_jax.config.data import FineTuningData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Glue
from bert_jax.config.objectives import FineTuning, MultiTask, NamedHead
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear, make_mesh_config
from bert_jax.config.tuning import BitFit, LayerNormTuning, TuningConfig
from bert_jax.models.adapters.config import (
    IA3,
    DoRA,
    HoulsbyAdapter,
    LoRA,
    PfeifferAdapter,
    PrefixEncoder,
    PrefixTuning,
    PromptTuning,
)
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.heads.config import RegressionHead, SequenceClassificationHead
from bert_jax.objectives.multi_task import MultiTaskObjective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.train.step import TrainSetup, init_state

HEAD = SequenceClassificationHead(labels=("no", "yes"))
LORA = LoRA(rank=4, targets=("query", "feed_forward/*", "word_embeddings"))
METHODS = {
    "lora": LORA,
    "dora": DoRA(rank=4, targets=("query", "feed_forward/*")),
    "ia3": IA3(),
    "pfeiffer": PfeifferAdapter(reduction_factor=2),
    "prefix": PrefixTuning(length=3, reparametrization=PrefixEncoder(size=8)),
    "prompt": PromptTuning(length=3),
    "bitfit": BitFit(),
}
# Matrices and a table, vectors, and a network that several layers share.
FAST = {("lora", "fsdp_tp"), ("ia3", "fsdp"), ("prefix", "dp")}


def experiment(
    method: Any, preset: Any = "dp", microbatches: int = 1, model: Any = None
) -> Experiment:
    phase = Phase(steps=4, seq_length=12, batch_size=16, gradient_accumulation_steps=microbatches)
    return Experiment(
        name="test",
        # One layer compiles faster.
        objective=FineTuning(
            model=model or small_config(vocab_size=48, num_hidden_layers=1), head=HEAD
        ),
        data=FineTuningData(task=Glue(task="rte", folder="unused"), tokenizer="unused"),
        train=TrainConfig(
            phases=(phase,),
            schedule=WarmupLinear(peak_learning_rate=1e-2, warmup_steps=1),
            tuning=TuningConfig(method=method),
        ),
        mesh=make_mesh_config(preset),
        init_from="base",
    )


def train(config: Experiment, devices: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the parameters before and after three steps."""
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:devices])
    setup, phase = TrainSetup.from_experiment(config, mesh), config.train.phases[0]
    fields = setup.objective.batch_fields()
    with jax.set_mesh(mesh):
        step = setup.compile_step(phase, fields, [{"B": 16, "L": 12}])
        one = init_state(setup.objective, setup.optimizer, jax.random.key(0))
        before = paths.flatten(jax.device_get(one["params"]))
        state = jax.device_put(one, jax.tree.map(lambda leaf: leaf.sharding, setup.abstract))
        for seed in range(3):
            batch = fine_tuning_batch(HEAD, batch_size=16, seq_length=12, vocab_size=48, seed=seed)
            placed = {name: batch[name] for name in fields}
            state, _ = step(state, sharding.put_batch(placed, sharding.batch_sharding(mesh)))
    return before, paths.flatten(jax.device_get(state["params"]))


@functools.cache
def trained_on_one_device(method: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return train(experiment(method), 1)


def test_only_the_adapter_pooler_and_head_change():
    before, after = trained_on_one_device(LORA)
    changed = {p for p in after if not np.array_equal(before[p], after[p])}
    assert {path.split("/")[0] for path in changed} == {"adapter", "pooler", "classifier"}
    assert {path for path in after if path.startswith("adapter/")} <= changed


@pytest.mark.parametrize(
    ("method", "preset"),
    [
        pytest.param(*cell, marks=() if cell in FAST else pytest.mark.slow)
        for cell in itertools.product(METHODS, ("dp", "fsdp", "fsdp_tp"))
    ],
)
def test_eight_devices_equal_one(method, preset):
    """Dropout is on, so its masks are the same."""
    before, expected = trained_on_one_device(METHODS[method])
    found = train(experiment(METHODS[method], preset), 8)[1]
    assert expected.keys() == found.keys()
    for path, leaf in expected.items():
        np.testing.assert_allclose(found[path], leaf, atol=1e-5, err_msg=path)
    trained = {path for path in expected if not np.array_equal(before[path], expected[path])}
    assert any(path.startswith(("adapter/", "encoder/")) for path in trained)


@pytest.mark.slow
def test_microbatches_on_eight_devices_equal_one_batch():
    """Dropout is off, because microbatches have other masks."""
    quiet = ["train.tuning.method.dropout=0.0", "objective.classifier_dropout=0.0"]
    quiet += [f"objective.model.{n}_dropout_prob=0.0" for n in ("hidden", "attention_probs")]
    one, many = (override(experiment(LORA, "dp", n), quiet) for n in (1, 2))
    expected, found = train(one, 1)[1], train(many, 8)[1]
    for path, leaf in expected.items():
        np.testing.assert_allclose(found[path], leaf, atol=1e-5, err_msg=path)


def test_every_adapter_parameter_is_sharded_like_its_base():
    mesh = sharding.make_mesh(make_mesh_config("fsdp_tp"), jax.devices())
    for method in (DoRA(rank=4), HoulsbyAdapter(size=4), PrefixTuning(length=2), LORA):
        setup = TrainSetup.from_experiment(experiment(method, "fsdp_tp"), mesh)
        for path, leaf in paths.flatten(setup.abstract["params"]["adapter"]).items():
            assert leaf.sharding.spec is not None, path
    query = setup.abstract["params"]["adapter"]["encoder"]["layers"]["0"]["attention"]["query"]
    assert tuple(query["lora_a"].sharding.spec) == ("fsdp", None)
    assert tuple(query["lora_b"].sharding.spec) == (None, "tensor")


# Of BERT-base: the parameters that a method adds, and those of the base's encoder that it trains.
NORMS = 25 * 2 * 768
NUM_TRAINED = [
    (LoRA(), 12 * 2 * 2 * 768 * 8, 0),
    (DoRA(), 12 * 2 * (2 * 768 * 8 + 768), 0),
    (IA3(), 12 * (2 * 768 + 3072), 0),
    (HoulsbyAdapter(), 12 * 2 * (2 * 768 * 64 + 64 + 768), NORMS),
    (PfeifferAdapter(), 12 * (2 * 768 * 48 + 48 + 768), 0),
    (PrefixTuning(), 12 * 2 * 20 * 768, 0),
    (
        PrefixTuning(reparametrization=PrefixEncoder()),
        20 * 768 + 769 * 512 + 513 * 12 * 2 * 768,
        0,
    ),
    (PromptTuning(), 20 * 768, 0),
    (BitFit(), 0, 12 * (4 * 768 + 3072 + 3 * 768) + 768),
    (BitFit(biases="query_and_intermediate"), 0, 12 * (768 + 3072)),
    (LayerNormTuning(), 0, NORMS),
]


@pytest.mark.parametrize(
    ("method", "num_added", "num_of_base"),
    NUM_TRAINED,
    ids=[type(method).__name__ for method, *_ in NUM_TRAINED],
)
def test_gradients_and_moments_exist_for_trained_parameters_only(method, num_added, num_of_base):
    """Counts, besides those of a method, the parameters of the pooler and of two labels."""
    planned = state_bytes(experiment(method, model=BertConfig.from_size("base")), 1)
    head = 2 * 768 + 2
    num_trained = num_added + num_of_base + 768 * 768 + 768 + head
    assert planned.gradients == 4 * num_trained
    assert planned.optimizer == pytest.approx(2 * 4 * num_trained, abs=64)
    assert planned.parameters == 4 * (109_482_240 + num_added + head)


@pytest.mark.slow
def test_tasks_share_one_adapter():
    heads = (NamedHead(name="a", head=HEAD), NamedHead(name="b", head=RegressionHead()))
    config = MultiTask(model=small_config(vocab_size=48), heads=heads)
    adapted, plain = MultiTaskObjective(config, LORA), MultiTaskObjective(config)
    params = adapted.init(jax.random.key(0))
    assert set(params) == {"encoder", "adapter", "heads"}
    batch = fine_tuning_batch(HEAD, batch_size=4, seq_length=12, vocab_size=48)
    batch |= fine_tuning_batch(RegressionHead(), batch_size=4, seq_length=12, vocab_size=48)
    batch["task_ids"] = np.array([0, 1, 1, 0], np.int32)
    assert set(ENCODER_FIELDS) <= set(batch)

    def losses(objective: MultiTaskObjective, params: Any) -> Any:
        def compute(params: Any, batch: Any) -> Any:
            denominators = objective.loss_denominators(batch)
            return objective.compute_loss(params, batch, denominators, jax.random.key(1)).loss

        return jax.jit(jax.value_and_grad(compute))(params, batch)

    loss, gradients = losses(adapted, params)
    base = {name: tree for name, tree in params.items() if name != "adapter"}
    assert float(loss) == float(losses(plain, base)[0])
    layer = gradients["adapter"]["encoder"]["layers"]["0"]["attention"]["query"]
    assert np.abs(layer["lora_b"]).max() > 0
