"""Compares the formula for activations with recorded results of libtpu and with XLA on CPU.

Covers bert_jax/apps/plan/activations.py, bert_jax/apps/plan/encoder_decoder_activations.py, and
bert_jax/apps/plan/device_memory.py.
"""

import dataclasses
import functools
from typing import Any

import jax
import pytest

from bert_jax import batch as batch_fields
from bert_jax.apps.plan.activations import (
    SavedBytes,
    activation_bytes,
    layer_bytes,
    num_attention_scores,
    saved_bytes_of,
)
from bert_jax.apps.plan.device_microbatch import DeviceMicrobatch
from bert_jax.apps.plan.encoder_decoder_activations import encoder_decoder_activation_bytes
from bert_jax.apps.plan.estimate import make_plan
from bert_jax.apps.plan.placeholder_corpus import planned_experiment
from bert_jax.config.data import FineTuningData, PretrainingData
from bert_jax.config.distillation import (
    TEACHER_PARAMS,
    PretrainingDistillation,
    Teacher,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Glue
from bert_jax.config.objectives import CausalLM, FineTuning, Pretraining, Seq2Seq
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import BitFit, FullTuning, TuningConfig, TuningMethod
from bert_jax.models.adapters.config import PrefixTuning, PromptTuning
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.bert.config import BertConfig, BertSize
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.heads.config import RegressionHead
from bert_jax.models.layers.config import (
    ComputeConfig,
)
from bert_jax.objectives.make import make_objective
from bert_jax.parallel.tpu_slices import find_slice
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import init_state, make_train_step

# XLA fuses less on CPU: it saves the softmax, the weights before and after dropout, the parts of
# the non-linearity and of the norms separately, and the gradient of the logits next to the logits.
TPU = saved_bytes_of(find_slice("v5e-16").generation)
CPU = SavedBytes(scores=(12, 0), replicated=(0, 5), sharded=(0, 4), ffn=(0, 3), logits=8)
# The inputs of frozen kernels are not saved.
CPU_FROZEN = SavedBytes(scores=(12, 0), replicated=(0, 4), sharded=(0, 3), ffn=(0, 1), logits=8)


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


def estimated(config: Experiment, saved: SavedBytes) -> int:
    (phase,) = config.train.phases
    microbatch = DeviceMicrobatch(
        num_sequences=phase.batch_size,
        seq_length=phase.seq_length,
        max_predictions_per_seq=phase.max_predictions_per_seq,
    )
    return activation_bytes(config, microbatch, saved)


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
    assert estimated(config, TPU) == pytest.approx(peak, rel=0.1)


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
# Peaks of a device of v5e-16 in GiB; docs/tpu.md has the table.
FAMILY_PEAKS = [
    ("albert", ("tpu=true", "parallelism=fsdp", "batch_size=256"), (), 30000, 1.46),
    ("masked_lm", ("model=mpnet", "parallelism=fsdp", "batch_size=256"), (), 30527, 5.30),
    ("masked_lm", ("parallelism=fsdp", "batch_size=256"), (SCANNED,), 128100, 12.14),
    ("long_sequences", LONG, (SCANNED, "mesh.communication_dtype=bfloat16"), 50265, 14.17),
]


@pytest.mark.parametrize(
    ("recipe", "arguments", "overrides", "vocab_size", "peak"),
    [
        pytest.param(
            *row, marks=[pytest.mark.slow] if row is FAMILY_PEAKS[1] or row[1] is LONG else []
        )
        for row in FAMILY_PEAKS
    ],
    ids=["albert", "mpnet", "deberta", "longformer"],
)
def test_memory_of_families_matches_libtpu_peak(recipe, arguments, overrides, vocab_size, peak):
    """Covers shared layers, a relative bias, disentangled attention, and local attention."""
    config, _ = planned_experiment(
        f"configs/pretrain/{recipe}.py", arguments, overrides, vocab_size
    )
    plan = make_plan(config, find_slice("v5e-16"))
    assert plan.memory.total == pytest.approx(peak * 2**30, rel=0.05)


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


@pytest.mark.parametrize(
    ("size", "batch_size", "length", "predictions"),
    [
        pytest.param("tiny", 8, 128, 20, marks=pytest.mark.slow),
        pytest.param("tiny", 32, 64, 10, marks=pytest.mark.slow),
        ("tiny", 16, 512, 77),
        pytest.param("mini", 16, 128, 20, marks=pytest.mark.slow),
    ],
)
def test_activation_bytes_within_20_percent_of_xla_on_cpu(size, batch_size, length, predictions):
    """Compares the temporary memory of the train step.

    Batch sizes differ by 4, lengths by 8, and model sizes by 10. Remat cannot be tested on CPU,
    because XLA undoes the recomputation of unrolled layers there.
    """
    config = experiment(size, batch_size, length, predictions)
    assert estimated(config, CPU) == pytest.approx(temporary_bytes(config), rel=0.2)


@pytest.mark.slow  # compiles a large step: 30 seconds
def test_encoder_decoder_activation_bytes_match_xla_on_cpu():
    """Tables are small, so that cross-attention is a sixth of the memory."""
    model = BartConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=512,
        num_encoder_layers=1,
        num_decoder_layers=1,
        num_attention_heads=2,
    )
    phase = Phase(steps=10, seq_length=512, target_length=256, batch_size=16)
    objective = Seq2Seq(model=model)
    config = Experiment(
        name="bart",
        objective=objective,
        data=PretrainingData(corpus="not there"),
        train=TrainConfig(phases=(phase,), schedule=WarmupLinear(warmup_steps=1)),
    )
    microbatch = DeviceMicrobatch(
        num_sequences=16, seq_length=512, target_length=256, max_predictions_per_seq=0
    )
    estimate = encoder_decoder_activation_bytes(
        objective, microbatch, CPU, 4 * model.decoder_kernel_params
    )
    assert estimate == pytest.approx(temporary_bytes(config), rel=0.1)


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
    config = distillation("base", 16, 512, 82, dtype="bfloat16")
    objective = objective_of(config)
    assert objective.distillation is not None
    at_masks = dataclasses.replace(objective.distillation, soft_targets="masked_tokens")
    fewer = dataclasses.replace(objective, distillation=at_masks)
    difference = estimated(config, TPU) - estimated(
        dataclasses.replace(config, objective=fewer), TPU
    )
    assert difference == (4 + 4) * 16 * (512 - 82) * 30522


def temporary_bytes(config: Experiment) -> int:
    """Compiles the whole train step on CPU and returns its temporary memory; donates the state."""
    (phase,), train = config.train.phases, config.train
    program = make_objective(config.objective, adapter=train.tuning.adapter)
    optimizer = make_optimizer(train)
    initialize = functools.partial(init_state, program, optimizer)
    state = jax.eval_shape(initialize, jax.random.key(0))
    schedule = learning_rate_schedule(train.schedule, train.steps)
    step = make_train_step(program, optimizer, schedule, tuning=train.tuning)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype)
        for name, (shape, dtype) in batch_fields.batch_spec(
            program.batch_fields(), phase.sizes
        ).items()
    }
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def test_layer_bytes_by_hand():
    """BERT-base, 16 sequences of 512, bfloat16: scores in 4 bytes, six times D and once F in 2."""
    program = objective_of(experiment("base", 16, 512, 77, dtype="bfloat16"))
    numbers = 16 * 512 * (6 * 768 + 3072)
    microbatch = DeviceMicrobatch(num_sequences=16, seq_length=512, max_predictions_per_seq=77)
    num_scores = num_attention_scores(program, microbatch)[0]
    assert (
        layer_bytes(program, microbatch, TPU, num_scores)
        == 4 * num_scores + 2 * numbers
        == 327_155_712
    )
    # With two devices per layer, the inputs of the norms are replicated.
    sharded_layer = dataclasses.replace(microbatch, tensor_parallel_size=2)
    assert num_attention_scores(program, sharded_layer) == (num_scores // 2,) * 12
    assert layer_bytes(program, sharded_layer, TPU, 0) == 2 * 16 * 512 * (4 * 768 + 1536)


def test_fused_attention_saves_no_scores():
    plain = experiment("base", 16, 512, 77, dtype="bfloat16")
    fused = experiment("base", 16, 512, 77, dtype="bfloat16", attention="pallas")
    microbatch = DeviceMicrobatch(num_sequences=16, seq_length=512, max_predictions_per_seq=77)
    scores = (16 * 12 * 512 * 512,) * 12
    assert num_attention_scores(objective_of(plain), microbatch) == scores
    assert num_attention_scores(objective_of(fused), microbatch) == (0,) * 12
    # The kernel supports neither length 100 nor a causal mask, so the scores are materialized.
    unsupported = dataclasses.replace(microbatch, seq_length=100)
    assert num_attention_scores(objective_of(fused), unsupported) == (16 * 12 * 100 * 100,) * 12
    causal = CausalLM(model=objective_of(fused).model, compute=objective_of(fused).compute)
    assert num_attention_scores(causal, microbatch) == scores


def test_frozen_lower_layers_save_no_activations():
    config = experiment("base", 16, 512, 77, dtype="bfloat16")
    microbatch = DeviceMicrobatch(num_sequences=16, seq_length=512, max_predictions_per_seq=77)
    num_scores = 16 * 12 * 512 * 512
    bytes_per_layer = (
        layer_bytes(objective_of(config), microbatch, TPU, num_scores) + 2 * num_scores
    )
    all_trainable = activation_bytes(config, microbatch, TPU)
    assert (
        activation_bytes(config, microbatch, TPU, lowest_trainable_layer=1) == all_trainable
    )  # only the embeddings are frozen
    assert (
        activation_bytes(config, microbatch, TPU, lowest_trainable_layer=12)
        == all_trainable - 11 * bytes_per_layer
    )  # the last layer is trained
    assert (
        activation_bytes(config, microbatch, TPU, lowest_trainable_layer=13) < 2 * bytes_per_layer
    )  # only the head is trained


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


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(BitFit(), marks=pytest.mark.slow),
        PromptTuning(length=128),
        PrefixTuning(length=128),
    ],
    ids=lambda method: type(method).__name__,
)
def test_virtual_tokens_within_20_percent_of_xla_on_cpu(method):
    """Compares the temporary memory of the train step; BitFit has no virtual tokens."""
    config = fine_tuning(method, "tiny", 8, 256)
    assert estimated(config, CPU_FROZEN) == pytest.approx(temporary_bytes(config), rel=0.2)


def test_virtual_tokens_by_hand():
    """A prompt makes sequences longer; a prefix makes keys, values and scores, per layer."""
    compute = {"dtype": "bfloat16", "attention": "pallas"}
    full, prompt, shorter, prefix = (
        estimated(fine_tuning(method, "base", 16, length, **compute), TPU)
        for method, length in (
            (FullTuning(), 512),
            (PromptTuning(length=128), 384),
            (FullTuning(), 384),
            (PrefixTuning(length=20), 384),
        )
    )
    assert prompt == full
    # The kernel has no prefix. Of the last layer, the gradient of the scores exists, too.
    num_scores = 16 * 12 * 384 * (384 + 20)
    keys_and_values = 2 * 2 * 16 * 20 * 768
    assert prefix - shorter == 2 * ((4 + 2) * num_scores + keys_and_values) + 4 * num_scores


def test_causal_lm_has_logits_at_every_position():
    config = experiment("base", 4, 512, 0, dtype="bfloat16")
    causal = CausalLM(model=objective_of(config).model, compute=objective_of(config).compute)
    causal_experiment = dataclasses.replace(config, objective=causal)
    microbatch = DeviceMicrobatch(num_sequences=4, seq_length=512, max_predictions_per_seq=0)
    logits = 4 * 4 * 511 * 30522
    assert activation_bytes(causal_experiment, microbatch, TPU) > logits


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
    assert activations() == 8 * per_sequence + 4 * V * D
    # For two sequences at a time, the decoder's gradients are larger than what its layers save.
    encoder_begins = 2 * (12 * encoder_layer + 4 * 12 * L * L) + 4 * (2 * V * D + decoder_kernels)
    assert activations("gradient_accumulation_steps=4") == pytest.approx(encoder_begins, rel=1e-6)


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
