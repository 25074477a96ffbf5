"""Defines the train step: accumulate gradients -> update -> apply; compiles it for a mesh.

New features do not belong here. A new loss is an `Objective`, a new regularizer is an optax
transform, and new behavior of the training loop is a hook.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax import batch as batch_lib
from bert_jax.config.distillation import TEACHER_PARAMS
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import CausalLM, objective_of_phase
from bert_jax.config.train import Phase
from bert_jax.config.tuning import WHOLE_ENCODER, TuningConfig
from bert_jax.objectives.base import Batch, LossOutput, Objective
from bert_jax.objectives.causal_lm import CausalLMObjective
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.tuning.freezing import (
    check_trains_encoder,
    is_frozen,
    mask_frozen,
    unmask_frozen,
)
from bert_jax.train.tuning.token_rows import (
    choose_token_rows,
    insert_rows,
    mask_rows,
    take_rows,
    with_row_gradients,
)

State = dict[str, Any]
"""{"step": number of updates done (int32 scalar), "params": ..., "opt_state": ...}

If only some rows of the token embeddings are trained, "token_rows" are these.
"""
TOKEN_ROWS = "token_rows"
# These are read again from the folders that the checkpoint names.
_EXTERNAL_PARAMS = (WHOLE_ENCODER, TEACHER_PARAMS)
Metrics = dict[str, jax.Array]
TrainStep = Callable[..., tuple[State, Metrics]]


def init_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    token_rows: np.ndarray | None = None,
) -> State:
    """Returns the train state before the first update.

    A pure function: call it under `jax.eval_shape` for the shapes alone, or under `jax.jit` with
    `out_shardings` to initialize a sharded state.

    Args:
      token_rows: the rows of the token embeddings that are trained; None: all.
    """
    params = objective.init(key)
    rows = None if token_rows is None else jnp.asarray(token_rows)
    state = {"step": jnp.int32(0), "params": params}
    state["opt_state"] = optimizer.init(take_rows(params, rows))
    return state if rows is None else {**state, TOKEN_ROWS: rows}


def checkpointed_state(tuning: TuningConfig, state: State) -> State:
    """Returns what a checkpoint holds of a train state, which may be abstract.

    That is everything for full tuning. For other methods, the frozen parameters of the encoder are
    left out, because the base model that the checkpoint names has them, and a teacher's parameters.
    """
    if not tuning.trains_part_of_encoder:
        return state

    def is_saved(path: str) -> bool:
        return not (is_frozen(tuning, path) and paths.matches_any(_EXTERNAL_PARAMS, path))

    flat = paths.flatten(state["params"])
    return {**state, "params": paths.unflatten({p: v for p, v in flat.items() if is_saved(p)})}


def complete_state(saved: State, base: State) -> State:
    """Returns a restored state with the parameters of `base` that its checkpoint did not hold."""
    params = {**paths.flatten(base["params"]), **paths.flatten(saved["params"])}
    return {**saved, "params": paths.unflatten(params)}


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    gradient_accumulation_steps: int = 1,
    tuning: TuningConfig = TuningConfig(),  # noqa: B008 (frozen)
    gather_params: Callable[[Params], Params] = lambda params: params,
) -> TrainStep:
    """Returns the pure function (state, batch, seed) -> (state, metrics).

    Gradients, moments and updates exist for the parameters that `tuning` trains only, and of the
    token embeddings for the rows that the state names (`tuning/token_rows.py`).

    Args:
      schedule: the learning rate that `optimizer` applies; used only to report it as a metric.
      gradient_accumulation_steps: number of microbatches that the batch is split into. Without
        dropout the result is the same, up to rounding, as with one pass over the whole batch,
        because the losses are divided by the denominators of the whole batch; with dropout, each
        microbatch has masks of its own.
      gather_params: maps stored, sharded parameters to the ones that the network computes with.

    Returns:
      A function whose metrics are float32 scalars. `seed` determines the dropout masks: an integer,
      or an integer scalar that may be traced.
    """

    def train_step(state: State, batch: Batch, seed: int | jax.Array = 0) -> tuple[State, Metrics]:
        # The key is a function of seed and step, so a resumed run has the same masks without
        # saving a state of random numbers.
        key = jax.random.fold_in(jax.random.key(seed), state["step"])
        # Frozen parameters become `optax.MaskedNode`: their backward pass is not compiled, and
        # gradients, sums of microbatches and updates have no arrays for them.
        rows = state.get(TOKEN_ROWS)
        trained = take_rows(mask_frozen(tuning, state["params"]), rows)

        def compute_loss(trained: Any, *args: Any) -> LossOutput:
            params = gather_params(unmask_frozen(mask_rows(trained, rows), state["params"]))
            params = with_row_gradients(params, trained, rows)
            return objective.compute_loss(params, *args)

        grads, losses = _accumulate_gradients(
            compute_loss,
            trained,
            batch,
            objective.loss_denominators(batch),
            key,
            gradient_accumulation_steps,
        )
        updates, opt_state = optimizer.update(grads, state["opt_state"], trained)
        updated: Any = optax.apply_updates(trained, updates)
        whole = insert_rows(updated, state["params"], rows)
        params = unmask_frozen(whole, state["params"])
        params = objective.update_statistics(params, losses.statistics)
        metrics = {
            "loss": losses.loss,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(schedule(state["step"]), jnp.float32),
        }
        metrics |= {
            name: mean.total / mean.weight  # NaN if the weight is 0, which logs show as null
            for name, mean in losses.metrics.items()
        }
        new = {"step": state["step"] + 1, "params": params, "opt_state": opt_state}
        return {**state, **new}, metrics

    return train_step


def _accumulate_gradients(
    compute_loss: Callable[..., LossOutput],
    params: Any,
    batch: Batch,
    loss_denominators: dict[str, jax.Array],
    key: jax.Array,
    num_microbatches: int,
) -> tuple[Any, LossOutput]:
    def loss_fn(params: Any, microbatch: Batch, key: jax.Array) -> tuple[jax.Array, LossOutput]:
        losses = compute_loss(params, microbatch, loss_denominators, key)
        return losses.loss, losses

    grad_fn = jax.grad(loss_fn, has_aux=True)
    if num_microbatches == 1:
        return grad_fn(params, batch, key)

    def add(total: Any, inputs: tuple[Batch, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, grad_fn(params, *inputs)), None

    # Microbatch i takes the examples i, i + n, i + 2n, ...: every device then splits the examples
    # that it already holds, and none move between devices.
    microbatches = {
        name: jnp.swapaxes(values.reshape(-1, num_microbatches, *values.shape[1:]), 0, 1)
        for name, values in batch.items()
    }
    inputs = (microbatches, jax.random.split(key, num_microbatches))
    grad_shapes = jax.eval_shape(grad_fn, params, *jax.tree.map(lambda x: x[0], inputs))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), grad_shapes)
    # A scan and not a Python loop, so that only one microbatch has its activations in memory.
    return jax.lax.scan(add, zeros, inputs)[0]


def abstract_state(
    params: Params,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    token_rows: np.ndarray | None,
) -> State:
    """Returns the train state as shapes, dtypes and shardings, without allocating memory.

    Args:
      params: the parameters as shapes and dtypes.
      token_rows: the rows of the token embeddings that are trained; None: all.
    """
    # Not from `init_state`: tracing the initializers takes as long as tracing the train step.
    trained = jax.eval_shape(take_rows, params, token_rows)
    shapes = {
        "step": jax.ShapeDtypeStruct((), jnp.int32),
        "params": params,
        "opt_state": jax.eval_shape(optimizer.init, trained),
    }
    shardings = {
        "step": sharding.replicated(mesh),
        "params": sharding.parameter_shardings(params, mesh),
        "opt_state": sharding.optimizer_shardings(optimizer, trained, mesh),
    }
    if token_rows is not None:
        shapes[TOKEN_ROWS] = jax.ShapeDtypeStruct(token_rows.shape, token_rows.dtype)
        shardings[TOKEN_ROWS] = sharding.replicated(mesh)
    return sharding.with_shardings(shapes, shardings)


class CompiledStep:
    """Runs the train step with the compiled program for the sequence length of a batch.

    The program of the first batch is compiled first. A thread compiles the others while the first
    steps run, the longest first, so that a lack of memory shows early.

    Args:
      compile_length: compiles the program for batches of a sequence length.
      lengths: all sequence lengths of batches.
      seed: of dropout, as `TrainSetup.put_seed` returns it.
    """

    def __init__(
        self, compile_length: Callable[[int], TrainStep], lengths: Sequence[int], seed: jax.Array
    ):
        self._compile_length, self._lengths, self._seed = compile_length, lengths, seed
        self._programs: dict[int, Future[TrainStep]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compiler")

    def prepare(self, length: int) -> None:
        """Waits until the program for a sequence length is compiled.

        Raises:
          ValueError: the length is not one of `lengths`.
          Exception: a program could not be compiled, such as for lack of memory.
        """
        # `jax.jit` would compile for it without a word.
        if length not in self._lengths:
            raise ValueError(
                f"the batch has sequence length {length}; the train step was compiled for "
                f"{sorted(self._lengths)}"
            )
        if not self._programs:
            first: Future[TrainStep] = Future()
            first.set_result(self._compile_length(length))
            self._programs = {length: first} | {
                other: self._thread.submit(self._compile_length, other)
                for other in sorted(self._lengths, reverse=True)
                if other != length
            }
        # The error of a program that could not be compiled is raised now, and not when a batch
        # needs it, perhaps hours later. Several processes must raise it at the same step.
        is_alone = jax.process_count() == 1
        for other, program in self._programs.items():
            if other == length or (is_alone and program.done()):
                program.result()

    def __call__(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Runs a step; the buffers of `state` are donated and cannot be used afterwards."""
        length = batch_lib.sequence_length(batch)
        self.prepare(length)
        return self._programs[length].result()(state, batch, self._seed)

    def close(self) -> None:
        """Ends the thread after the program that it compiles, without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, kw_only=True)
class TrainSetup:
    """Holds what the train steps of all phases share, and compiles them for a mesh.

    Attributes:
      abstract: the train state as shapes, dtypes and shardings.
      token_rows: the rows of the token embeddings that are trained, int32; None: all.
    """

    experiment: Experiment
    mesh: jax.sharding.Mesh
    objective: Objective
    optimizer: optax.GradientTransformation
    abstract: State
    token_rows: np.ndarray | None = None

    @classmethod
    def from_experiment(
        cls,
        experiment: Experiment,
        mesh: jax.sharding.Mesh,
        find_token_ids: Callable[[], np.ndarray | None] = lambda: None,
    ) -> "TrainSetup":
        """Makes the objective, the optimizer and the abstract state that the config describes.

        Args:
          find_token_ids: returns all token ids that batches have, or None if they are unknown; see
            `choose_token_rows`.
        """
        tuning = experiment.train.tuning
        objective = make_objective(
            experiment.objective,
            cached_features=tuning.features == "cached",
            adapter=tuning.adapter,
        )
        optimizer = make_optimizer(experiment.train)
        params = objective.abstract()
        token_rows = choose_token_rows(experiment, params, find_token_ids)
        abstract = abstract_state(params, optimizer, mesh, token_rows)
        check_trains_encoder(tuning, abstract["params"])
        return cls(
            experiment=experiment,
            mesh=mesh,
            objective=objective,
            optimizer=optimizer,
            abstract=abstract,
            token_rows=token_rows,
        )

    def objective_of(self, phase: Phase) -> Objective:
        """Returns the objective of a phase; all have the parameters of `objective`."""
        config = objective_of_phase(self.experiment.objective, phase)
        if isinstance(config, CausalLM):
            return CausalLMObjective(config, self.objective.network)
        return self.objective

    def lower_step(
        self, phase: Phase, fields: tuple[str, ...], sizes: Mapping[str, int]
    ) -> jax.stages.Lowered:
        """Traces and lowers the train step of a phase for one batch shape, with a donated state.

        Its arguments are the state, the batch and the seed, a uint32 scalar: runs with other seeds
        find the compiled program in a cache. Call it inside `jax.set_mesh(mesh)`.

        Args:
          fields: names of the batch fields.
          sizes: {dimension: global size}, such as {"B": 32, "L": 128}; see `bert_jax.batch`.
        """
        batch_sharding = sharding.batch_sharding(self.mesh)
        batch = {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding)
            for name, (shape, dtype) in batch_lib.batch_spec(fields, sizes).items()
        }
        # Without these output shardings XLA may shard the new state differently from the old one.
        # The compiled program accepts only the shardings it was compiled for: the next step would
        # fail.
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
        replicated = sharding.replicated(self.mesh)
        step = self._make_step(phase)
        jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated))
        seed = jax.ShapeDtypeStruct((), jnp.uint32, sharding=replicated)
        return jitted.lower(self.abstract, batch, seed)

    def compile_step(
        self, phase: Phase, fields: tuple[str, ...], shapes: Sequence[Mapping[str, int]]
    ) -> CompiledStep:
        """Returns the train step of a phase, compiled once for each batch shape when it is needed.

        Args:
          fields: names of the batch fields.
          shapes: the sizes of each batch shape, as for `lower_step`, each with another L.
        """
        sizes_of_length = {sizes["L"]: sizes for sizes in shapes}

        def compile_length(length: int) -> TrainStep:
            with jax.set_mesh(self.mesh):  # the context of a thread is its own
                return self.lower_step(phase, fields, sizes_of_length[length]).compile()

        return CompiledStep(compile_length, tuple(sizes_of_length), self.put_seed())

    def put_seed(self) -> jax.Array:
        """Returns the lowest 32 bits of the run's seed as a replicated uint32 scalar."""
        seed = np.asarray(self.experiment.seed & 0xFFFFFFFF, np.uint32)
        return jax.make_array_from_process_local_data(sharding.replicated(self.mesh), seed)

    def _make_step(self, phase: Phase) -> TrainStep:
        train, mesh, options = self.experiment.train, self.experiment.mesh, {}
        # Parameters that are split over fsdp are gathered before use. If the communication dtype is
        # not float32, they are also rounded, so that the gradients are summed over devices in it.
        if self.mesh.shape["fsdp"] > 1 or mesh.communication_dtype != "float32":
            options["gather_params"] = sharding.gather_params(
                self.abstract["params"], mesh.communication_dtype
            )
        return make_train_step(
            self.objective_of(phase),
            self.optimizer,
            learning_rate_schedule(train.schedule, train.steps),
            gradient_accumulation_steps=phase.gradient_accumulation_steps,
            tuning=train.tuning,
            **options,
        )
