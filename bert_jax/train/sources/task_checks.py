"""Checks the settings of a fine-tuning run against its task."""

import dataclasses
import logging
from collections.abc import Sequence

import jax
import numpy as np

from bert_jax.config.data import FineTuningData
from bert_jax.config.distillation import SoftLabels
from bert_jax.config.objectives import FineTuning
from bert_jax.config.tuning import CachedFeatures, TuningConfig
from bert_jax.data.finetuning.example import Task
from bert_jax.data.finetuning.readers.load_task import has_soft_labels
from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import TaskHead, WindowEncoder, window_encoder_of
from bert_jax.models.layers.global_attention import count_global_tokens
from bert_jax.tasks.registry import head_for_data
from bert_jax.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def check_task(
    task: Task, data: FineTuningData, objective: FineTuning, tokenizer: Tokenizer
) -> None:
    """Checks that the objective has the head and the labels of the task.

    Raises:
      ConfigError: the head is another one, or the training examples have soft labels and the
        objective is not trained on such, or the reverse.
    """
    head = objective.head
    required_head = head_for_data(task, data, tokenizer)
    if _without_num_layers(required_head) != _without_num_layers(head):
        raise ConfigError(
            f"objective.head is {head}, but the task {task.name} with data.truncation "
            f"{data.truncation} and data.prompt {data.prompt} needs {required_head}"
        )
    if isinstance(objective.distillation, SoftLabels) != has_soft_labels(task):
        found = "soft labels" if has_soft_labels(task) else "no soft labels"
        raise ConfigError(
            f"objective.distillation is {objective.distillation}, but the training examples of "
            f"{task.name} have {found}; expected SoftLabels for soft labels only"
        )


def check_tuning(data: FineTuningData, objective: FineTuning, tuning: TuningConfig) -> None:
    """Raises a ConfigError if a prompt or soft labels cannot be combined with the tuning."""
    cached = tuning.features == CachedFeatures()
    if data.prompt and (tuning.num_virtual_tokens or cached):
        raise ConfigError(
            f"data.prompt is set, and train.tuning has the method {tuning.method} and the "
            f"features {tuning.features}; expected no virtual tokens, which would move the "
            "mask, and ComputedFeatures, because the cached ones are not those of the mask"
        )
    if isinstance(objective.distillation, SoftLabels) and cached:
        raise ConfigError(
            "train.tuning.features is CachedFeatures and objective.distillation is SoftLabels; "
            "expected ComputedFeatures"
        )


def _without_num_layers(head: TaskHead) -> TaskHead:
    """Sets the number of layers over windows, which the data does not determine, to the default."""
    windows = window_encoder_of(head)
    if windows is None:
        return head
    return dataclasses.replace(head, window_encoder=WindowEncoder(num_windows=windows.num_windows))


def warn_of_local_tokens(
    split: str, model: TransformerConfig, head: TaskHead, input_ids: Sequence[np.ndarray]
) -> None:
    """Warns of sequences with more tokens to attend globally than the model allows, if any has.

    Args:
      split: the task and its split, such as "squad train".
      input_ids: the token ids of each sequence, without padding.
    """
    tokens, limit = model.global_tokens(head), model.global_token_limit
    if tokens is None or limit is None or jax.process_index() != 0:
        return
    counts = np.array([count_global_tokens(tokens, ids) for ids in input_ids], np.int64)
    if num_sequences := int((counts > limit).sum()):
        logger.warning(
            "%s: %s sequences have up to %s tokens that should have global attention; those after "
            "the first %s have local attention; set model.max_global_tokens to change that number",
            split,
            f"{num_sequences:,}",
            f"{counts.max():,}",
            f"{limit:,}",
        )
