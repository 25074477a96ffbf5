"""Model FLOPs by formula, and the peak of the devices that they are held against (MFU)."""

from collections.abc import Sequence
from typing import Any

from bert_jax.models.config import BertConfig
from bert_jax.programs.config import FineTuning, LeftToRight, MultiTask, Pretraining, ProgramConfig
from bert_jax.train.config import Phase
from bert_jax.tuning.config import ReadEachStep, ReadOnce

# Dense bf16 FLOP/s of one JAX device, by the start of jax.Device.device_kind; from the makers'
# data sheets. A v2, v3 or tpu7x chip is two devices; a v4 chip is one.
PEAK_FLOPS = {
    "TPU v2": 23e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
    "TPU7x": 1153.5e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}


def encoder_flops(model: BertConfig, length: int) -> float:
    """Forward FLOPs of the encoder for one token: 2 for each multiply-add, matrix products only.

    Four D x D projections, two D x F, and for attention 2 L D each for scores and context
    (Chowdhery et al. 2022, appendix B, without the causal half).
    """
    width, layers = model.hidden_size, model.num_hidden_layers
    return layers * (8 * width**2 + 4 * width * model.intermediate_size + 4 * length * width)


def step_flops(
    program: ProgramConfig,
    phase: Phase,
    length: int | None = None,
    *,
    encoder: ReadEachStep | ReadOnce = ReadEachStep(),  # noqa: B008 (frozen)
) -> float:
    """FLOPs of one update: forward, and twice that for the backward pass; nothing for remat.

    `length` is the batch's, where it is not the phase's own. The heads of tasks are left out: they
    are less than a thousandth, so that nothing remains of an encoder that has read its rows.
    """
    if isinstance(encoder, ReadOnce):
        return 0.0
    model, rows = program.model, phase.batch_size
    length = length or phase.length
    head = 2 * model.hidden_size**2 + 2 * model.hidden_size * model.vocab_size
    forward = rows * length * encoder_flops(model, length)
    match program:
        case Pretraining():
            if program.mlm_weight:
                forward += rows * phase.max_predictions * head
            if program.nsp_weight:
                forward += rows * (2 * model.hidden_size**2 + 4 * model.hidden_size)
        case LeftToRight():
            forward += rows * (length - 1) * head
        case FineTuning() | MultiTask():
            pass
    return 3.0 * forward


def peak_flops(devices: Sequence[Any]) -> float | None:
    """Peak FLOP/s of all devices together, or None for a kind that the table does not have."""
    kind = devices[0].device_kind
    names = [name for name in PEAK_FLOPS if kind.startswith(name)]
    return PEAK_FLOPS[max(names, key=len)] * len(devices) if names else None
