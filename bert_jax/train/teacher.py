"""Loads the teacher of a run with distillation, and starts the student from its layers."""

import dataclasses
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.config.distillation import Teacher
from bert_jax.config.objectives import FineTuning, ObjectiveConfig
from bert_jax.errors import ConfigError, UserError
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.pretrained.initial import load_model_or_tf1
from bert_jax.pretrained.load import LoadedModel, require_single_task

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"encoder/layers/(\d+)/(.*)")


def load_teacher(objective: ObjectiveConfig, teacher: Teacher) -> LoadedModel:
    """Reads the teacher of an objective and checks that it predicts what the student learns.

    Raises:
      UserError: the teacher cannot be read, or has no masked-LM head for pretraining.
      ConfigError: it is not the model that the config describes, or it has another task head.
    """
    model = load_model_or_tf1(teacher.path)
    if model.config != teacher.model:
        raise ConfigError(
            f"the teacher {teacher.path} is {model.config}, but objective.distillation.teacher."
            f"model is {teacher.model}; set it to the config of the teacher"
        )
    require_single_task(model, "the teacher's task")
    if isinstance(objective, FineTuning):
        if model.head != objective.head:
            raise ConfigError(
                f"the teacher {teacher.path} has the task head {model.head}, but objective.head is "
                f"{objective.head}; expected a teacher that was fine-tuned on the same task, with "
                "the same labels in the same order"
            )
    elif "masked_lm" in model.missing:
        raise UserError(
            f"the teacher {teacher.path} has no masked-LM head, whose predictions the student "
            "learns in pretraining; give a pretrained model with its head"
        )
    if jax.process_index() == 0:
        logger.info(
            "teacher: %s, %d layers of width %d, %s parameters",
            model.config.family,
            model.config.num_hidden_layers,
            model.config.hidden_size,
            f"{sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model.params)):,}",
        )
    return model


def teacher_params(model: LoadedModel, initial_params: Params) -> Params:
    """Returns the parameters under "teacher" with the values of a loaded model, on the devices.

    Args:
      initial_params: the parameters of the objective, which give names and shardings.
    """
    values = paths.flatten(model.params)
    return paths.map_with_path(
        lambda path, leaf: jax.device_put(values[path], leaf.sharding),
        initial_params[paths.TEACHER],
    )


def student_from_layers(
    model: LoadedModel, teacher: Teacher, student: Mapping[str, Any]
) -> LoadedModel:
    """Returns the teacher reduced to `teacher.layers`, as the model from which a student starts.

    Layer i of the result is layer `teacher.layers[i]`; everything else is the teacher's.

    Args:
      student: the student's initial parameters, for their paths.

    Raises:
      ConfigError: the student has encoder parameters that the teacher does not have.
    """
    selected: dict[str, Any] = {}
    for path, value in paths.flatten(model.params).items():
        if (match := _LAYER.match(path)) is None:
            selected[path] = value
            continue
        for index, layer in enumerate(teacher.layers):
            if layer == int(match[1]):
                selected[f"encoder/layers/{index}/{match[2]}"] = value
    for path in paths.flatten(student):
        if path.startswith("encoder/") and path not in selected:
            raise ConfigError(
                f"the teacher {teacher.path} has no parameter {path}, so the student cannot start "
                "from its layers; set objective.distillation.teacher.layers to ()"
            )
    config = dataclasses.replace(model.config, num_hidden_layers=len(teacher.layers))
    return dataclasses.replace(model, params=paths.unflatten(selected), config=config)
