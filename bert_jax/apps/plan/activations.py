"""Estimates by formula how much activation memory a training step needs on each device.

XLA saves the outputs of matrix products for the backward pass. It recomputes everything that
follows from them element by element (softmax, dropout masks, norms, the non-linearity) inside the
fusions that need it. Let T = sequences x L be the tokens on a device, s the bytes per element of
the compute dtype, and t the size of the mesh's tensor axis. A layer on v5e and v5p then saves

    attention scores, unless fused            4 sequences H/t L^2   softmax runs in float32
    attention weights after dropout, bf16     2 sequences H/t L^2   not if all is float32
    queries, keys, values, context            4 s T D/t
    inputs of the two norms                   2 s T D
    feed-forward before the non-linearity     s T F/t

On v2 and v3 the second and the last row are float32. v4 and tpu7x also save the feed-forward
activations in float32, and v6e also saves the output of the non-linearity (`tpu_slices.json`).
A prompt (`PromptTuning`) counts as part of the sequence. A prefix (`PrefixTuning`) of n keys makes
the scores [L, L + n], adds the keys and values of n tokens, and is not computed by fused attention.

With `"full"`, only the input of each layer is saved: s T D. Memory peaks when the backward pass
begins. At that moment there are also: one layer in full, if layers are recomputed; the gradient of
the last layer's scores or the logits, whichever is larger; and the gradient of the word embedding
table, which is tied to the logits. From then on, activations are freed faster than gradients are
created (see `Memory`). Only the logits of a teacher are saved.

`"save_dots"` saves the same as `"full"`: the products of `models/layers/matmul.py` define
their own gradients, so the policy does not recognize them as dots.

A scan saves more, because nothing can be recomputed from values that have left the loop. It stacks
everything that JAX's derivative needs: (5 + s) bytes per score, (26 + 6 s) T D, and (12 + s) T F.
It also stacks the kernels and their gradients.

`tests/plan/activations_test.py` compares the formula with libtpu 0.0.42. For BERT-base and
BERT-large with fused attention and unrolled layers on 16 chips, the total peak is within 3 % on
every generation. On v5e, plain attention, scanned layers, remat, and float32 are within 10 %.
A batch so small that it fits in on-chip memory (16 sequences of length 128) is overestimated
by 19 %. Scanned layers on generations other than v5e have not been compared.

Fine-tuning that trains a part of the encoder needs less than the formula gives, because the inputs
of frozen kernels are not saved. In a step of 4 layers of BERT-base on v5e (16 sequences of length
256), the activations with LoRA are 14 % smaller than with full tuning, those with BitFit 17 %. The
arrays of LoRA, DoRA, IA3 and bottleneck adapters are not counted either. On CPU, these
effects together make the formula too large by 9 % (Houlsby) to 39 % (prefix), and by 59 % for
Pfeiffer adapters, because nothing below the first of them is saved.
"""

import dataclasses
from dataclasses import dataclass

from bert_jax.apps.plan.device_microbatch import DeviceMicrobatch, encoder_microbatch
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import (
    CausalLM,
    EncoderObjective,
    MaskedPermutedLM,
    ObjectiveConfig,
    Pretraining,
    ReplacedTokens,
    Seq2Seq,
)
from bert_jax.models.layers import pallas_attention
from bert_jax.models.layers.config import AlibiPositions
from bert_jax.parallel.tpu_slices import Generation
from bert_jax.train.tuning.freezing import num_layers_with_gradients

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class SavedBytes:
    """Holds how many bytes the compiler saves per element of a layer's activations.

    A pair (a, b) means a bytes plus b elements of the compute dtype. The module docstring explains
    the letters of the shapes.

    Attributes:
      scores: attention scores [H/t, L, L] of each sequence.
      replicated: activations of shape [T, D].
      sharded: activations of shape [T, D/t].
      ffn: activations of shape [T, F/t].
      logits: bytes per element of the logits [predictions, V/t].
      bf16_attention_weights: additional bytes per attention score if the compute dtype is bfloat16
        and layers are neither scanned nor recomputed.
    """

    scores: tuple[int, int]
    replicated: tuple[int, int]
    sharded: tuple[int, int]
    ffn: tuple[int, int]
    logits: int
    bf16_attention_weights: int = 0


SCANNED_SAVED_BYTES = SavedBytes(
    scores=(5, 1), replicated=(26, 3), sharded=(0, 3), ffn=(12, 1), logits=4
)


def saved_bytes_of(generation: Generation) -> SavedBytes:
    """Returns what XLA saves of an unrolled layer on a TPU generation."""
    return SavedBytes(
        scores=(4, 0),
        bf16_attention_weights=2,
        replicated=generation.saved_replicated,
        sharded=generation.saved_sharded,
        ffn=generation.saved_ffn,
        logits=4,
    )


def activation_bytes(
    experiment: Experiment,
    microbatch: DeviceMicrobatch,
    saved: SavedBytes,
    lowest_trainable_layer: int = 0,
) -> int:
    """Returns the bytes of activations on one device when the backward pass begins.

    For `ReplacedTokens` those of the discriminator and the generator, which are both computed then.

    Args:
      experiment: the run's config.
      microbatch: the device's part of a microbatch.
      saved: what the compiler saves of a layer that is not scanned.
      lowest_trainable_layer: the depth of the lowest trainable parameter; layers below it save
        nothing.
    """
    objective = experiment.objective
    assert not isinstance(objective, Seq2Seq), "see encoder_decoder_activations.py"
    generator_bytes = 0
    if isinstance(objective, ReplacedTokens):
        generator = Pretraining(
            model=objective.generator,
            mask_token_id=objective.mask_token_id,
            nsp_weight=0.0,
            compute=objective.compute,
        )
        generator_run = dataclasses.replace(experiment, objective=generator)
        generator_bytes = activation_bytes(generator_run, microbatch, saved)
    microbatch = encoder_microbatch(experiment, microbatch)
    return generator_bytes + _model_bytes(experiment, microbatch, saved, lowest_trainable_layer)


def _model_bytes(
    experiment: Experiment,
    microbatch: DeviceMicrobatch,
    saved: SavedBytes,
    lowest_trainable_layer: int,
) -> int:
    """Returns the bytes of activations of the network of `objective.model`."""
    objective = experiment.objective
    assert not isinstance(objective, Seq2Seq)
    model, compute = objective.model, objective.compute
    scanned = compute.layer_loop == "scanned"
    soft = _num_soft_logits(objective, microbatch)  # the student has as many as its teacher
    head_bytes = saved.logits * (_num_logits(objective, microbatch) + soft) + _FLOAT32 * soft
    if experiment.train.tuning.features == "cached":
        return head_bytes
    scores_of_layers = num_attention_scores(objective, microbatch)
    largest = max(scores_of_layers)
    saved_of_layer = SCANNED_SAVED_BYTES if scanned else saved
    num_layers = num_layers_with_gradients(model, lowest_trainable_layer)
    if not num_layers:  # only the head is trained: each layer's output is freed after its use
        return layer_bytes(objective, microbatch, saved_of_layer, largest) + head_bytes
    score_gradient_bytes = _FLOAT32 * largest
    embedding_gradient_bytes = (
        _FLOAT32 * model.vocab_size * model.word_embedding_size // microbatch.tensor_parallel_size
        if head_bytes
        else 0
    )
    scanned_stack_bytes = 0
    if scanned:  # a scan stacks kernels in the compute dtype and their gradients in float32
        bytes_per_param = itemsize(objective) + _FLOAT32
        scanned_stack_bytes = (
            bytes_per_param
            * min(num_layers, model.num_distinct_layers)
            * model.kernel_params_per_layer
            // microbatch.tensor_parallel_size
        )
    if compute.remat == "none":
        saves_weights = not scanned and itemsize(objective) < _FLOAT32
        weight_bytes = saved.bf16_attention_weights if saves_weights else 0
        layers_bytes = sum(
            layer_bytes(objective, microbatch, saved_of_layer, scores) + weight_bytes * scores
            for scores in scores_of_layers[-num_layers:]
        )
        return (
            layers_bytes
            + embedding_gradient_bytes
            + max(head_bytes, score_gradient_bytes + scanned_stack_bytes)
        )
    layer_input_bytes = num_layers * itemsize(objective) * microbatch.num_tokens * model.hidden_size
    return (
        layer_input_bytes
        + embedding_gradient_bytes
        + max(
            head_bytes,
            layer_bytes(objective, microbatch, saved, largest)
            + score_gradient_bytes
            + scanned_stack_bytes,
        )
    )


def layer_bytes(
    objective: EncoderObjective, microbatch: DeviceMicrobatch, saved: SavedBytes, num_scores: int
) -> int:
    """Returns the bytes that one layer saves for the backward pass, per the table above.

    `num_scores` is 0 if a kernel materializes none. A gated feed-forward saves two arrays of F.
    Two of the four sharded arrays are keys and values, which also exist for a prefix.
    """
    model, s = objective.model, itemsize(objective)
    inner_width = (model.num_feed_forward_kernels - 1) * model.intermediate_size
    scores, replicated, sharded, ffn = (
        fixed + s * copies
        for fixed, copies in (saved.scores, saved.replicated, saved.sharded, saved.ffn)
    )
    sharded_bytes = (
        sharded * model.hidden_size + ffn * inner_width
    ) // microbatch.tensor_parallel_size
    prefix_bytes = sharded * model.hidden_size // (2 * microbatch.tensor_parallel_size)
    return (
        microbatch.num_tokens * (replicated * model.hidden_size + sharded_bytes)
        + microbatch.num_sequences * microbatch.num_prefix_keys * prefix_bytes
        + scores * num_scores
    )


def gathered_bytes(objective: EncoderObjective, tensor_parallel_size: int) -> int:
    """Returns the bytes of FSDP-gathered parameters, which XLA keeps for the backward pass."""
    model = objective.model
    num_params = (
        model.num_distinct_layers * model.kernel_params_per_layer
        + model.vocab_size * model.word_embedding_size
    )
    return itemsize(objective) * num_params // tensor_parallel_size


def itemsize(objective: ObjectiveConfig) -> int:
    """Returns the bytes per element of the compute dtype."""
    return 2 if objective.compute.dtype == "bfloat16" else 4


def num_attention_scores(
    objective: EncoderObjective, microbatch: DeviceMicrobatch
) -> tuple[int, ...]:
    """Counts each layer's attention scores; 0 if a fused kernel never materializes them."""
    model = objective.model
    num_heads, seq_length = model.num_attention_heads, microbatch.seq_length
    num_prefix_keys = microbatch.num_prefix_keys
    fused = (
        objective.compute.attention == "pallas"
        and model.supports_fused_attention
        and not isinstance(model.positions, AlibiPositions)
        and not isinstance(objective, CausalLM)
        and not num_prefix_keys
        and pallas_attention.is_supported(seq_length, model.hidden_size, num_heads)
    )
    num_queries = microbatch.num_sequences * num_heads * seq_length
    # The kernel computes full attention only, not that in a window.
    return tuple(
        0
        if fused and attended == seq_length
        else int(num_queries * (scored + num_prefix_keys)) // microbatch.tensor_parallel_size
        for attended, scored in zip(
            model.attended_keys(seq_length), model.scored_keys(seq_length), strict=True
        )
    )


def _num_logits(objective: EncoderObjective, microbatch: DeviceMicrobatch) -> int:
    """Counts the logits of hard targets over the vocabulary; those of task heads are negligible."""
    num_masked = microbatch.num_sequences * microbatch.max_predictions_per_seq
    match objective:
        case Pretraining():
            num_predictions = num_masked * (bool(objective.mlm_weight) + bool(objective.sbo_weight))
        case MaskedPermutedLM():
            num_predictions = num_masked
        case CausalLM():
            num_predictions = microbatch.num_sequences * (microbatch.seq_length - 1)
        case _:
            return 0
    return num_predictions * objective.model.vocab_size // microbatch.tensor_parallel_size


def _num_soft_logits(objective: EncoderObjective, microbatch: DeviceMicrobatch) -> int:
    """Counts the logits over the vocabulary that a student learns from its teacher."""
    if not (isinstance(objective, Pretraining) and (teaching := objective.distillation)):
        return 0
    is_all = teaching.soft_targets == "all_tokens"
    length = microbatch.seq_length if is_all else microbatch.max_predictions_per_seq
    num_predictions = microbatch.num_sequences * length if teaching.soft_weight else 0
    return num_predictions * objective.model.vocab_size // microbatch.tensor_parallel_size
