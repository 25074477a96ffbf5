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
well, v6e what is behind the non-linearity as well (`slices.json`). With `RematLayer` a layer's
input alone is kept, s T D. At the fullest moment, when the backward pass begins, there are besides:
one such layer in full if it was kept by its input; the gradient of the last layer's scores, or the
logits, whichever is larger; and the gradient of the table of words, to which the logits are tied.
Then layers go faster than gradients come (see `Memory`).

`RematAllButDots` keeps what `RematLayer` does: the products of `models/product.py` have their own
gradients, which its policy does not see.

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
from bert_jax.models import attention_kernel
from bert_jax.models.config import FusedAttention, SaveAll, Scanned
from bert_jax.plan.slices import Generation
from bert_jax.programs.config import LeftToRight, Pretraining, ProgramConfig
from bert_jax.tuning.config import ReadOnce
from bert_jax.tuning.depth import layers_with_gradients

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class Keeps:
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
    whole: tuple[int, int]
    split: tuple[int, int]
    wide: tuple[int, int]
    logits: int
    rounded: int = 0


SCANNED = Keeps(scores=(5, 1), whole=(26, 3), split=(0, 3), wide=(12, 1), logits=4)


def keeps_of(generation: Generation) -> Keeps:
    """What XLA keeps of an unrolled layer on TPUs of a generation."""
    return Keeps(
        scores=(4, 0),
        rounded=2,
        whole=generation.kept_whole,
        split=generation.kept_split,
        wide=generation.kept_wide,
        logits=4,
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """One device's part of a microbatch: texts [texts, length], and a `tensor`-th of a layer."""

    texts: int
    length: int
    predictions: int
    tensor: int = 1

    @property
    def tokens(self) -> int:
        """T."""
        return self.texts * self.length


def activation_bytes(experiment: Experiment, part: Part, keeps: Keeps, lowest: int = 0) -> int:
    """Bytes of activations on one device when the backward pass begins.

    Args:
      keeps: what the compiler keeps of a layer that is not scanned.
      lowest: the depth of the lowest parameter that moves; layers below it keep nothing.
    """
    program = experiment.program
    model, compute = program.model, program.compute
    scanned = isinstance(compute.layers, Scanned)
    head = keeps.logits * _logits(program, part)
    if isinstance(experiment.train.tuning.encoder, ReadOnce):
        return head
    one = layer_bytes(program, part, SCANNED if scanned else keeps)
    scores = _FLOAT32 * _scores(program, part)
    layers = layers_with_gradients(model.num_hidden_layers, lowest)
    if not layers:  # only the head moves: what a layer gave is gone when the next has read it
        return one + head
    tied = _FLOAT32 * model.vocab_size * model.hidden_size // part.tensor if head else 0
    stacks = 0
    if scanned:  # parameters in the compute dtype, gradients in float32
        each = itemsize(program) + _FLOAT32
        stacks = each * layers * _layer_parameters(program) // part.tensor
    if isinstance(compute.remat, SaveAll):
        if not scanned and itemsize(program) < _FLOAT32:
            one += keeps.rounded * _scores(program, part)
        return layers * one + tied + max(head, scores + stacks)
    inputs = layers * itemsize(program) * part.tokens * model.hidden_size
    return inputs + tied + max(head, layer_bytes(program, part, keeps) + scores + stacks)


def layer_bytes(program: ProgramConfig, part: Part, keeps: Keeps) -> int:
    """What one layer keeps: the table at the top of this file."""
    model, s = program.model, itemsize(program)
    scores, whole, split, wide = (
        fixed + s * copies for fixed, copies in (keeps.scores, keeps.whole, keeps.split, keeps.wide)
    )
    cut = (split * model.hidden_size + wide * model.intermediate_size) // part.tensor
    return part.tokens * (whole * model.hidden_size + cut) + scores * _scores(program, part)


def gathered_bytes(program: ProgramConfig, tensor: int) -> int:
    """Bytes of parameters that fsdp has made whole: XLA keeps them for the backward pass."""
    model = program.model
    numbers = (
        model.num_hidden_layers * _layer_parameters(program) + model.vocab_size * model.hidden_size
    )
    return itemsize(program) * numbers // tensor


def _layer_parameters(program: ProgramConfig) -> int:
    """Of one layer's kernels; biases and norms are too few to count."""
    model = program.model
    return model.hidden_size * (4 * model.hidden_size + 2 * model.intermediate_size)


def itemsize(program: ProgramConfig) -> int:
    """Bytes of a number in the compute dtype."""
    return 2 if program.compute.dtype == "bfloat16" else 4


def _scores(program: ProgramConfig, part: Part) -> int:
    """One layer's attention scores; 0 if they are never there all at once."""
    model = program.model
    heads, length = model.num_attention_heads, part.length
    fused = isinstance(program.compute.attention, FusedAttention)
    causal = isinstance(program, LeftToRight)
    if fused and not causal and attention_kernel.fits(length, model.hidden_size, heads):
        return 0
    return part.texts * heads * length**2 // part.tensor


def _logits(program: ProgramConfig, part: Part) -> int:
    """Scores over the vocabulary. Heads of tasks have too few labels to count."""
    match program:
        case Pretraining() if program.mlm_weight:
            scored = part.texts * part.predictions
        case LeftToRight():
            scored = part.texts * (part.length - 1)
        case _:
            return 0
    return scored * program.model.vocab_size // part.tensor
