"""Model FLOPs by formula, to be held against the peak of the devices (MFU)."""

from bert_jax.models.encoder import encoder_flops
from bert_jax.objectives.config import CausalLM, FineTuning, MultiTask, ObjectiveConfig, Pretraining
from bert_jax.train.config import Phase
from bert_jax.tuning.config import CachedFeatures, ComputedFeatures
from bert_jax.tuning.freezing import num_layers_with_gradients


def step_flops(
    objective: ObjectiveConfig,
    phase: Phase,
    seq_length: int | None = None,
    *,
    num_choices: int = 1,
    features: ComputedFeatures | CachedFeatures = ComputedFeatures(),  # noqa: B008 (frozen)
    lowest_trainable_layer: int = 0,
) -> float:
    """FLOPs of one update: forward, and twice that for the backward pass; nothing for remat.

    The heads of tasks are left out: they are less than a thousandth, so that nothing remains of an
    encoder that has read its rows.

    Args:
      length: of the batch, where it is not the phase's own.
      choices: texts in a row that the encoder reads.
      lowest: the depth of the lowest parameter that moves (`tuning.freezing`): there is no backward
        pass through the layers below it.
    """
    if isinstance(features, CachedFeatures):
        return 0.0
    model, batch_size = objective.model, phase.batch_size
    seq_length = seq_length or phase.seq_length
    layers = model.num_hidden_layers
    forward_backward_factor = (
        1 + 2 * num_layers_with_gradients(layers, lowest_trainable_layer) / layers
    )
    encoder_forward_flops = batch_size * num_choices * seq_length * encoder_flops(model, seq_length)
    flops_per_prediction = 2 * model.hidden_size**2 + 2 * model.hidden_size * model.vocab_size
    head_forward_flops = 0.0
    match objective:
        case Pretraining():
            if objective.mlm_weight:
                head_forward_flops += (
                    batch_size * phase.max_predictions_per_seq * flops_per_prediction
                )
            if objective.nsp_weight:
                head_forward_flops += batch_size * (
                    2 * model.hidden_size**2 + 4 * model.hidden_size
                )
        case CausalLM():
            head_forward_flops += batch_size * (seq_length - 1) * flops_per_prediction
        case FineTuning() | MultiTask():
            pass
    return forward_backward_factor * encoder_forward_flops + 3.0 * head_forward_flops
