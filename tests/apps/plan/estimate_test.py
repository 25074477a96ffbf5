"""Compares state, time, and cost of BERT-base with numbers computed by hand.

Covers bert_jax/apps/plan/estimate.py, bert_jax/apps/plan/memory.py,
bert_jax/apps/plan/timing.py, and bert_jax/apps/plan/inputs.py.
"""

import dataclasses

import pytest

from bert_jax.apps.plan.estimate import RunPlan, make_plan, suggest
from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.apps.plan.memory import state_bytes
from bert_jax.apps.plan.table import describe_plan
from bert_jax.apps.plan.timing import min_batch_size
from bert_jax.config.config_lib import override
from bert_jax.config.data import PackedSegments, PretrainingData
from bert_jax.config.distillation import TEACHER_PARAMS, PretrainingDistillation, Teacher
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    HeldOutEval,
    Lamb,
    Parallelism,
    Phase,
    TrainConfig,
    make_mesh_config,
)
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig, BertSize
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.parallel.tpu_slices import find_slice

GIB = 2**30
# Parameters of BERT-base: embeddings of V tokens, 512 positions, and 2 token types; 12 layers of
# 4 (D^2 + D) attention, 2 D F + F + D feed-forward, and 2 norms of 2 D; the norm of the embeddings;
# the pooler; the masked-LM transform with its norm, and V biases; 2 next-sentence classes.
V, D, F = 30522, 768, 3072
LAYER = 4 * (D * D + D) + (2 * D * F + F + D) + 4 * D
BASE = (V + 512 + 2) * D + 2 * D + 12 * LAYER + 2 * (D * D + D) + 2 * D + V + (2 * D + 2)


def experiment(
    size: BertSize = "base",
    *,
    parallelism: Parallelism = "dp",
    batch_size=256,
    train=None,
    **program,
) -> Experiment:
    """Returns the recipe of the BERT paper."""
    phases = (
        Phase(steps=900_000, seq_length=128, batch_size=batch_size, max_predictions_per_seq=20),
        Phase(steps=100_000, seq_length=512, batch_size=batch_size, max_predictions_per_seq=77),
    )
    program = {"compute": ComputeConfig(dtype="bfloat16"), **program}
    return Experiment(
        name=f"bert-{size}",
        objective=Pretraining(model=BertConfig.from_size(size), mask_token_id=103, **program),
        data=PretrainingData(corpus="not there"),
        train=TrainConfig(phases=phases, **(train or {})),
        mesh=make_mesh_config(parallelism),
    )


def on_demand(plan: RunPlan) -> tuple[float, float]:
    usd = plan.usd(spot=False)
    assert usd is not None
    return usd


def test_state_bytes_of_bert_base():
    assert BASE == 110_106_428
    state = state_bytes(experiment(), 16)
    assert state.num_parameters == BASE
    assert state.parameters == state.gradients == 4 * BASE
    # Two moments per parameter, and two step counters: Adam's and the schedule's.
    assert state.optimizer == 8 * BASE + 8


@pytest.mark.parametrize(("parallelism", "num_shards"), [("fsdp", 16), ("tp", 2), ("fsdp_tp", 16)])
def test_sharded_state_bytes_by_parallelism(parallelism, num_shards):
    """Biases and norms are replicated, and V is not a multiple of 16 or 4."""
    state = state_bytes(experiment(parallelism=parallelism), 16)
    assert 4 * BASE / num_shards < state.parameters < 4 * BASE / num_shards * 1.03 + 1e6
    assert state.gradients == state.parameters
    assert state.optimizer == 2 * state.parameters + 8


def test_fsdp_state_bytes_by_hand():
    """Every kernel and table is sharded over 16 devices along D; vectors are replicated."""
    vectors = 12 * (9 * D + F) + 2 * D + 2 * D + 2 * D + V + 2
    assert state_bytes(experiment(parallelism="fsdp"), 16).parameters == 4 * (
        (BASE - vectors) // 16 + vectors
    )


def test_lamb_state_bytes_equal_adam():
    assert state_bytes(experiment(train={"optimizer": Lamb()}), 16).optimizer == 8 * BASE + 8


def test_frozen_parameters_have_no_gradients_or_moments():
    tuning = TuningConfig(frozen=("encoder/embeddings/**", "encoder/layers/0/**"))
    state = state_bytes(experiment(train={"tuning": tuning}), 16)
    frozen = (V + 512 + 2) * D + 2 * D + LAYER
    assert state.parameters == 4 * BASE
    assert state.gradients == 4 * (BASE - frozen)
    assert state.optimizer == pytest.approx(8 * (BASE - frozen), abs=16)
    assert state.lowest_trainable_layer == 2


def test_teacher_parameters_are_counted_apart():
    teacher = Teacher(path="not there", model=BertConfig.from_size("base"))
    plan = make_plan(
        experiment(
            "tiny",
            nsp_weight=0.0,
            distillation=PretrainingDistillation(teacher=teacher, cosine_weight=0.0),
            train={"tuning": TuningConfig(frozen=(TEACHER_PARAMS,))},
        ),
        find_slice("v5e-16"),
    )
    # Only the student has the pooler and the next-sentence head.
    without_pooler = BASE - (D * D + D) - (2 * D + 2)
    tiny = 4_433_468
    state = plan.state
    assert (state.num_parameters, state.num_teacher_parameters) == (tiny, without_pooler)
    assert state.gradients == 4 * tiny and state.parameters == 4 * (tiny + without_pooler)
    text = describe_plan(plan)
    assert f"{tiny:,} parameters and {without_pooler:,} of the teacher, which are not" in text


def test_flops_tokens_and_hours_by_hand():
    """6 FLOPs per kernel parameter and token, attention, and heads, at 40 % of 16 x 197 TFLOP/s."""
    plan = make_plan(experiment(), find_slice("v5e-16"), mfu=0.4)
    short, long = (phase.step for phase in plan.phases)
    assert (short.tokens, long.tokens) == (256 * 128, 256 * 512)
    products = 12 * (4 * D * D + 2 * D * F)
    for step, length, predictions in ((short, 128, 20), (long, 512, 77)):
        encoder = 6 * products * 256 * length + 12 * 12 * length * D * 256 * length
        head = 6 * 256 * predictions * (D * D + D * V) + 6 * 256 * (D * D + 2 * D)
        assert step.flops == pytest.approx(encoder + head, rel=1e-12)
        assert step.compute == pytest.approx(step.flops / (0.4 * 16 * 197e12))
    total = 900_000 * short.flops + 100_000 * long.flops
    assert total == pytest.approx(2.4e19, rel=0.02)
    assert plan.hours[0] == pytest.approx(total / (0.4 * 16 * 197e12) / 3600)


def test_gradient_communication_by_hand():
    """v5e 4x4: 2 x 15/16 of 0.44 GB over the two 45 GB/s links of a corner chip."""
    step = make_plan(experiment(), find_slice("v5e-16")).phases[0].step
    assert step.gradient_comm == pytest.approx(2 * 15 / 16 * 4 * BASE / (2 * 45e9))
    # 28 bytes per parameter: p, m, and v are read and written, g is read.
    assert step.optimizer == pytest.approx(28 * BASE / 819e9, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "hours", "usd"),
    [("v5e-16", (5.3, 9), 173), ("v4-32", (3.8, 6), 320), ("v6e-16", (1.3, 3.2), 138)],
)
def test_hours_and_cost_of_paper_recipe_match_independent_estimate(name, hours, usd):
    """Compares with an independent estimate of the same bounds: MFU 40 %, on v6e 35 %."""
    plan = make_plan(experiment(), find_slice(name), mfu=0.35 if name == "v6e-16" else 0.4)
    assert plan.hours == pytest.approx(hours, rel=0.12)
    assert on_demand(plan)[1] == pytest.approx(usd, rel=0.12)


def test_two_devices_per_chip_share_links_and_hbm():
    """Two devices share a chip's links and HBM: 16 chips communicate, not 32 devices."""
    step = make_plan(experiment(), find_slice("v3-32")).phases[0].step
    assert step.gradient_comm == pytest.approx(2 * 15 / 16 * 4 * BASE / (2 * 100e9))
    assert step.optimizer == pytest.approx(2 * 28 * BASE / 900e9, rel=1e-4)


def test_fsdp_communication_counts_gather_and_reduce():
    """The compiled step gathers 220 MB and reduces 222 MB in bfloat16 (docs/tpu.md)."""
    plan = make_plan(experiment(parallelism="fsdp"), find_slice("v5e-16"))
    whole = 16 * plan.state.parameters
    assert plan.phases[0].step.gradient_comm == pytest.approx(3 * 15 / 16 * whole / (2 * 45e9))
    bf16_experiment = dataclasses.replace(experiment(), mesh=make_mesh_config("fsdp", "bfloat16"))
    bf16_plan = make_plan(bf16_experiment, find_slice("v5e-16"))
    assert bf16_plan.phases[0].step.gradient_comm == pytest.approx(
        plan.phases[0].step.gradient_comm / 2
    )


def test_tensor_parallel_activation_communication():
    """48 all-reduces of [16 x 2, 128, 768] in bf16 over two chips, and gradients over 8."""
    plan = make_plan(experiment(parallelism="tp"), find_slice("v5e-16"))
    step = plan.phases[0].step
    assert step.activation_comm == pytest.approx(48 * 2 * (1 / 2) * (32 * 128 * 768 * 2) / 45e9)
    assert step.gradient_comm == pytest.approx(2 * 7 / 8 * plan.state.gradients / (2 * 45e9))
    assert (
        step.no_overlap == step.compute + step.gradient_comm + step.activation_comm + step.optimizer
    )


def test_t5_state_and_communication_by_hand():
    """T5 1.1 base with Adafactor: rows and columns of each matrix, not its elements."""
    config, _ = planned_experiment(
        "configs/pretrain/t5.py", ["size=base", "parallelism=tp"], [], 32128
    )
    T5_F, T5_V = 2048, 32128
    kernels, norms = 12 * (12 * D * D + 6 * D * T5_F), (12 * 5 + 2) * D
    state = state_bytes(dataclasses.replace(config, mesh=make_mesh_config("dp")), 16)
    assert state.num_parameters == kernels + norms + 2 * T5_V * D + 2 * 32 * 12
    factored = 12 * (12 * (2 * D + 1) + 6 * (D + T5_F + 1)) + 2 * (T5_V + D + 1)
    unfactored = norms + 2 * 62 + 2 * (32 * 12 + 2)  # vectors, and the two relative biases
    assert state.optimizer == 4 * (factored + unfactored + 2)
    # 4 all-reduces of sources in an encoder layer, 6 of targets in a decoder layer, one of the
    # encoder's output: of 128 / 8 sequences in bf16, over two chips.
    step = make_plan(config, find_slice("v5e-16")).phases[0].step
    reduced_tokens = 16 * (49 * 512 + 72 * 128)
    assert step.activation_comm == pytest.approx(2 * (1 / 2) * reduced_tokens * D * 2 / 45e9)


def test_tensor_parallel_within_a_chip_is_free():
    """The gradients of both devices, half the model each, share the links of one chip."""
    plan = make_plan(experiment(parallelism="tp"), find_slice("v3-32"))
    step = plan.phases[0].step
    assert step.activation_comm == 0
    assert step.gradient_comm == pytest.approx(2 * 15 / 16 * 2 * plan.state.gradients / (2 * 100e9))


def test_min_batch_size_suffices_or_is_none():
    tpu_slice = find_slice("v6e-16")
    step = make_plan(experiment(), tpu_slice).phases[0].step
    rows = min_batch_size(step, 256, 16)
    assert rows is not None and rows % 16 == 0
    more = make_plan(experiment(batch_size=rows), tpu_slice).phases[0].step
    assert more.gradient_comm + more.optimizer <= 0.1 * more.compute
    fewer = make_plan(experiment(batch_size=rows - 16), tpu_slice).phases[0].step
    assert fewer.gradient_comm + fewer.optimizer > 0.1 * fewer.compute
    # Activation communication grows with the batch, so no batch size makes it small.
    sharded = make_plan(experiment(parallelism="tp"), tpu_slice)
    assert min_batch_size(sharded.phases[0].step, 256, 8) is None
    text = describe_plan(sharded)
    assert "any batch size (--set mesh.tensor=1" in text and "it would be 10 %" not in text


def test_frozen_lower_layers_have_no_backward_flops():
    tuning = TuningConfig(
        frozen=("encoder/embeddings/**", *(f"encoder/layers/{k}/**" for k in range(9)))
    )
    tpu_slice = find_slice("v5e-16")
    whole = make_plan(experiment(), tpu_slice).phases[0].step.flops
    some = make_plan(experiment(train={"tuning": tuning}), tpu_slice).phases[0].step.flops
    encoder = 12 * (8 * D * D + 4 * D * F + 4 * 128 * D) * 256 * 128
    assert whole - some == pytest.approx(2 * 9 / 12 * encoder)


def test_weak_scaling_costs_only_communication():
    # 16 times the chips and sequences: the compute of a chip is the same, and a ring has twice the
    # links of a corner.
    small, large = (
        make_plan(
            override(experiment(), [f"train.phases.0.batch_size={batch_size}"]), find_slice(name)
        ).phases[0]
        for name, batch_size in (("v5e-16", 512), ("v5e-256", 8192))
    )
    assert large.step.compute == pytest.approx(small.step.compute)
    assert large.step.gradient_comm == pytest.approx(
        small.step.gradient_comm * (255 / 256) / (15 / 16) / 2
    )


def test_remat_adds_a_forward_pass_to_compute_time():
    recomputed = override(experiment(), ['objective.compute.remat="full"'])
    tpu_slice = find_slice("v5e-16")
    before, after = make_plan(experiment(), tpu_slice), make_plan(recomputed, tpu_slice)
    assert after.phases[1].step.compute == pytest.approx(4 / 3 * before.phases[1].step.compute)
    assert after.phases[1].step.flops == before.phases[1].step.flops
    assert after.memory.total < before.memory.total


def test_gradient_accumulation_memory():
    accumulated = override(experiment(), ["train.phases.1.gradient_accumulation_steps=4"])
    tpu_slice = find_slice("v5e-16")
    before, after = (
        make_plan(experiment(), tpu_slice).phases[1],
        make_plan(accumulated, tpu_slice).phases[1],
    )
    assert after.per_device_batch_size == before.per_device_batch_size // 4 == 4
    assert (before.memory.accumulated_gradients, after.memory.accumulated_gradients) == (
        0,
        4 * BASE,
    )
    words = 4 * V * D  # their gradient does not depend on the batch size
    activations = (before.memory.activations - words) / 4
    assert after.memory.activations - words == pytest.approx(activations, rel=0.05)


def test_packed_corpus_has_packing_fields():
    packed = dataclasses.replace(
        experiment(nsp_weight=0.0),
        data=PretrainingData(corpus="not there", input_format=PackedSegments()),
    )
    (short, _) = make_inputs(packed)
    assert {"position_ids", "packing_ids"} < set(short.fields)
    assert short.batch_spec()["input_ids"] == ((256, 128), "int32")
    with pytest.raises(
        ConfigError, match=r"needs the batch field 'next_sentence_labels', but .*Packed"
    ):
        make_inputs(dataclasses.replace(experiment(), data=packed.data))


def test_missing_list_price_is_none():
    plan = make_plan(experiment(), find_slice("tpu7x-32"))
    assert plan.usd(spot=True) is None
    assert on_demand(plan)[0] == pytest.approx(192 * plan.hours[0])


# Invalid plans


@pytest.mark.parametrize("mfu", [0.0, -0.1, 1.5])
def test_mfu_out_of_range_is_an_error(mfu):
    with pytest.raises(ConfigError, match="expected a fraction of the peak"):
        make_plan(experiment(), find_slice("v5e-16"), mfu=mfu)


@pytest.mark.parametrize(
    ("batch_size", "nearest"), [(100, "96 or 112"), (7, "16"), (8192 + 1, "8192 or 8208")]
)
def test_indivisible_batch_size_error_names_nearest(batch_size, nearest):
    message = rf"batch_size is {batch_size}, expected a multiple of 16 on .* is {nearest}: --set"
    with pytest.raises(ConfigError, match=message):
        make_plan(experiment(batch_size=batch_size), find_slice("v5e-16"))


def test_indivisible_microbatches_and_evaluation_are_errors():
    accumulated = override(experiment(), ["train.phases.0.gradient_accumulation_steps=32"])
    with pytest.raises(
        ConfigError, match=r"phases.0.batch_size is 256.*multiple of 512.*32 microbatches.*512"
    ):
        make_plan(accumulated, find_slice("v5e-16"))
    evaluated = experiment(train={"evaluation": HeldOutEval(corpus="no", batch_size=24)})
    with pytest.raises(ConfigError, match=r"train.evaluation.batch_size is 24.*16 or 32"):
        make_plan(evaluated, find_slice("v5e-16"))


def test_mesh_that_does_not_fit_slice_is_an_error():
    with pytest.raises(ConfigError, match="does not fit 16 devices"):
        make_plan(override(experiment(), ["mesh.tensor=3"]), find_slice("v5e-16"))
    with pytest.raises(ConfigError, match=r"mesh.tensor is 8, but a process has 4"):
        make_plan(override(experiment(), ["mesh.tensor=8"]), find_slice("v5e-16"))


# Suggestions


def too_large() -> Experiment:
    """Returns a run that does not fit 16 chips; few layers are traced in a sixth of the time."""
    large = experiment("large", batch_size=2560)
    model = dataclasses.replace(large.objective.model, num_hidden_layers=4)
    return dataclasses.replace(large, objective=dataclasses.replace(large.objective, model=model))


def test_suggestions_fit_and_are_sorted_by_cost():
    plan = make_plan(too_large(), find_slice("v5e-16"))
    assert not plan.fits
    suggestions = suggest(plan)
    assert len(suggestions) == 3
    assert all(suggestion.plan.fits for suggestion in suggestions)
    costs = [on_demand(suggestion.plan)[1] for suggestion in suggestions]
    assert costs == sorted(costs)
    kinds = {suggestion.description.rstrip("0123456789") for suggestion in suggestions}
    assert len(kinds) == 3
    for suggestion in suggestions:  # applying the suggestion gives the suggested plan
        replanned = make_plan(
            override(plan.experiment, suggestion.overrides), suggestion.plan.tpu_slice
        )
        assert replanned.memory == suggestion.plan.memory
    assert any(suggestion.plan.tpu_slice != plan.tpu_slice for suggestion in suggestions)


def test_suggestion_uses_fewest_microbatches():
    plan = make_plan(too_large(), find_slice("v5e-16"))
    (suggestion,) = (
        suggestion for suggestion in suggest(plan) if "microbatches" in suggestion.description
    )
    num_microbatches = int(suggestion.description.split()[0])
    field = "train.phases.1.gradient_accumulation_steps"
    assert suggestion.overrides == (f"{field}={num_microbatches}",)  # the short phase fits already
    fewer = override(plan.experiment, [f"{field}={num_microbatches // 2}"])
    assert not make_plan(fewer, plan.tpu_slice).fits


def test_changes_are_combined_if_one_is_not_enough():
    """A model whose state alone fills a device must be sharded in any case."""
    huge = experiment("large", batch_size=2048)
    sizes = {"num_hidden_layers": 6, "hidden_size": 4096, "intermediate_size": 16384}
    model = dataclasses.replace(huge.objective.model, **sizes, hidden_dropout_prob=0.0)
    huge = dataclasses.replace(huge, objective=dataclasses.replace(huge.objective, model=model))
    plan = make_plan(huge, find_slice("v5e-16"))
    here = [
        suggestion for suggestion in suggest(plan) if suggestion.plan.tpu_slice == plan.tpu_slice
    ]
    assert here and all(suggestion.plan.fits for suggestion in here)
    assert all(
        "mesh.fsdp=-1" in suggestion.overrides and len(suggestion.overrides) > 2
        for suggestion in here
    )


def test_no_suggestion_for_model_too_large_for_every_slice():
    vast = experiment("large")
    model = dataclasses.replace(
        vast.objective.model, num_hidden_layers=4, hidden_size=65536, intermediate_size=4 * 65536
    )
    vast = dataclasses.replace(vast, objective=dataclasses.replace(vast.objective, model=model))
    assert suggest(make_plan(vast, find_slice("v5e-16"))) == []
