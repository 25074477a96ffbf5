"""Selects the model that a run trained from the parameters of its checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from bert_jax.config.config_lib import from_json
from bert_jax.config.objectives import MultiTask
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.sentence_encoder.config import SENTENCE_HEAD, SentenceEncoderConfig
from bert_jax.objectives.multi_task import task_params
from bert_jax.objectives.replaced_tokens import discriminator_params
from bert_jax.params import paths

_OBJECTIVES = (
    "Pretraining",
    "ReplacedTokens",
    "MaskedPermutedLM",
    "FineTuning",
    "MultiTask",
    "SentenceEmbedding",
)
"""The objectives whose runs make a model that can be loaded."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """Holds the model of a run, without the second networks and heads of its training.

    Attributes:
      params: nested dict of the encoder and its heads.
      head: the head of the task; None for a pretrained model or a sentence encoder.
      tasks: the names of the tasks, for a multi-task run of which no task was chosen.
      sentence_encoder: the config of what follows the encoder, in a run that trained a sentence
        encoder.
      sentence_head: its parameters, nested; {} without dense layers.
    """

    params: dict[str, Any]
    head: TaskHead | None = None
    tasks: tuple[str, ...] = ()
    sentence_encoder: SentenceEncoderConfig | None = None
    sentence_head: dict[str, Any] = field(default_factory=dict[str, Any])


def select_trained_model(
    params: dict[str, Any], info: Mapping[str, Any], task: str | None, source: str
) -> TrainedModel:
    """Returns the model that a run trained.

    Args:
      params: the parameters of a checkpoint, without an adapter.
      info: the metadata of the checkpoint.
      task: the task of a multi-task run whose head is loaded; None loads no head.
      source: the run folder and the checkpoint, for messages.

    Raises:
      ConfigError: there is no such task.
      UserError: the run has an objective that makes no model.
    """
    objective = info.get("config", {}).get("objective", {})
    match objective.get("type"):
        case "MultiTask" if task is None:
            tasks = from_json(MultiTask, objective, "objective").task_names
            return TrainedModel(params={"encoder": params["encoder"]}, tasks=tasks)
        case "MultiTask":
            assert task is not None
            head = from_json(MultiTask, objective, "objective").for_task(task).head
            return TrainedModel(params=task_params(params, task), head=head)
        case "SentenceEmbedding":
            require_no_task(source, task)
            config = objective["sentence_encoder"]
            return TrainedModel(
                params={"encoder": params["encoder"]},
                sentence_encoder=from_json(
                    SentenceEncoderConfig, config, "objective.sentence_encoder"
                ),
                sentence_head=params.get(SENTENCE_HEAD, {}),
            )
        case name if name in _OBJECTIVES:
            require_no_task(source, task)
            if name == "ReplacedTokens":
                params = jax.device_get(discriminator_params(params))
            head = from_json(TaskHead | None, objective.get("head"), "objective.head")
            return TrainedModel(params=paths.without_auxiliary_networks(params), head=head)
        case name:
            found = (
                f"the run's objective is {name!r}"
                if name
                else "the metadata of the checkpoint has no config.objective.type"
            )
            raise UserError(
                f"{source}: {found}; expected {', '.join(_OBJECTIVES[:-1])} or {_OBJECTIVES[-1]}; "
                "give the folder of such a run"
            )


def require_no_task(source: str, task: str | None) -> None:
    """Raises a ConfigError if a task was chosen of a model that does not have several tasks."""
    if task is not None:
        raise ConfigError(
            f"task {task!r}: {source} is not a run of several tasks, so there is none to choose"
        )
