"""Tests that accumulation, meshes, layer loops and remat do not change a training step.

Covers bert_jax/train/step.py with BERT and ELECTRA; tests/integration/pretraining_recipes_test.py
has the objectives of all recipes on meshes.
"""

import dataclasses
import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import CausalLM, Pretraining, ReplacedTokens, TokenDropping
from bert_jax.config.train import (
    AdamW,
    Muon,
    Optimizer,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.electra.config import ElectraConfig, generator_config
from bert_jax.models.layers.config import (
    ComputeConfig,
    LearnedPositions,
)
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.step import CompiledStep, TrainSetup, init_state

PHASE = Phase(steps=10, seq_length=32, batch_size=16, max_predictions_per_seq=6)
MODEL = BertConfig(
    vocab_size=104,
    hidden_size=32,
    num_hidden_layers=1,  # compiles faster
    num_attention_heads=4,
    intermediate_size=64,
    positions=LearnedPositions(max_position_embeddings=32),
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
STEPS = 3
COMPUTE, ADAMW = ComputeConfig(), AdamW()


def experiment(
    phase=PHASE,
    model=MODEL,
    compute=COMPUTE,
    preset: Parallelism = "dp",
    program=None,
    optimizer: Optimizer = ADAMW,
):
    return Experiment(
        name="test",
        objective=program or Pretraining(model=model, mask_token_id=4, compute=compute),
        data=PretrainingData(corpus="unused"),
        train=TrainConfig(
            phases=(phase,),
            optimizer=optimizer,
            schedule=WarmupLinear(peak_learning_rate=1e-3, warmup_steps=1),
        ),
        mesh=make_mesh_config(preset),
    )


def train(config: Experiment, devices: int, steps: int = STEPS):
    """Returns parameters and losses after a few steps on random batches."""
    grid = sharding.make_mesh(config.mesh, jax.devices()[:devices])
    phase = config.train.phases[0]
    setup = TrainSetup.from_experiment(config, grid)
    step = setup.compile_step(phase, setup.objective.batch_fields(), [phase.sizes])
    shardings = jax.tree.map(lambda leaf: leaf.sharding, setup.abstract)
    state = jax.device_put(initial_state(config.objective, config.train.optimizer), shardings)
    losses = []
    for number in range(steps):
        batch = pretraining_batch(
            batch_size=phase.batch_size,
            seq_length=phase.seq_length,
            max_predictions_per_seq=phase.max_predictions_per_seq,
            vocab_size=104,
            seed=number,
        )
        fields = {name: batch[name] for name in setup.objective.batch_fields()}
        placed = sharding.put_batch(fields, sharding.batch_sharding(grid))
        state, metrics = step(state, placed)
        losses.append(float(metrics["loss"]))
    return paths.flatten(jax.device_get(state["params"])), losses


@functools.cache
def initial_state(program_config, optimizer: Optimizer = ADAMW):
    """Makes the state once, on one device: the initializer takes long to compile."""
    train_config = experiment(optimizer=optimizer).train
    state = init_state(
        make_objective(program_config), make_optimizer(train_config), jax.random.key(0)
    )
    return jax.device_get(state)


@functools.cache
def one_device(steps: int = STEPS):
    return train(experiment(), 1, steps)


def assert_same(found, expected, tolerance):
    params, losses = found
    np.testing.assert_allclose(losses, expected[1], rtol=tolerance, atol=tolerance)
    for path, leaf in params.items():
        # Adam divides by the gradient's size, so rounding errors are as large as the rate.
        np.testing.assert_allclose(leaf, expected[0][path], atol=tolerance, err_msg=path)


def test_loss_falls_on_the_same_batch():
    _, losses = one_device()
    assert losses[0] == pytest.approx(np.log(104) + np.log(2), abs=0.4)
    assert losses[-1] < losses[0]


# test_dropout_is_the_same_on_eight_devices is the fast one: fsdp_tp splits both the batch and all
# parameters, as the other layouts do one at a time.
@pytest.mark.slow
@pytest.mark.parametrize("preset", ["dp", "fsdp", "tp", "fsdp_tp"])
def test_eight_devices_equal_one(preset):
    assert_same(train(experiment(preset=preset), 8), one_device(), 1e-5)


@pytest.mark.parametrize(
    "preset", ["fsdp_tp", *(pytest.param(p, marks=pytest.mark.slow) for p in ("dp", "fsdp", "tp"))]
)
def test_muon_on_eight_devices_equals_one(preset):
    one = train(experiment(optimizer=Muon()), 1)
    assert one[1] != one_device()[1]
    assert_same(train(experiment(preset=preset, optimizer=Muon()), 8), one, 1e-5)


@pytest.mark.slow
def test_all_pretraining_losses_on_eight_devices_equal_one():
    program = Pretraining(model=MODEL, mask_token_id=4, sop_weight=0.5, sbo_weight=2.0)
    one = train(experiment(program=program), 1)
    expected = np.log(104) + np.log(2) + 0.5 * np.log(2) + 2.0 * np.log(104)
    assert one[1][0] == pytest.approx(expected, abs=1.0)
    phase = dataclasses.replace(PHASE, gradient_accumulation_steps=2)
    assert_same(train(experiment(phase, preset="fsdp_tp", program=program), 8), one, 1e-5)


REPLACED_TOKENS_MODEL = ElectraConfig(
    vocab_size=104,
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=64,
    positions=LearnedPositions(max_position_embeddings=32),
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
REPLACED_TOKENS = ReplacedTokens(
    model=REPLACED_TOKENS_MODEL,
    generator=generator_config(REPLACED_TOKENS_MODEL, 0.5),
    mask_token_id=4,
)


@pytest.mark.slow
def test_accumulation_of_generator_and_discriminator_on_eight_devices():
    one = train(experiment(program=REPLACED_TOKENS), 1)
    assert one[1][0] == pytest.approx(np.log(104) + 50 * np.log(2), abs=2.0)
    phase = dataclasses.replace(PHASE, gradient_accumulation_steps=2)
    assert_same(train(experiment(phase, preset="fsdp_tp", program=REPLACED_TOKENS), 8), one, 1e-5)


def test_token_dropping_with_accumulation_on_eight_devices():
    model = dataclasses.replace(MODEL, num_hidden_layers=2)
    program = Pretraining(model=model, mask_token_id=4, token_dropping=TokenDropping())
    one = train(experiment(program=program), 1)
    average = one[0]["statistics/token_losses"]
    # Special tokens are never predicted, and the optimizer changes no average.
    assert (average[:5] == 10.0).all() and (average[5:] < 10.0).any()
    phase = dataclasses.replace(PHASE, gradient_accumulation_steps=2)
    assert_same(train(experiment(phase, preset="fsdp_tp", program=program), 8), one, 1e-5)


def test_dropout_is_the_same_on_eight_devices():
    model = dataclasses.replace(MODEL, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    one = train(experiment(model=model), 1)
    assert one[1] != one_device()[1]
    assert_same(train(experiment(model=model, preset="fsdp_tp"), 8), one, 1e-5)


@pytest.mark.parametrize("accumulate", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradient_accumulation_equals_the_large_batch(accumulate):
    phase = dataclasses.replace(PHASE, gradient_accumulation_steps=accumulate)
    found, expected = train(experiment(phase), 1, steps=1), one_device(steps=1)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    assert_same(found, expected, 1e-6)


@pytest.mark.slow  # test_all_pretraining_losses_... accumulates on a mesh too
def test_gradient_accumulation_on_a_mesh_equals_the_large_batch():
    phase = dataclasses.replace(PHASE, gradient_accumulation_steps=2)
    assert_same(train(experiment(phase, preset="fsdp"), 8), one_device(), 1e-5)


# tests/models/model_test.py compares the gradients of a scanned loop and of remat, and
# tests/models/seq2seq/network_test.py combines the two.
@pytest.mark.slow
@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(ComputeConfig(layer_loop="scanned"), id="scan"),
        pytest.param(ComputeConfig(remat="full"), id="remat"),
        pytest.param(ComputeConfig(layer_loop="scanned", remat="full"), id="scan-remat"),
        pytest.param(ComputeConfig(layer_loop="scanned", remat="save_dots"), id="scan-dots"),
    ],
)
def test_layer_loop_and_remat_change_nothing(compute):
    model = dataclasses.replace(MODEL, num_hidden_layers=2)
    expected = train(experiment(model=model), 1)
    assert_same(train(experiment(model=model, compute=compute), 1), expected, 1e-5)


def test_loss_with_weight_zero_is_not_computed():
    program = Pretraining(model=MODEL, mask_token_id=4, nsp_weight=0.0)
    assert "next_sentence_labels" not in make_objective(program).batch_fields()
    params, losses = train(experiment(program=program), 1, steps=2)
    fresh = make_objective(program).init(jax.random.key(0))
    weights = fresh["next_sentence"]["kernel"]
    # It has no gradient: only weight decay changes it.
    np.testing.assert_allclose(params["next_sentence/kernel"], weights, rtol=1e-4)
    assert losses[0] == pytest.approx(np.log(104), abs=0.4)


def test_causal_lm_trains():
    _, losses = train(experiment(program=CausalLM(model=MODEL)), 1)
    assert losses[0] == pytest.approx(np.log(104), abs=0.4)
    assert losses[-1] < losses[0]


def test_seed_changes_dropout_but_not_the_program():
    config = experiment(model=dataclasses.replace(MODEL, hidden_dropout_prob=0.1))
    grid = sharding.make_mesh(config.mesh, jax.devices()[:1])
    setups = [
        TrainSetup.from_experiment(dataclasses.replace(config, seed=seed), grid)
        for seed in (0, 1, 1 + 2**32)
    ]
    fields = setups[0].objective.batch_fields()
    programs = [setup.lower_step(PHASE, fields, PHASE.sizes) for setup in setups[:2]]
    assert programs[0].as_text() == programs[1].as_text()

    seeds = [setup.put_seed() for setup in setups]
    assert list(map(int, seeds)) == [0, 1, 1]  # the lowest 32 bits, as in `jax.random.key`
    step = programs[0].compile()
    batch = pretraining_batch(
        batch_size=16, seq_length=32, max_predictions_per_seq=6, vocab_size=104
    )
    placed = sharding.put_batch(
        {name: batch[name] for name in fields}, sharding.batch_sharding(grid)
    )
    shardings = jax.tree.map(lambda leaf: leaf.sharding, setups[0].abstract)
    losses = []
    for seed in seeds[:2]:
        state = jax.device_put(initial_state(config.objective), shardings)
        losses.append(float(step(state, placed, seed)[1]["loss"]))
    assert losses[0] != losses[1]


def test_batch_of_another_shape_is_an_error():
    config = experiment()
    grid = sharding.make_mesh(config.mesh, jax.devices()[:1])
    setup = TrainSetup.from_experiment(config, grid)
    step = setup.compile_step(PHASE, setup.objective.batch_fields(), [PHASE.sizes])
    state = initial_state(config.objective)
    batch = pretraining_batch(
        batch_size=16, seq_length=16, max_predictions_per_seq=6, vocab_size=104
    )
    with pytest.raises(ValueError, match=r"sequence length 16; .* compiled for \[32\]"):
        step(state, jax.tree.map(jnp.asarray, batch))


def _batch(length: int) -> dict[str, jax.Array]:
    return {"input_ids": jnp.zeros((2, length), jnp.int32)}


def test_first_steps_run_while_programs_of_other_lengths_are_compiled():
    compiled, gate = list[int](), threading.Event()

    def compile_length(length: int):
        if compiled:
            assert gate.wait(30)
        compiled.append(length)
        return lambda state, batch, seed: ({"step": state["step"] + 1}, {"L": jnp.int32(length)})

    step = CompiledStep(compile_length, (16, 32, 64), jnp.uint32(0))
    state, metrics = step({"step": 0}, _batch(32))
    assert (state, metrics["L"], compiled) == ({"step": 1}, 32, [32])
    gate.set()
    state, metrics = step(state, _batch(16))
    assert (state, metrics["L"]) == ({"step": 2}, 16)
    assert compiled == [32, 64, 16]  # the longest first, and each once
    step.close()


def test_program_that_cannot_be_compiled_ends_the_run_at_the_next_step():
    gate = threading.Event()

    def compile_length(length: int):
        if length == 64:
            assert gate.wait(30)
            raise MemoryError("out of memory")
        return lambda state, batch, seed: (state, {})

    step = CompiledStep(compile_length, (16, 64), jnp.uint32(0))
    step.prepare(16)
    gate.set()
    with pytest.raises(MemoryError, match="out of memory"):
        for _ in range(3000):
            step({}, _batch(16))
            time.sleep(0.01)
    step.close()
