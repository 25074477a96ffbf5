"""Model FLOPs by formula, to be held against the peak of the devices (MFU)."""

from bert_jax.models.config import BertConfig
from bert_jax.programs.config import FineTuning, LeftToRight, MultiTask, Pretraining, ProgramConfig
from bert_jax.train.config import Phase
from bert_jax.tuning.config import ReadEachStep, ReadOnce
from bert_jax.tuning.depth import layers_with_gradients


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
    choices: int = 1,
    encoder: ReadEachStep | ReadOnce = ReadEachStep(),  # noqa: B008 (frozen)
    lowest: int = 0,
) -> float:
    """FLOPs of one update: forward, and twice that for the backward pass; nothing for remat.

    The heads of tasks are left out: they are less than a thousandth, so that nothing remains of an
    encoder that has read its rows.

    Args:
      length: of the batch, where it is not the phase's own.
      choices: texts in a row that the encoder reads.
      lowest: the depth of the lowest parameter that moves (`tuning.depth`): there is no backward
        pass through the layers below it.
    """
    if isinstance(encoder, ReadOnce):
        return 0.0
    model, rows = program.model, phase.batch_size
    length = length or phase.length
    layers = model.num_hidden_layers
    passes = 1 + 2 * layers_with_gradients(layers, lowest) / layers
    read = rows * choices * length * encoder_flops(model, length)
    head = 2 * model.hidden_size**2 + 2 * model.hidden_size * model.vocab_size
    predicted = 0.0
    match program:
        case Pretraining():
            if program.mlm_weight:
                predicted += rows * phase.max_predictions * head
            if program.nsp_weight:
                predicted += rows * (2 * model.hidden_size**2 + 4 * model.hidden_size)
        case LeftToRight():
            predicted += rows * (length - 1) * head
        case FineTuning() | MultiTask():
            pass
    return passes * read + 3.0 * predicted
