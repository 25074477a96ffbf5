"""The state before a run's first update: drawn, or taken over from a pretrained model."""

from typing import Any

import jax
import optax

from bert_jax import paths
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.models.config import TaskHead, head_part
from bert_jax.programs.config import FineTuning, MultiTask, ProgramConfig
from bert_jax.programs.multi_task import HEADS
from bert_jax.programs.program import Program
from bert_jax.train.distributed import say
from bert_jax.train.initial import load_any
from bert_jax.train.masked_text import load_fisher
from bert_jax.train.step import State, init_state
from bert_jax.tuning.anchors import with_importance
from bert_jax.tuning.config import EWC
from bert_jax.tuning.depth import depth, layers_of

_HEAD_NAMES = {
    "pooler": "pooler",
    "masked_lm": "masked-LM head",
    "next_sentence": "next-sentence head",
    "classifier": "classifier head",
    "span": "span head",
}
"""What a message calls the parts beside the encoder, by their names in the parameters."""


def fresh_state(
    experiment: Experiment,
    program: Program,
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
        initialise = jax.jit(
            lambda key: init_state(program, optimizer, key), out_shardings=shardings
        )
        return initialise(key)
    drawn = jax.jit(program.init, out_shardings=shardings["params"])(key)
    params = _start_from(experiment, experiment.init_from, drawn)
    set_up = jax.jit(optimizer.init, out_shardings=shardings["opt_state"])
    opt_state, anchor = set_up(params), experiment.train.tuning.anchor
    if isinstance(anchor, EWC):
        opt_state = with_importance(opt_state, anchor, load_fisher(anchor.fisher))
    step = jax.device_put(jax.numpy.int32(0), shardings["step"])
    return {"step": step, "params": params, "opt_state": opt_state}


def _start_from(experiment: Experiment, source: str, drawn: dict[str, Any]) -> dict[str, Any]:
    model = load_any(source)
    loaded = paths.flatten(model.params)
    layers, chosen, heads = layers_of(loaded), {}, set()
    lowest_fresh = layers + 1 - experiment.train.tuning.fresh_layers
    for path, leaf in paths.flatten(drawn).items():
        head, alone = _in_one_task(experiment.program, path)
        fresh = lowest_fresh <= depth(path, layers) <= layers
        if head is not None and head != model.head and alone.startswith(f"{head_part(head)}/"):
            fresh = True
        found = leaf if fresh else loaded.get(alone, leaf)
        if found.shape != leaf.shape:
            raise ConfigError(
                f"--init-from {source}: {path} has shape {list(found.shape)}, "
                f"this model needs {list(leaf.shape)}; make program.model the same"
            )
        if found is leaf and (name := _HEAD_NAMES.get(alone.split("/")[0])):
            heads.add(path.partition(alone)[0].removeprefix(f"{HEADS}/") + name)
        chosen[path] = jax.device_put(found, leaf.sharding)
    if heads and jax.process_index() == 0:
        say(
            f"randomly initialized, because {source} has no matching parameters: "
            f"{', '.join(sorted(heads))}"
        )
    return paths.unflatten(chosen)


def _in_one_task(program: ProgramConfig, path: str) -> tuple[TaskHead | None, str]:
    """The head that a parameter belongs to or goes with, and its path in a model of one task."""
    match program:
        case FineTuning():
            return program.head, path
        case MultiTask() if path.startswith(f"{HEADS}/"):
            _, name, alone = path.split("/", 2)
            return program.single(name).head, alone
    return None, path
