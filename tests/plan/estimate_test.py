"""State, time and cost against numbers worked out by hand for BERT-base, and what cannot be."""

import dataclasses

import pytest

from bert_jax.config_lib import override
from bert_jax.data.config import PackedSegments, PretrainingData
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.hardware.tpu_slices import all_slices, find_slice
from bert_jax.models.config import BertSize, ComputeConfig, bert_config
from bert_jax.objectives.config import Pretraining
from bert_jax.parallel.config import Parallelism, make_mesh_config
from bert_jax.plan.estimate import RunPlan, make_plan
from bert_jax.plan.inputs import make_inputs
from bert_jax.plan.state_bytes import state_bytes
from bert_jax.plan.suggestions import suggest
from bert_jax.plan.table import describe_plan
from bert_jax.plan.timing import link_axes, min_batch_size
from bert_jax.train.config import HeldOutEval, Lamb, Phase, TrainConfig
from bert_jax.tuning.config import TuningConfig

GIB = 2**30
# Of BERT-base by hand: the tables of V words, 512 positions and 2 types; 12 layers of 4 (D^2 + D)
# attention, 2 D F + F + D feed-forward and 2 norms of 2 D; the embeddings' norm; pooler; the
# masked-LM transform with its norm, and V biases; 2 classes of next sentence.
V, D, F = 30522, 768, 3072
LAYER = 4 * (D * D + D) + (2 * D * F + F + D) + 4 * D
BASE = (V + 512 + 2) * D + 2 * D + 12 * LAYER + 2 * (D * D + D) + 2 * D + V + (2 * D + 2)


def experiment(
    size: BertSize = "base", *, layout: Parallelism = "dp", batch_size=256, train=None, **program
) -> Experiment:
    """The paper's recipe."""
    phases = (
        Phase(steps=900_000, seq_length=128, batch_size=batch_size, max_predictions_per_seq=20),
        Phase(steps=100_000, seq_length=512, batch_size=batch_size, max_predictions_per_seq=77),
    )
    program = {"compute": ComputeConfig(dtype="bfloat16"), **program}
    return Experiment(
        name=f"bert-{size}",
        objective=Pretraining(model=bert_config(size), mask_token_id=103, **program),
        data=PretrainingData(corpus="not there"),
        train=TrainConfig(phases=phases, **(train or {})),
        mesh=make_mesh_config(layout),
    )


def on_demand(plan: RunPlan) -> tuple[float, float]:
    usd = plan.usd(spot=False)
    assert usd is not None
    return usd


def test_parameters_are_those_of_bert_base():
    assert BASE == 110_106_428
    state = state_bytes(experiment(), 16)
    assert state.num_parameters == BASE
    assert state.parameters == state.gradients == 4 * BASE
    # Two moments for each parameter, and two counts of steps: Adam's and the schedule's.
    assert state.optimizer == 8 * BASE + 8


@pytest.mark.parametrize(("layout", "parts"), [("fsdp", 16), ("tp", 2), ("fsdp_tp", 16)])
def test_sharded_state_is_a_part_and_what_cannot_be_split(layout, parts):
    """Biases and norms are whole on each device, and V is not a multiple of 16 or 4."""
    state = state_bytes(experiment(layout=layout), 16)
    assert 4 * BASE / parts < state.parameters < 4 * BASE / parts * 1.03 + 1e6
    assert state.gradients == state.parameters
    assert state.optimizer == 2 * state.parameters + 8


def test_fsdp_by_hand():
    """Over 16 devices every kernel and table is cut in 16 along D; vectors stay whole."""
    vectors = 12 * (9 * D + F) + 2 * D + 2 * D + 2 * D + V + 2
    assert state_bytes(experiment(layout="fsdp"), 16).parameters == 4 * (
        (BASE - vectors) // 16 + vectors
    )


def test_lamb_has_adams_moments():
    assert state_bytes(experiment(train={"optimizer": Lamb()}), 16).optimizer == 8 * BASE + 8


def test_frozen_parameters_have_neither_gradients_nor_moments():
    tuning = TuningConfig(frozen=("encoder/embeddings/**", "encoder/layers/0/**"))
    state = state_bytes(experiment(train={"tuning": tuning}), 16)
    still = (V + 512 + 2) * D + 2 * D + LAYER
    assert state.parameters == 4 * BASE
    assert state.gradients == 4 * (BASE - still)
    assert state.optimizer == pytest.approx(8 * (BASE - still), abs=16)
    assert state.lowest_trainable_layer == 2


def test_flops_tokens_and_hours_by_hand():
    """6 FLOPs a kernel's parameter and a token, attention, the heads; at 40 % of 16 x 197 T."""
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


def test_gradients_over_the_links_by_hand():
    """v5e 4x4: 2 x 15/16 of 0.44 GB through two links of 45 GB/s at a corner."""
    step = make_plan(experiment(), find_slice("v5e-16")).phases[0].step
    assert step.gradient_comm == pytest.approx(2 * 15 / 16 * 4 * BASE / (2 * 45e9))
    # 28 bytes a parameter: p, m, v read and written, g read.
    assert step.optimizer == pytest.approx(28 * BASE / 819e9, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "hours", "usd"),
    [("v5e-16", (5.3, 9), 173), ("v4-32", (3.8, 6), 320), ("v6e-16", (1.3, 3.2), 138)],
)
def test_the_papers_recipe_costs_what_was_worked_out_elsewhere(name, hours, usd):
    """A published back-of-envelope of the same bounds: 40 % of peak, 35 % on v6e; to 12 %."""
    plan = make_plan(experiment(), find_slice(name), mfu=0.35 if name == "v6e-16" else 0.4)
    assert plan.hours == pytest.approx(hours, rel=0.12)
    assert on_demand(plan)[1] == pytest.approx(usd, rel=0.12)


def test_two_devices_of_a_chip_sum_between_themselves():
    """Half-chips share the chip's links, and its HBM's speed; 16 chips exchange, not 32 devices."""
    step = make_plan(experiment(), find_slice("v3-32")).phases[0].step
    assert step.gradient_comm == pytest.approx(2 * 15 / 16 * 4 * BASE / (2 * 100e9))
    assert step.optimizer == pytest.approx(2 * 28 * BASE / 900e9, rel=1e-4)


def test_fsdp_gathers_parameters_and_sums_gradients():
    """As the compiled step does: 220 MB gathered and 222 MB summed in bfloat16 (docs/tpu.md)."""
    plan = make_plan(experiment(layout="fsdp"), find_slice("v5e-16"))
    whole = 16 * plan.state.parameters
    assert plan.phases[0].step.gradient_comm == pytest.approx(3 * 15 / 16 * whole / (2 * 45e9))
    rounded = dataclasses.replace(experiment(), mesh=make_mesh_config("fsdp", "bfloat16"))
    narrow = make_plan(rounded, find_slice("v5e-16"))
    assert narrow.phases[0].step.gradient_comm == pytest.approx(
        plan.phases[0].step.gradient_comm / 2
    )


def test_tensor_parallel_layers_sum_activations():
    """48 sums over two chips of [16 rows x 2, 128, 768] in bf16, beside gradients over 8."""
    plan = make_plan(experiment(layout="tp"), find_slice("v5e-16"))
    step = plan.phases[0].step
    assert step.activation_comm == pytest.approx(48 * 2 * (1 / 2) * (32 * 128 * 768 * 2) / 45e9)
    assert step.gradient_comm == pytest.approx(2 * 7 / 8 * plan.state.gradients / (2 * 45e9))
    assert (
        step.no_overlap == step.compute + step.gradient_comm + step.activation_comm + step.optimizer
    )


def test_layers_cut_between_two_devices_of_a_chip_sum_for_nothing():
    """Their gradients, half the model on each, go over the links of one chip."""
    plan = make_plan(experiment(layout="tp"), find_slice("v3-32"))
    step = plan.phases[0].step
    assert step.activation_comm == 0
    assert step.gradient_comm == pytest.approx(2 * 15 / 16 * 2 * plan.state.gradients / (2 * 100e9))


def test_the_batch_that_is_advised_is_enough_or_none_is():
    where = find_slice("v6e-16")
    step = make_plan(experiment(), where).phases[0].step
    rows = min_batch_size(step, 256, 16)
    assert rows is not None and rows % 16 == 0
    more = make_plan(experiment(batch_size=rows), where).phases[0].step
    assert more.gradient_comm + more.optimizer <= 0.1 * more.compute
    fewer = make_plan(experiment(batch_size=rows - 16), where).phases[0].step
    assert fewer.gradient_comm + fewer.optimizer > 0.1 * fewer.compute
    # Sums of activations grow with the batch: no number of rows makes them a tenth.
    cut = make_plan(experiment(layout="tp"), where)
    assert min_batch_size(cut.phases[0].step, 256, 8) is None
    told = describe_plan(cut)
    assert "whatever the\nbatch (--set mesh.tensor=1" in told and "rows on it would" not in told


def test_layers_below_the_lowest_that_moves_have_no_backward_pass():
    tuning = TuningConfig(
        frozen=("encoder/embeddings/**", *(f"encoder/layers/{k}/**" for k in range(9)))
    )
    where = find_slice("v5e-16")
    whole = make_plan(experiment(), where).phases[0].step.flops
    some = make_plan(experiment(train={"tuning": tuning}), where).phases[0].step.flops
    encoder = 12 * (8 * D * D + 4 * D * F + 4 * 128 * D) * 256 * 128
    assert whole - some == pytest.approx(2 * 9 / 12 * encoder)


def test_neighbours_of_a_chip():
    axes = {name: link_axes(each) for name, each in all_slices().items()}
    assert axes["v5e-16"] == axes["v5e-4"] == axes["v4-8"] == 2
    assert axes["v4-32"] == axes["tpu7x-32"] == 3


def test_recomputed_layers_cost_a_forward_pass():
    again = override(experiment(), ['objective.compute.remat={"type": "FullRemat"}'])
    where = find_slice("v5e-16")
    before, after = make_plan(experiment(), where), make_plan(again, where)
    assert after.phases[1].step.compute == pytest.approx(4 / 3 * before.phases[1].step.compute)
    assert after.phases[1].step.flops == before.phases[1].step.flops
    assert after.memory.total < before.memory.total


def test_microbatches_keep_less_and_add_up_gradients():
    cut = override(experiment(), ["train.phases.1.gradient_accumulation_steps=4"])
    where = find_slice("v5e-16")
    before, after = make_plan(experiment(), where).phases[1], make_plan(cut, where).phases[1]
    assert after.per_device_batch_size == before.per_device_batch_size // 4 == 4
    assert (before.memory.accumulated_gradients, after.memory.accumulated_gradients) == (
        0,
        4 * BASE,
    )
    words = 4 * V * D  # their gradient does not depend on the rows
    assert after.memory.activations - words == (before.memory.activations - words) // 4


def test_a_packed_corpus_has_the_fields_of_packing():
    packed = dataclasses.replace(
        experiment(nsp_weight=0.0),
        data=PretrainingData(corpus="not there", input_format=PackedSegments()),
    )
    (short, _) = make_inputs(packed)
    assert {"position_ids", "packing_ids"} < set(short.fields)
    assert short.batch_spec()["input_ids"] == ((256, 128), "int32")
    with pytest.raises(
        ConfigError, match=r"needs the field 'next_sentence_labels', which .*Packed"
    ):
        make_inputs(dataclasses.replace(experiment(), data=packed.data))


def test_no_list_price_is_no_price():
    plan = make_plan(experiment(), find_slice("tpu7x-32"))
    assert plan.usd(spot=True) is None
    assert on_demand(plan)[0] == pytest.approx(192 * plan.hours[0])


# What cannot be


@pytest.mark.parametrize("mfu", [0.0, -0.1, 1.5])
def test_mfu_is_a_share(mfu):
    with pytest.raises(ConfigError, match="expected a share of the peak"):
        make_plan(experiment(), find_slice("v5e-16"), mfu=mfu)


@pytest.mark.parametrize(
    ("batch_size", "nearest"), [(100, "96 or 112"), (7, "16"), (8192 + 1, "8192 or 8208")]
)
def test_a_batch_that_does_not_divide_names_those_that_do(batch_size, nearest):
    message = (
        rf"batch_size is {batch_size}, which v5e-16 cannot .*16 groups.*can: {nearest} \(--set"
    )
    with pytest.raises(ConfigError, match=message):
        make_plan(experiment(batch_size=batch_size), find_slice("v5e-16"))


def test_microbatches_and_evaluation_must_divide_too():
    cut = override(experiment(), ["train.phases.0.gradient_accumulation_steps=32"])
    with pytest.raises(
        ConfigError, match=r"phases.0.batch_size is 256.*32 microbatches on 16.*512"
    ):
        make_plan(cut, find_slice("v5e-16"))
    evaluated = experiment(train={"evaluation": HeldOutEval(corpus="no", batch_size=24)})
    with pytest.raises(ConfigError, match=r"train.evaluation.batch_size is 24.*16 or 32"):
        make_plan(evaluated, find_slice("v5e-16"))


def test_a_mesh_that_does_not_fit_the_slice():
    with pytest.raises(ConfigError, match="does not fit 16 devices"):
        make_plan(override(experiment(), ["mesh.tensor=3"]), find_slice("v5e-16"))


# What to change


def test_each_way_out_fits_and_they_are_ordered_by_cost():
    plan = make_plan(experiment("large", batch_size=512), find_slice("v5e-16"))
    assert not plan.fits
    ways = suggest(plan)
    assert len(ways) == 3
    assert all(way.plan.fits for way in ways)
    costs = [on_demand(way.plan)[1] for way in ways]
    assert costs == sorted(costs)
    kinds = {way.description.rstrip("0123456789") for way in ways}
    assert len(kinds) == 3
    for way in ways:  # what is said to be set gives the plan that was promised
        again = make_plan(override(plan.experiment, way.overrides), way.plan.tpu_slice)
        assert again.memory == way.plan.memory
    assert any(way.plan.tpu_slice != plan.tpu_slice for way in ways)


def test_microbatches_are_as_few_as_fit():
    plan = make_plan(experiment("large", batch_size=512), find_slice("v5e-16"))
    (way,) = (way for way in suggest(plan) if "microbatches" in way.description)
    parts = int(way.description.split()[0])
    field = "train.phases.1.gradient_accumulation_steps"
    assert way.overrides == (f"{field}={parts}",)  # the short phase fits
    fewer = override(plan.experiment, [f"{field}={parts // 2}"])
    assert not make_plan(fewer, plan.tpu_slice).fits


def test_ways_are_put_together_where_one_is_not_enough():
    """A model whose state alone fills a device must be shared out, whatever else is done."""
    huge = experiment("large", batch_size=2048)
    model = dataclasses.replace(huge.objective.model, num_hidden_layers=72, hidden_dropout_prob=0.0)
    huge = dataclasses.replace(huge, objective=dataclasses.replace(huge.objective, model=model))
    plan = make_plan(huge, find_slice("v5e-16"))
    here = [way for way in suggest(plan) if way.plan.tpu_slice == plan.tpu_slice]
    assert here and all(way.plan.fits for way in here)
    assert all("mesh.fsdp=-1" in way.overrides and len(way.overrides) > 2 for way in here)


def test_nothing_helps_a_model_that_no_slice_holds():
    vast = experiment("large")
    model = dataclasses.replace(
        vast.objective.model, num_hidden_layers=4, hidden_size=65536, intermediate_size=4 * 65536
    )
    vast = dataclasses.replace(vast, objective=dataclasses.replace(vast.objective, model=model))
    assert suggest(make_plan(vast, find_slice("v5e-16"))) == []
