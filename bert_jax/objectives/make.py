"""Makes the objective that a config describes."""

from bert_jax.objectives.base import Objective
from bert_jax.objectives.causal_lm import CausalLMObjective
from bert_jax.objectives.config import (
    CausalLM,
    FineTuning,
    MaskedPermutedLM,
    MultiTask,
    ObjectiveConfig,
    Pretraining,
    ReplacedTokens,
)
from bert_jax.objectives.distillation.config import PretrainingDistillation, TaskDistillation
from bert_jax.objectives.distillation.objective import (
    PretrainingDistillationObjective,
    TaskDistillationObjective,
)
from bert_jax.objectives.fine_tuning import CachedFeaturesObjective, FineTuningObjective
from bert_jax.objectives.masked_permuted_lm import MaskedPermutedLMObjective
from bert_jax.objectives.multi_task import MultiTaskObjective
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective


def make_objective(config: ObjectiveConfig, *, cached_features: bool = False) -> Objective:
    """Returns the objective that a config describes.

    Args:
      cached_features: for fine-tuning, whether batches hold the output of the frozen encoder.
    """
    match config:
        case Pretraining(distillation=PretrainingDistillation()):
            return PretrainingDistillationObjective(config)
        case FineTuning(distillation=TaskDistillation()):
            return TaskDistillationObjective(config)
        case Pretraining():
            return PretrainingObjective(config)
        case ReplacedTokens():
            return ReplacedTokensObjective(config)
        case MaskedPermutedLM():
            return MaskedPermutedLMObjective(config)
        case CausalLM():
            return CausalLMObjective(config)
        case FineTuning():
            return (
                CachedFeaturesObjective(config) if cached_features else FineTuningObjective(config)
            )
        case MultiTask():
            return MultiTaskObjective(config)
