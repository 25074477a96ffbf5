"""Computes the model FLOPs of a training step by formula, for model FLOPs utilization (MFU)."""

from bert_jax.config.distillation import AllTokens
from bert_jax.config.objectives import (
    CausalLM,
    FineTuning,
    MaskedPermutedLM,
    MultiTask,
    ObjectiveConfig,
    Pretraining,
    ReplacedTokens,
    SentenceEmbedding,
    Seq2Seq,
    teacher_of,
)
from bert_jax.config.train import Phase
from bert_jax.config.tuning import CachedFeatures, FullTuning, TuningConfig, TuningMethod
from bert_jax.models.adapters.config import PrefixTuning, PromptTuning
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import SPAN_POSITION_EMBEDDING_SIZE
from bert_jax.train.tuning.freezing import num_layers_with_gradients


def step_flops(
    objective: ObjectiveConfig,
    phase: Phase,
    seq_length: int | None = None,
    *,
    num_choices: int = 1,
    tuning: TuningConfig = TuningConfig(),  # noqa: B008 (frozen)
    lowest_trainable_layer: int = 0,
) -> float:
    """Computes the model FLOPs of one update.

    The backward pass counts as twice the forward pass; recomputation (remat) is not counted.
    A teacher's forward pass is counted. Task heads (under 0.1 %) are not: 0 for `CachedFeatures`.

    Args:
      objective: config of the model and its heads.
      phase: gives the batch size, and the sequence length if `seq_length` is None.
      seq_length: sequence length of the batch.
      num_choices: sequences for each example; more than 1 for multiple choice only.
      tuning: whether a step runs the encoder, and what it trains of it. Without `FullTuning` the
        encoder's kernels have no gradients, which halves their products in the backward pass. The
        products of adapters are not counted: up to 4 %, or 13 % with the second product of DoRA.
      lowest_trainable_layer: depth below which there is no backward pass (`tuning.freezing`).
    """
    if isinstance(tuning.features, CachedFeatures):
        return 0.0
    batch_size, seq_length = phase.batch_size, seq_length or phase.seq_length
    if isinstance(objective, Seq2Seq):
        return 3.0 * batch_size * objective.model.forward_flops(seq_length, phase.target_length)
    model = objective.model
    num_layers = num_layers_with_gradients(model, lowest_trainable_layer)
    forward_backward_factor = 1 + 2 * num_layers / model.num_applied_layers
    num_sequences = batch_size * num_choices
    encoder_forward_flops = num_sequences * _sequence_flops(model, seq_length, tuning.method)
    num_predictions = batch_size * phase.max_predictions_per_seq
    head_forward_flops = 0.0
    match objective:
        case Pretraining():
            head_forward_flops += _pretraining_head_flops(objective, batch_size, num_predictions)
        case ReplacedTokens():
            # For each token the generator and the discriminator's head, D x D and D x 1.
            head_forward_flops += batch_size * seq_length * (
                objective.generator.encoder_flops(seq_length)
                + 2 * model.hidden_size * (model.hidden_size + 1)
            ) + num_predictions * _masked_lm_flops(objective.generator)
        case MaskedPermutedLM():
            # The content stream has one mask more for each prediction, the query stream another.
            num_keys = seq_length + phase.max_predictions_per_seq
            num_queries = num_keys + phase.max_predictions_per_seq
            encoder_forward_flops = batch_size * num_queries * model.encoder_flops(num_keys)
            head_forward_flops += num_predictions * _masked_lm_flops(model)
        case CausalLM():
            head_forward_flops += batch_size * (seq_length - 1) * _masked_lm_flops(model)
        case FineTuning() | MultiTask() | SentenceEmbedding():
            pass
    flops = forward_backward_factor * encoder_forward_flops + 3.0 * head_forward_flops
    if not isinstance(tuning.method, FullTuning):
        num_positions = num_sequences * _num_positions(seq_length, tuning.method)
        flops -= num_positions * 2 * num_layers * model.kernel_params_per_layer
    return flops + _distillation_flops(objective, phase, seq_length, num_sequences)


def _sequence_flops(model: EncoderConfig, seq_length: int, method: TuningMethod) -> float:
    """Returns the forward FLOPs of the encoder for a sequence, virtual tokens included."""
    num_positions = _num_positions(seq_length, method)
    flops = num_positions * model.encoder_flops(num_positions)
    if isinstance(method, PrefixTuning):
        # Each query has 2 D for the score and 2 D for the context of each key of the prefix.
        flops += seq_length * method.length * 4 * model.hidden_size * model.num_applied_layers
    return flops


def _num_positions(seq_length: int, method: TuningMethod) -> int:
    """Returns how many positions pass through the layers: also a prompt's, not a prefix's."""
    return seq_length + method.length if isinstance(method, PromptTuning) else seq_length


def _distillation_flops(
    objective: ObjectiveConfig, phase: Phase, seq_length: int, num_sequences: int
) -> float:
    """Computes the FLOPs that a teacher adds: its forward pass, and the logits of soft targets."""
    teacher = teacher_of(objective)
    if teacher is None:
        return 0.0
    flops = num_sequences * seq_length * teacher.model.encoder_flops(seq_length)
    if not isinstance(objective, Pretraining) or objective.distillation is None:
        return flops
    if not objective.distillation.soft_weight:
        return flops
    all_tokens = isinstance(objective.distillation.soft_targets, AllTokens)
    predictions_per_seq = seq_length if all_tokens else phase.max_predictions_per_seq
    student_flops, teacher_flops = map(_masked_lm_flops, (objective.model, teacher.model))
    num_predictions = num_sequences * predictions_per_seq
    return flops + num_predictions * (3.0 * student_flops + teacher_flops)


def _pretraining_head_flops(objective: Pretraining, batch_size: int, num_predictions: int) -> float:
    """Returns the forward FLOPs of the heads whose losses have a weight."""
    width, flops = objective.model.hidden_size, 0.0
    if objective.mlm_weight:
        flops += num_predictions * _masked_lm_flops(objective.model)
    num_pair_losses = bool(objective.nsp_weight) + bool(objective.sop_weight)
    flops += num_pair_losses * batch_size * (2 * width**2 + 4 * width)
    if objective.sbo_weight:
        boundary_flops = 2 * width * (2 * width + SPAN_POSITION_EMBEDDING_SIZE)
        # Its second layer and its logits are as in masked LM.
        flops += num_predictions * (_masked_lm_flops(objective.model) + boundary_flops)
    return flops


def _masked_lm_flops(model: EncoderConfig) -> int:
    """Returns the forward FLOPs of the masked-LM head for one prediction: D x E, then E x V."""
    return 2 * model.word_embedding_size * (model.hidden_size + model.vocab_size)
