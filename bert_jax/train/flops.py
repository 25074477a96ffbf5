"""Model FLOPs by formula, to be held against the peak of the devices (MFU)."""

from bert_jax.models.config import BertConfig
from bert_jax.programs.config import FineTuning, LeftToRight, MultiTask, Pretraining, ProgramConfig
from bert_jax.train.config import Phase
from bert_jax.tuning.config import ReadEachStep, ReadOnce


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
