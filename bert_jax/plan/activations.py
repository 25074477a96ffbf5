"""What a step keeps of its activations until the backward pass has used them, by formula.

XLA keeps what matrix products give, and computes again, inside the fusions that need it, all that
follows from them element by element: softmax, dropout masks (a hash of the element's index), norms,
the non-linearity. With T = texts x L tokens on a device, s bytes a number in the compute dtype and
t parts of a layer (the mesh's tensor axis), a layer keeps on v5e and v5p

    scores, but of fused attention          4 texts H/t L^2     softmax is computed in float32
    its weights after dropout, in bfloat16  2 texts H/t L^2     not if all is float32
    queries, keys, values, context          4 s T D/t
    the sums before the two norms           2 s T D
    the wide layer before its non-linearity   s T F/t

On v2 and v3 the second and the last are float32; v4 and tpu7x keep the wide layer in float32 as
well, v6e what is behind the non-linearity as well (`tpu_slices.json`). With `RematLayer` a layer's
input alone is kept, s T D. At the fullest moment, when the backward pass begins, there are besides:
one such layer in full if it was kept by its input; the gradient of the last layer's scores, or the
logits, whichever is larger; and the gradient of the table of words, to which the logits are tied.
Then layers go faster than gradients come (see `Memory`).

`RematAllButDots` keeps what `RematLayer` does: the products of `models/layers/matmul.py` have
their own gradients, which its policy does not see.

A scan keeps more, for nothing can be computed again from what has left the loop: all that JAX's
derivative asks for, stacked over the layers, which are (5 + s) bytes a score, (26 + 6 s) T D and
(12 + s) T F. Kernels and their gradients are stacked as well.

Held against libtpu 0.0.42 in `tests/plan/activations_test.py`: BERT-base and BERT-large with fused
attention, unrolled, on 16 chips of each generation within 3 % of the whole peak; on v5e also with
plain attention, scanned, computed again and in float32, within a tenth. So few rows that they lie
in the chip's other memory (16 of 128) are put 19 % too high. Scanned layers of other generations
were not held against anything.
"""

from dataclasses import dataclass

from bert_jax.experiment import Experiment
from bert_jax.hardware.tpu_slices import Generation
from bert_jax.models.config import NoRemat, PallasAttention, Scanned
from bert_jax.models.layers import pallas_attention
from bert_jax.objectives.config import CausalLM, ObjectiveConfig, Pretraining
from bert_jax.tuning.config import CachedFeatures
from bert_jax.tuning.depth import num_layers_with_gradients

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class SavedBytes:
    """What a compiler keeps of a layer for each number that it computes; see the top of this file.

    A pair (a, b) is a bytes whatever the compute dtype, and b numbers in the compute dtype.

    Attributes:
      scores: of [H/t, L, L] of each text.
      rounded: bytes of the same beside it, if the compute dtype is bfloat16 and layers are neither
        scanned nor computed again.
      whole, split: of [T, D] and of [T, D/t].
      wide: of [T, F/t].
      logits: bytes of [predictions, V/t].
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
    """What XLA keeps of an unrolled layer on TPUs of a generation."""
    return SavedBytes(
        scores=(4, 0),
        bf16_attention_weights=2,
        replicated=generation.saved_replicated,
        sharded=generation.saved_sharded,
        ffn=generation.saved_ffn,
        logits=4,
    )


@dataclass(frozen=True, kw_only=True)
class DeviceMicrobatch:
    """One device's part of a microbatch: texts [texts, length], and a `tensor`-th of a layer."""

    num_sequences: int
    seq_length: int
    max_predictions_per_seq: int
    tensor_parallel_size: int = 1

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.num_sequences * self.seq_length


def activation_bytes(
    experiment: Experiment,
    microbatch: DeviceMicrobatch,
    saved: SavedBytes,
    lowest_trainable_layer: int = 0,
) -> int:
    """Bytes of activations on one device when the backward pass begins.

    Args:
      keeps: what the compiler keeps of a layer that is not scanned.
      lowest: the depth of the lowest parameter that moves; layers below it keep nothing.
    """
    objective = experiment.objective
    model, compute = objective.model, objective.compute
    scanned = isinstance(compute.layer_loop, Scanned)
    head_bytes = saved.logits * _num_logits(objective, microbatch)
    if isinstance(experiment.train.tuning.features, CachedFeatures):
        return head_bytes
    bytes_per_layer = layer_bytes(objective, microbatch, SCANNED_SAVED_BYTES if scanned else saved)
    score_gradient_bytes = _FLOAT32 * _num_attention_scores(objective, microbatch)
    num_layers = num_layers_with_gradients(model.num_hidden_layers, lowest_trainable_layer)
    if not num_layers:  # only the head moves: what a layer gave is gone when the next has read it
        return bytes_per_layer + head_bytes
    embedding_gradient_bytes = (
        _FLOAT32 * model.vocab_size * model.hidden_size // microbatch.tensor_parallel_size
        if head_bytes
        else 0
    )
    scanned_stack_bytes = 0
    if scanned:  # parameters in the compute dtype, gradients in float32
        bytes_per_param = itemsize(objective) + _FLOAT32
        scanned_stack_bytes = (
            bytes_per_param
            * num_layers
            * _num_kernel_params(objective)
            // microbatch.tensor_parallel_size
        )
    if isinstance(compute.remat, NoRemat):
        if not scanned and itemsize(objective) < _FLOAT32:
            bytes_per_layer += saved.bf16_attention_weights * _num_attention_scores(
                objective, microbatch
            )
        return (
            num_layers * bytes_per_layer
            + embedding_gradient_bytes
            + max(head_bytes, score_gradient_bytes + scanned_stack_bytes)
        )
    layer_input_bytes = num_layers * itemsize(objective) * microbatch.num_tokens * model.hidden_size
    return (
        layer_input_bytes
        + embedding_gradient_bytes
        + max(
            head_bytes,
            layer_bytes(objective, microbatch, saved) + score_gradient_bytes + scanned_stack_bytes,
        )
    )


def layer_bytes(objective: ObjectiveConfig, microbatch: DeviceMicrobatch, saved: SavedBytes) -> int:
    """What one layer keeps: the table at the top of this file."""
    model, s = objective.model, itemsize(objective)
    scores, replicated, sharded, ffn = (
        fixed + s * copies
        for fixed, copies in (saved.scores, saved.replicated, saved.sharded, saved.ffn)
    )
    sharded_bytes = (
        sharded * model.hidden_size + ffn * model.intermediate_size
    ) // microbatch.tensor_parallel_size
    return microbatch.num_tokens * (
        replicated * model.hidden_size + sharded_bytes
    ) + scores * _num_attention_scores(objective, microbatch)


def gathered_bytes(objective: ObjectiveConfig, tensor_parallel_size: int) -> int:
    """Bytes of parameters that fsdp has made whole: XLA keeps them for the backward pass."""
    model = objective.model
    num_params = (
        model.num_hidden_layers * _num_kernel_params(objective)
        + model.vocab_size * model.hidden_size
    )
    return itemsize(objective) * num_params // tensor_parallel_size


def _num_kernel_params(objective: ObjectiveConfig) -> int:
    """Of one layer's kernels; biases and norms are too few to count."""
    model = objective.model
    return model.hidden_size * (4 * model.hidden_size + 2 * model.intermediate_size)


def itemsize(objective: ObjectiveConfig) -> int:
    """Bytes of a number in the compute dtype."""
    return 2 if objective.compute.dtype == "bfloat16" else 4


def _num_attention_scores(objective: ObjectiveConfig, microbatch: DeviceMicrobatch) -> int:
    """One layer's attention scores; 0 if they are never there all at once."""
    model = objective.model
    num_heads, seq_length = model.num_attention_heads, microbatch.seq_length
    fused = isinstance(objective.compute.attention, PallasAttention)
    causal = isinstance(objective, CausalLM)
    if (
        fused
        and not causal
        and pallas_attention.is_supported(seq_length, model.hidden_size, num_heads)
    ):
        return 0
    return microbatch.num_sequences * num_heads * seq_length**2 // microbatch.tensor_parallel_size


def _num_logits(objective: ObjectiveConfig, microbatch: DeviceMicrobatch) -> int:
    """Scores over the vocabulary. Heads of tasks have too few labels to count."""
    match objective:
        case Pretraining() if objective.mlm_weight:
            num_predictions = microbatch.num_sequences * microbatch.max_predictions_per_seq
        case CausalLM():
            num_predictions = microbatch.num_sequences * (microbatch.seq_length - 1)
        case _:
            return 0
    return num_predictions * objective.model.vocab_size // microbatch.tensor_parallel_size
