"""Makes the train state: restored from a checkpoint, from a pretrained model, or random.

In distillation the teacher is loaded, too, and the student may start from its layers.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.config.distillation import Teacher
from bert_jax.config.experiment import MAY_CHANGE_ON_RESUME, Experiment
from bert_jax.config.tuning import EWC
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.adapters.network import start_from_base
from bert_jax.objectives.base import Objective
from bert_jax.objectives.multi_task import HEADS
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.pretrained.base_model import Base, check_base
from bert_jax.pretrained.embedding_model import embedding_model_of
from bert_jax.pretrained.initial import load_model_or_tf1
from bert_jax.pretrained.load import LoadedModel, require_masked_lm, require_single_task
from bert_jax.pretrained.seq2seq import start_from_seq2seq
from bert_jax.runs import run_folder
from bert_jax.runs.attempt_log import read_attempts
from bert_jax.runs.checkpoints import step_folder
from bert_jax.runs.checkpoints.checkpointer import Checkpointer
from bert_jax.train.evaluate_and_save import BestEvaluation
from bert_jax.train.step import (
    TOKEN_ROWS,
    State,
    TrainSetup,
    checkpointed_state,
    complete_state,
    init_state,
)
from bert_jax.train.tuning.freezing import count_layers, param_depth
from bert_jax.train.tuning.token_rows import take_rows
from bert_jax.train.tuning.weight_anchors import set_fisher
from bert_jax.train.watchdog import Watchdog

logger = logging.getLogger(__name__)

_HEAD_NAMES = {
    "pooler": "pooler",
    "prediction_head": "prediction head",
    "masked_lm": "masked-LM head",
    "next_sentence": "next-sentence head",
    "sentence_order": "sentence-order head",
    "span_boundary": "span-boundary head",
    "replaced_token": "replaced-token head",
    "generator": "generator",
    "classifier": "classifier head",
    "span": "span head",
    "window_encoder": "window encoder",
    "sentence_head": "dense layers of the sentence encoder, or weights of queries",
    "softmax_classifier": "softmax classifier",
    "simcse_mlp": "tanh layer of SimCSE",
    "teacher_projection": "layer to the vectors of the teacher",
    "reconstruction": "attention of the decoder to the vector",
}
"""Maps the top-level names of head parameters to the names shown in messages."""


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """Holds where training starts: at 0, or where the restored checkpoint was saved.

    Attributes:
      step: number of updates done.
      position: position of the next training example of the current phase.
      best: the best evaluation so far.
      base: the base of the trained parameters, if the checkpoints do not hold all parameters.
    """

    step: int
    position: int
    best: BestEvaluation
    base: Base | None = None


def restore_or_initialize(
    setup: TrainSetup, checkpointer: Checkpointer, watchdog: Watchdog
) -> tuple[State, StartPoint]:
    """Restores the newest valid checkpoint; without one, calls `initialize_or_load`.

    Raises:
      UserError: there are checkpoints, but none is valid or fits the model and the optimizer; or
        they are of training on other tokens.
    """
    tuning, initial, base = setup.experiment.train.tuning, None, None
    if tuning.trains_part_of_encoder:
        from bert_jax.pretrained.initial import require_readable_base

        path = str(setup.experiment.init_from)
        require_readable_base(path)
        initial = initialize_or_load(setup)
        base = base_of_run(path, initial["params"])
    if checkpointer.latest_valid_step() is None:
        start = StartPoint(step=0, position=0, best=BestEvaluation(), base=base)
        return initial or initialize_or_load(setup), start
    with watchdog.watching("restore", 0):
        state, info, step = checkpointer.restore(checkpointed_state(tuning, setup.abstract))
    rows = setup.token_rows
    if rows is not None and not np.array_equal(np.asarray(state[TOKEN_ROWS]), rows):
        raise UserError(
            f"{checkpointer.folder} has checkpoints of training on other tokens than the training "
            "texts have now, so the code that tokenizes them is another; resume with the version "
            "of bert_jax and tokenizers that started the run, or start again in another folder"
        )
    if base is not None and initial is not None:
        check_base(info, base.fingerprint, str(checkpointer.folder))
        state = complete_state(state, initial)
    best = BestEvaluation(**info.get("best", {}))
    return state, StartPoint(step=step, position=info["position"], best=best, base=base)


def base_of_run(path: str, params: dict[str, Any]) -> Base:
    """Returns the base of a run from its parameters before the first update, on every process."""

    def to_host(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable:
            return np.asarray(leaf)
        # Parameters that are split over several hosts cannot be read by one of them.
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    # Absolute, because the run may be read from another working directory.
    path = str(Path(path).absolute()) if Path(path).exists() else path
    return Base(path=path, fingerprint=paths.fingerprint(jax.tree.map(to_host, params["encoder"])))


def initialize_or_load(setup: TrainSetup) -> State:
    """Returns the train state at step 0, with the shardings of `setup.abstract`.

    Without `init_from` in the config all parameters are random. With `init_from` they come from
    that model, except for the parameters that it does not have, the top `tuning.reinit_layers`
    layers, and the head of another kind of task: these stay random, and a warning names such heads.
    In distillation, the teacher's parameters are loaded, and the student may start from them.
    The optimizer state is initialized last, because L2-SP regularization stores the initial
    parameters in it.

    Raises:
      UserError: `init_from` or the teacher cannot be read, or has parameters of other shapes.
    """
    experiment, objective, optimizer = setup.experiment, setup.objective, setup.optimizer
    shardings = jax.tree.map(lambda leaf: leaf.sharding, setup.abstract)
    key, tuning = jax.random.key(experiment.seed), experiment.train.tuning
    teacher = experiment.objective.teacher
    if not experiment.init_from and teacher is None:
        # Under jit with shardings, so that no device ever holds all parameters and moments.
        jitted_init = jax.jit(
            lambda key: init_state(objective, optimizer, key, setup.token_rows),
            out_shardings=shardings,
        )
        return jitted_init(key)
    params = _initialize_missing(objective, _load_params(setup, teacher), key)
    if tuning.adapter is not None:
        params = jax.device_put(start_from_base(tuning.adapter, params), shardings["params"])
    state = {"step": jax.device_put(jax.numpy.int32(0), shardings["step"]), "params": params}
    if setup.token_rows is not None:
        state[TOKEN_ROWS] = jax.device_put(setup.token_rows, shardings[TOKEN_ROWS])
    # `jax.jit(optimizer.init)` alone would put all moments on one device.
    jitted_opt_init = jax.jit(
        lambda params, rows: optimizer.init(take_rows(params, rows)),
        out_shardings=shardings["opt_state"],
    )
    opt_state, weight_anchor = jitted_opt_init(params, state.get(TOKEN_ROWS)), tuning.weight_anchor
    if isinstance(weight_anchor, EWC):
        from bert_jax.train.tuning.fisher import load_fisher

        opt_state = set_fisher(opt_state, weight_anchor, load_fisher(weight_anchor.fisher))
    return {**state, "opt_state": opt_state}


def check_existing_run(
    experiment: Experiment, folder: Path, requested_checkpoint_dir: str | None
) -> bool:
    """Compares the checkpoints of a run folder with `experiment` before anything is written.

    The config in the newest checkpoint is compared, because config.json may be lost or the
    checkpoint of another run.

    Returns:
      Whether there are checkpoints.

    Raises:
      UserError: the checkpoints belong to a run with another config, or their folder is missing.
    """
    external_dir = run_folder.external_checkpoint_dir(folder)
    checkpoint_dir = step_folder.absolute_path(
        external_dir or requested_checkpoint_dir or folder / run_folder.CHECKPOINTS
    )
    # A bucket has no empty folders. Other folders exist before the first attempt is recorded.
    is_local = external_dir is not None and "://" not in external_dir
    if is_local and not checkpoint_dir.is_dir() and read_attempts(folder):
        raise UserError(
            f"the checkpoints of {folder} are in {external_dir}, which does not exist; mount it, "
            "or choose another run folder"
        )
    steps = step_folder.list_steps(checkpoint_dir) if checkpoint_dir.is_dir() else []
    if not steps:
        return False
    step = step_folder.latest_valid_step(checkpoint_dir, steps, (f"{step_folder.INFO}/",))
    checkpoint = checkpoint_dir / str(step)
    run_folder.check_checkpoint_config(
        step_folder.read_info(checkpoint)["config"],
        experiment,
        str(checkpoint),
        mutable_fields=MAY_CHANGE_ON_RESUME,
    )
    return True


def _load_params(setup: TrainSetup, teacher: Teacher | None) -> dict[str, Any]:
    """Returns the parameters of `init_from` and the teacher; others have their shape only."""
    objective, init_from = setup.objective, setup.experiment.init_from
    initial_params = setup.abstract["params"]
    reinit_layers = setup.experiment.train.tuning.reinit_layers
    if init_from and objective.starts_from == "encoder-decoder":
        return start_from_seq2seq(init_from, initial_params)
    student = {name: tree for name, tree in initial_params.items() if name != paths.TEACHER}
    if init_from:
        model = load_model_or_tf1(init_from)
        if objective.starts_from == "sentence encoder":
            embedding = embedding_model_of(model)
            # Its dense layers are for vectors of its own kind.
            same_kind = type(embedding.config) is type(objective.config.sentence_encoder)
            head = embedding.params if same_kind else {}
            model = dataclasses.replace(model, params={**model.params, **head})
        if purpose := objective.masked_lm_purpose():
            require_masked_lm(model, purpose)
        name, advice = f"--init-from {init_from}", "set objective.model to the config of that model"
        student = _start_from(objective, student, model, reinit_layers, name, advice)
    if teacher is None:
        return student
    model = load_teacher(objective, teacher)
    if teacher.layers:
        source = student_from_layers(model, teacher, student)
        advice = (
            "a student that starts from layers of its teacher needs the same sizes; or set "
            "objective.distillation.teacher.layers to ()"
        )
        name = f"the teacher {teacher.path}"
        student = _start_from(objective, student, source, reinit_layers, name, advice)
    return {**student, paths.TEACHER: teacher_params(model, initial_params)}


def _initialize_missing(objective: Objective, params: Params, key: jax.Array) -> dict[str, Any]:
    """Returns parameters with random values for those that have their shape only.

    Only these are computed: the program that initializes a whole encoder compiles for seconds.
    """
    flat = paths.flatten(params)
    missing = {p: leaf for p, leaf in flat.items() if isinstance(leaf, jax.ShapeDtypeStruct)}
    if not missing:
        return dict(params)

    def init(key: jax.Array) -> dict[str, jax.Array]:
        initial = paths.flatten(objective.init(key))
        return {path: initial[path] for path in missing}

    shardings = {path: leaf.sharding for path, leaf in missing.items()}
    return paths.unflatten({**flat, **jax.jit(init, out_shardings=shardings)(key)})


def _start_from(
    objective: Objective,
    initial_params: Params,
    model: LoadedModel,
    reinit_layers: int,
    name: str,
    advice: str,
) -> Params:
    """Returns initial parameters with the values of a model where it has them.

    Args:
      initial_params: the parameters to replace; only their shapes and shardings are read.
      reinit_layers: number of top layers that keep their random values.
      name: the model, for messages.
      advice: what to do if the model has other shapes.
    """
    pretrained_params = paths.flatten(model.params)
    layers, chosen_params, initialized_heads = count_layers(pretrained_params), {}, set()
    # Re-initializing the top layers makes fine-tuning on few examples more stable (Zhang et al.
    # 2021, section 5).
    lowest_reinit_layer = layers + 1 - reinit_layers
    for path, leaf in paths.flatten(initial_params).items():
        source = objective.pretrained_path(path, model.head)
        if lowest_reinit_layer <= param_depth(path, layers) <= layers:
            source = None
        value = leaf if source is None else pretrained_params.get(source, leaf)
        if value.shape != leaf.shape:
            raise ConfigError(
                f"{name}: {path} has shape {list(value.shape)}, but objective.model needs "
                f"{list(leaf.shape)}; {advice}"
            )
        if value is leaf and (head := _head_name(path)):
            initialized_heads.add(head)
        chosen_params[path] = value if value is leaf else jax.device_put(value, leaf.sharding)
    if initialized_heads and jax.process_index() == 0:
        logger.warning(
            "randomly initialized, because %s has no matching parameters: %s",
            model.path,
            ", ".join(sorted(initialized_heads)),
        )
    return paths.unflatten(chosen_params)


def _head_name(path: str) -> str:
    """Returns the name of a parameter's head for messages, as in "rte/classifier head"; or ""."""
    *task, part = path.split("/")[1:3] if path.startswith(f"{HEADS}/") else path.split("/")[:1]
    return "/".join([*task, _HEAD_NAMES[part]]) if part in _HEAD_NAMES else ""


_LAYER = re.compile(r"encoder/layers/(\d+)/(.*)")


def load_teacher(objective: Objective, teacher: Teacher) -> LoadedModel:
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
    objective.check_teacher(teacher.path, model.head, model.missing)
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
