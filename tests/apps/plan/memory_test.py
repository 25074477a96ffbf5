"""Compares memory that is traced from the loss with recorded results of libtpu, and by hand.

Covers bert_jax/apps/plan/memory.py and bert_jax/apps/plan/trace.py.
"""

import dataclasses
from typing import Any

import pytest

from bert_jax.apps.plan.estimate import make_plan
from bert_jax.apps.plan.inputs import planned_experiment
from bert_jax.apps.plan.trace import trace_gradient
from bert_jax.config.data import FineTuningData, PretrainingData
from bert_jax.config.distillation import (
    TEACHER_PARAMS,
    PretrainingDistillation,
    Teacher,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Glue
from bert_jax.config.objectives import CausalLM, FineTuning, Pretraining
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import BitFit, FullTuning, TuningConfig, TuningMethod
from bert_jax.models.adapters.config import LoRA, PrefixTuning, PromptTuning
from bert_jax.models.bert.config import BertConfig, BertSize
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.heads.config import RegressionHead
from bert_jax.models.layers.config import (
    ComputeConfig,
)
from bert_jax.objectives.make import make_objective
from bert_jax.parallel.tpu_slices import find_slice

V5E = find_slice("v5e-16").generation


def experiment(
    size: BertSize, batch_size, length, predictions, depth=None, **compute
) -> Experiment:
    model = BertConfig.from_size(size)
    model = dataclasses.replace(model, num_hidden_layers=depth or model.num_hidden_layers)
    phase = Phase(
        steps=10, seq_length=length, batch_size=batch_size, max_predictions_per_seq=predictions
    )
    return Experiment(
        name=size,
        objective=Pretraining(model=model, mask_token_id=103, compute=ComputeConfig(**compute)),
        data=PretrainingData(corpus="not there"),
        train=TrainConfig(phases=(phase,), schedule=WarmupLinear(warmup_steps=1)),
    )


def objective_of(config: Experiment) -> Pretraining:
    assert isinstance(config.objective, Pretraining)
    return config.objective


def estimated(config: Experiment, *, tensor_parallel_size: int = 1) -> int:
    """Returns the bytes of activations with the whole batch on one device of v5e."""
    (phase,) = config.train.phases
    fields = make_objective(config.objective, adapter=config.train.tuning.adapter).batch_fields()
    trace = trace_gradient(config.objective, config.train.tuning, fields, phase.sizes)
    return trace.peak(
        V5E, batch_fraction=1.0, tensor_parallel_size=tensor_parallel_size, gradient_shards=1
    )


# Layers of BERT-base; batch size, length, and predictions per device; and the peak of HBM in bytes
# without the state, which is updated in place. libtpu 0.0.42.1, jax 0.10.2, v5e:4x4, 2026-11-21.
TPU_PEAKS = [
    (2, 16, 512, 77, "none", "unrolled", "bfloat16", 1_607_987_712 - 470_732_504),
    (4, 16, 512, 77, "none", "unrolled", "bfloat16", 2_637_668_864 - 640_841_432),
    (4, 64, 128, 20, "none", "unrolled", "bfloat16", 1_632_361_984 - 640_841_432),
    (4, 16, 512, 77, "full", "unrolled", "bfloat16", 1_339_278_848 - 640_841_432),
    (4, 16, 512, 77, "none", "scanned", "bfloat16", 4_978_775_552 - 640_841_432),
    (4, 16, 512, 77, "full", "scanned", "bfloat16", 1_462_117_376 - 640_841_432),
    (4, 16, 512, 77, "none", "unrolled", "float32", 2_648_158_208 - 640_841_432),
]


@pytest.mark.parametrize(
    ("depth", "batch_size", "length", "predictions", "remat", "loop", "dtype", "peak"), TPU_PEAKS
)
def test_activation_bytes_within_10_percent_of_libtpu(
    depth, batch_size, length, predictions, remat, loop, dtype, peak
):
    compute = {"dtype": dtype, "remat": remat, "layer_loop": loop}
    config = experiment("base", batch_size, length, predictions, depth, **compute)
    assert estimated(config) == pytest.approx(peak, rel=0.1)


# Peaks of a device with the state, GiB: configs/pretrain/bert.py with tpu=true, batch size 256, and
# length 512; the same compiler and day. docs/tpu.md has the table.
PEAKS = {
    "v2-32": ("fsdp", 1.65, 4.27),
    "v3-32": ("fsdp", 1.65, 4.27),
    "v4-32": ("fsdp", 3.07, 7.85),
    "v5e-16": ("fsdp", 1.94, 4.86),
    "v5p-32": ("fsdp", 1.96, 4.93),
    "v6e-16": ("fsdp", 2.48, 6.37),
    "tpu7x-32": ("dp", 2.75, 7.53),
}


# Of each generation of attention kernels and each layout one.
FAST_PEAKS = (("v4-32", "base"), ("tpu7x-32", "base"), ("v5e-16", "base"), ("v6e-16", "large"))
SCANNED = 'objective.compute.layer_loop="scanned"'
LONG = ("model=longformer", "parallelism=fsdp", "batch_size=32")
# Peaks of a device of v5e-16 in GiB, and the tolerance; docs/tpu.md has the table.
FAMILY_PEAKS = [
    ("albert", ("tpu=true", "parallelism=fsdp", "batch_size=256"), (), 30000, 1.46, 0.06),
    ("masked_lm", ("model=mpnet", "parallelism=fsdp", "batch_size=256"), (), 30527, 5.30, 0.05),
    ("masked_lm", ("parallelism=fsdp", "batch_size=256"), (SCANNED,), 128100, 12.14, 0.05),
    ("long_sequences", LONG, (SCANNED, "mesh.communication_dtype=bfloat16"), 50265, 14.17, 0.05),
]


@pytest.mark.parametrize(
    ("recipe", "arguments", "overrides", "vocab_size", "peak", "tolerance"),
    [
        pytest.param(
            *row, marks=[pytest.mark.slow] if row is FAMILY_PEAKS[1] or row[1] is LONG else []
        )
        for row in FAMILY_PEAKS
    ],
    ids=["albert", "mpnet", "deberta", "longformer"],
)
def test_memory_of_families_matches_libtpu_peak(
    recipe, arguments, overrides, vocab_size, peak, tolerance
):
    """Covers shared layers, a relative bias, disentangled attention, and local attention."""
    config, _ = planned_experiment(
        f"configs/pretrain/{recipe}.py", arguments, overrides, vocab_size
    )
    plan = make_plan(config, find_slice("v5e-16"))
    assert plan.memory.total == pytest.approx(peak * 2**30, rel=tolerance)


def test_plain_attention_saves_its_scores():
    """BERT-base by the recipe without tpu=true: 6.29 GiB per libtpu, of which 1.23 are state."""
    config, _ = planned_experiment("configs/pretrain/bert.py", ["size=base"], [], 30522)
    plan = make_plan(config, find_slice("v5e-16"))
    assert plan.phases[1].memory.total == pytest.approx(6.29 * 2**30, rel=0.03)


@pytest.mark.parametrize(
    ("slice_name", "size"),
    [
        pytest.param(name, size, marks=[] if is_fast else [pytest.mark.slow])
        for size in ("base", "large")
        for name in PEAKS
        for is_fast in [(name, size) in FAST_PEAKS]
    ],
)
def test_phase_memory_matches_libtpu_peak(slice_name, size):
    parallelism, *peaks = PEAKS[slice_name]
    arguments = [f"size={size}", "tpu=true", f"parallelism={parallelism}"]
    config, _ = planned_experiment("configs/pretrain/bert.py", arguments, [], 30522)
    plan = make_plan(config, find_slice(slice_name))
    peak = peaks[["base", "large"].index(size)] * 2**30
    assert plan.phases[1].memory.total == pytest.approx(peak, rel=0.03)


def test_batch_that_libtpu_rejects_does_not_fit():
    """Batch size 4,096 on v6e: 2.48 GiB at 256 and 9.23 at 1,024 extrapolate to 36 of 31.25."""
    arguments = ["size=base", "tpu=true", "parallelism=fsdp"]
    batch_size = ["train.phases.1.batch_size=4096"]
    config, _ = planned_experiment("configs/pretrain/bert.py", arguments, batch_size, 30522)
    assert not make_plan(config, find_slice("v6e-16")).fits


def distillation(
    size: BertSize, batch_size: int, length: int, predictions: int, **compute: Any
) -> Experiment:
    """Returns the run of a student with half of its teacher's layers, by the recipe."""
    teacher = BertConfig.from_size(size)
    layers = teacher.num_hidden_layers // 2
    names = [field.name for field in dataclasses.fields(teacher)]
    fields: dict[str, Any] = {name: getattr(teacher, name) for name in names}
    fields |= {"num_hidden_layers": layers, "type_vocab_size": 0}
    student = DistilBertConfig(**fields)
    config = experiment(size, batch_size, length, predictions, **compute)
    objective = dataclasses.replace(
        objective_of(config),
        model=student,
        mlm_weight=2.0,
        nsp_weight=0.0,
        distillation=PretrainingDistillation(teacher=Teacher(path="not there", model=teacher)),
    )
    tuning = TuningConfig(frozen=(TEACHER_PARAMS,))
    train = dataclasses.replace(config.train, tuning=tuning)
    return dataclasses.replace(config, objective=objective, train=train)


def test_distillation_counts_the_logits_of_the_teacher():
    config = distillation("tiny", 16, 512, 82, dtype="bfloat16", attention="pallas")
    objective = objective_of(config)
    assert objective.distillation is not None
    at_masks = dataclasses.replace(objective.distillation, soft_targets="masked_tokens")
    fewer = dataclasses.replace(objective, distillation=at_masks)
    difference = estimated(config) - estimated(dataclasses.replace(config, objective=fewer))
    # Those of the student and of the teacher in float32.
    assert difference == pytest.approx((4 + 4) * 16 * (512 - 82) * 30522, rel=0.1)


def small(size: BertSize = "base", depth: int = 2, **compute: Any) -> Experiment:
    return experiment(size, 16, 512, 77, depth, dtype="bfloat16", **compute)


def test_layer_bytes_by_hand():
    """BERT-base, 16 sequences of 512, bfloat16: scores in 4 + 2 bytes, 6 x D and F in 2."""
    per_layer = estimated(small(depth=3)) - estimated(small(depth=2))
    scores, tokens = 16 * 12 * 512 * 512, 16 * 512
    assert per_layer == pytest.approx(6 * scores + 2 * tokens * (6 * 768 + 3072), rel=0.01)
    # With two devices per layer, the inputs of the norms are replicated.
    deep, shallow = (estimated(small(depth=n), tensor_parallel_size=2) for n in (3, 2))
    split = 3 * scores + 2 * tokens * (2 * 768 + 2 * 768 + 1536)
    assert deep - shallow == pytest.approx(split, rel=0.01)


def test_fused_attention_saves_no_scores():
    fused = [estimated(small(depth=n, attention="pallas")) for n in (3, 2)]
    assert fused[0] - fused[1] == pytest.approx(2 * 16 * 512 * (6 * 768 + 3072), rel=0.01)
    # The kernel has no causal mask, so the scores are materialized.
    config = small("tiny", attention="pallas")
    causal = CausalLM(model=objective_of(config).model, compute=objective_of(config).compute)
    with_scores = estimated(dataclasses.replace(config, objective=causal))
    assert with_scores - 4 * 16 * 511 * 30522 > 2 * 6 * 16 * 2 * 512 * 512


def test_frozen_lower_layers_save_no_activations():
    config = small("tiny", 4)

    def frozen(num_layers: int) -> int:
        patterns = ("encoder/embeddings/**", *(f"encoder/layers/{k}/**" for k in range(num_layers)))
        train = dataclasses.replace(config.train, tuning=TuningConfig(frozen=patterns))
        return estimated(dataclasses.replace(config, train=train))

    layer_bytes = 6 * 16 * 2 * 512 * 512 + 2 * 16 * 512 * (6 * 128 + 512)
    assert frozen(0) == pytest.approx(estimated(config), rel=0.05)
    # Of the layers below the trained ones, nothing is saved.
    assert frozen(0) - frozen(2) == pytest.approx(2 * layer_bytes, rel=0.06)


def fine_tuning(
    method: TuningMethod, size: BertSize, batch_size: int, length: int, **compute: Any
) -> Experiment:
    config = experiment(size, batch_size, length, 0, **compute)
    model = dataclasses.replace(objective_of(config).model, num_hidden_layers=2, vocab_size=1000)
    return dataclasses.replace(
        config,
        objective=FineTuning(
            model=model, head=RegressionHead(), compute=objective_of(config).compute
        ),
        data=FineTuningData(task=Glue(task="stsb", folder="not there"), tokenizer="not there"),
        train=dataclasses.replace(config.train, tuning=TuningConfig(method=method)),
        init_from="not there",
    )


def test_virtual_tokens_by_hand():
    """A prompt makes sequences longer; a prefix makes keys, values and scores, per layer."""
    compute = {"dtype": "bfloat16", "attention": "pallas"}
    bitfit, longer, prompt, prefix, lora, full = (
        estimated(fine_tuning(method, "tiny", 16, length, **compute))
        for method, length in (
            (BitFit(), 384),
            (BitFit(), 512),
            (PromptTuning(length=128), 384),
            (PrefixTuning(length=20), 384),
            (LoRA(), 384),
            (FullTuning(), 384),
        )
    )
    assert prompt == pytest.approx(longer, rel=0.15)
    # The kernel has no prefix, so there are scores of each layer.
    assert prefix - bitfit > 2 * (4 + 2) * 16 * 2 * 384 * (384 + 20)
    # The inputs of frozen kernels are not saved.
    assert lora < full


def test_causal_lm_has_logits_at_every_position():
    config = experiment("tiny", 4, 512, 0, dtype="bfloat16")
    causal = CausalLM(model=objective_of(config).model, compute=objective_of(config).compute)
    assert estimated(dataclasses.replace(config, objective=causal)) > 4 * 4 * 511 * 30522


def test_t5_activation_bytes_by_hand():
    """T5 1.1 base: memory peaks when the decoder's backward begins, or later the encoder's."""
    L, T, D, F, V = 512, 128, 768, 2048, 32128
    encoder_layer = 2 * L * (6 * D + 2 * F) + 6 * 12 * L * L
    # Self-attention has four arrays of the target, cross-attention two of each; three sublayers.
    decoder_layer = 2 * ((4 + 2 + 3) * T * D + 2 * L * D + 2 * T * F) + 6 * 12 * T * (T + L)
    decoder_kernels = 12 * (8 * D * D + 3 * D * F)

    def activations(*arguments: str) -> int:
        recipe = "configs/pretrain/t5.py"
        config, _ = planned_experiment(recipe, ["size=base", *arguments], [], V)
        return make_plan(config, find_slice("v5e-16")).phases[0].memory.activations

    per_sequence = 12 * (encoder_layer + decoder_layer) + 4 * T * V
    assert activations() == pytest.approx(8 * per_sequence + 4 * V * D, rel=0.05)
    # For two sequences at a time, the decoder's gradients are larger than what its layers save.
    encoder_begins = 2 * (12 * encoder_layer + 4 * 12 * L * L) + 4 * (2 * V * D + decoder_kernels)
    accumulated = activations("gradient_accumulation_steps=4")
    assert accumulated == pytest.approx(encoder_begins, rel=0.1)


def test_fsdp_gathers_kernels_and_tables_of_both_stacks():
    arguments = ["size=base", "parallelism=fsdp"]
    replicated, sharded = (
        make_plan(
            planned_experiment("configs/pretrain/t5.py", each, [], 32128)[0], find_slice("v5e-16")
        )
        for each in (arguments[:1], arguments)
    )
    kernels = 12 * 768 * (12 * 768 + 2 * 3 * 2048)
    gathered = 2 * (kernels + 2 * 32128 * 768)
    phase = sharded.phases[0]
    assert phase.memory.gradients == sharded.state.gradients + gathered
    assert phase.step.flops == replicated.phases[0].step.flops
    assert sharded.state.parameters < 1.01 * replicated.state.parameters / 16
