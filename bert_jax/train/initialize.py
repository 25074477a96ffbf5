"""The state before a run's first update: drawn, or taken over from a pretrained model."""

from typing import Any

import jax
import optax

from bert_jax.distributed.processes import log
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.models.config import TaskHead, head_param_name
from bert_jax.objectives.base import Objective
from bert_jax.objectives.config import FineTuning, MultiTask, ObjectiveConfig
from bert_jax.objectives.multi_task import HEADS
from bert_jax.params import paths
from bert_jax.pretrained.initial import load_model_or_tf1
from bert_jax.train.step import State, init_state
from bert_jax.tuning.config import EWC
from bert_jax.tuning.depth import count_layers, param_depth
from bert_jax.tuning.fisher import load_fisher
from bert_jax.tuning.weight_anchors import set_fisher

_HEAD_NAMES = {
    "pooler": "pooler",
    "masked_lm": "masked-LM head",
    "next_sentence": "next-sentence head",
    "classifier": "classifier head",
    "span": "span head",
}
"""What a message calls the parts beside the encoder, by their names in the parameters."""


def initialize_or_load(
    experiment: Experiment,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    abstract: State,
) -> State:
    """The state at step 0, in the shardings of `abstract`.

    With `init_from` the parameters are another model's; those that it lacks, the layers that are
    to start afresh, and the head of another task stay as drawn; one line on stderr names the heads
    that do. The optimizer is set up after that: it may remember where it started from.

    Raises:
      UserError: `init_from` cannot be read, or is a model of another shape.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    key = jax.random.key(experiment.seed)
    if not experiment.init_from:
        jitted_init = jax.jit(
            lambda key: init_state(objective, optimizer, key), out_shardings=shardings
        )
        return jitted_init(key)
    initial_params = jax.jit(objective.init, out_shardings=shardings["params"])(key)
    params = _load_initial_params(experiment, experiment.init_from, initial_params)
    jitted_opt_init = jax.jit(optimizer.init, out_shardings=shardings["opt_state"])
    opt_state, weight_anchor = jitted_opt_init(params), experiment.train.tuning.weight_anchor
    if isinstance(weight_anchor, EWC):
        opt_state = set_fisher(opt_state, weight_anchor, load_fisher(weight_anchor.fisher))
    step = jax.device_put(jax.numpy.int32(0), shardings["step"])
    return {"step": step, "params": params, "opt_state": opt_state}


def _load_initial_params(
    experiment: Experiment, init_from: str, initial_params: dict[str, Any]
) -> dict[str, Any]:
    model = load_model_or_tf1(init_from)
    pretrained_params = paths.flatten(model.params)
    layers, chosen_params, initialized_heads = count_layers(pretrained_params), {}, set()
    lowest_reinit_layer = layers + 1 - experiment.train.tuning.reinit_layers
    for path, leaf in paths.flatten(initial_params).items():
        head, single_task_path = _single_task_head_and_path(experiment.objective, path)
        reinitialize = lowest_reinit_layer <= param_depth(path, layers) <= layers
        if (
            head is not None
            and head != model.head
            and single_task_path.startswith(f"{head_param_name(head)}/")
        ):
            reinitialize = True
        value = leaf if reinitialize else pretrained_params.get(single_task_path, leaf)
        if value.shape != leaf.shape:
            raise ConfigError(
                f"--init-from {init_from}: {path} has shape {list(value.shape)}, "
                f"this model needs {list(leaf.shape)}; make objective.model the same"
            )
        if value is leaf and (name := _HEAD_NAMES.get(single_task_path.split("/")[0])):
            initialized_heads.add(
                path.partition(single_task_path)[0].removeprefix(f"{HEADS}/") + name
            )
        chosen_params[path] = jax.device_put(value, leaf.sharding)
    if initialized_heads and jax.process_index() == 0:
        log(
            f"randomly initialized, because {init_from} has no matching parameters: "
            f"{', '.join(sorted(initialized_heads))}"
        )
    return paths.unflatten(chosen_params)


def _single_task_head_and_path(
    objective: ObjectiveConfig, path: str
) -> tuple[TaskHead | None, str]:
    """The head that a parameter belongs to or goes with, and its path in a model of one task."""
    match objective:
        case FineTuning():
            return objective.head, path
        case MultiTask() if path.startswith(f"{HEADS}/"):
            _, name, single_task_path = path.split("/", 2)
            return objective.for_task(name).head, single_task_path
    return None, path
