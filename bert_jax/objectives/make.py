"""Makes an objective from its config."""

from bert_jax.objectives.base import Objective
from bert_jax.objectives.causal_lm import CausalLMObjective
from bert_jax.objectives.config import CausalLM, FineTuning, MultiTask, ObjectiveConfig, Pretraining
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.objectives.multi_task import MultiTaskObjective
from bert_jax.objectives.pretraining import PretrainingObjective


def make_objective(config: ObjectiveConfig) -> Objective:
    """Returns the objective that a config describes."""
    match config:
        case Pretraining():
            return PretrainingObjective(config)
        case CausalLM():
            return CausalLMObjective(config)
        case FineTuning():
            return FineTuningObjective(config)
        case MultiTask():
            return MultiTaskObjective(config)
