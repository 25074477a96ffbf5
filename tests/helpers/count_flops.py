"""Counts the FLOPs of matrix products in the jaxpr of a program's gradient.

The count checks the formula in `train/flops.py`: a formula that no longer matches the model would
silently make every reported MFU wrong.
"""

import dataclasses
import math
from typing import Any

import jax
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from bert_jax.apps.plan.inputs import Inputs
from bert_jax.config.objectives import ObjectiveConfig, ReplacedTokens, Seq2Seq
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig, block_shape
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.ultrabert.config import UltraBertConfig
from bert_jax.objectives.make import make_objective
from bert_jax.train.flops import step_flops
from bert_jax.train.tuning.freezing import mask_frozen, unmask_frozen

TOLERANCE = 0.03


def check_formula(config: ObjectiveConfig, inputs: Inputs) -> float:
    """Counts the FLOPs of a step and checks the formula against the count.

    The step uses the phase's longest batch, with every parameter trainable. Keys that attention in
    blocks computes and then masks are not model FLOPs, so they are added to the formula here.

    Returns:
      The counted FLOPs.

    Raises:
      UserError: the formula differs from the count by more than 3 %.
    """
    sizes = inputs.shapes[-1]
    formula = step_flops(config, inputs.phase, sizes)
    formula += _masked_key_flops(config, inputs)
    counted = counted_flops(config, inputs)
    if abs(counted / formula - 1) > TOLERANCE:
        raise UserError(
            f"the program has {counted:.4g} FLOPs per step by count but {formula:.4g} by formula, "
            f"more than {TOLERANCE:.0%} apart; correct the formula in bert_jax/train/flops.py"
        )
    return counted


def scored_keys(model: EncoderConfig, length: int) -> tuple[float, ...]:
    """Returns how many scores each applied layer computes for a query, on average.

    Local attention is computed in blocks, whose windows have more keys than a query attends to.
    """

    def window_size(radius: int) -> int:
        block, margin = block_shape(length, radius)
        return block + 2 * margin

    match model:
        case LongformerConfig():
            return tuple(window_size(window // 2) for window in model.attention_window)
        case ModernBertConfig() | UltraBertConfig():
            local = window_size(model.radius)
            return tuple(
                length if kind == "full_attention" else local for kind in model.layer_types
            )
        case _:
            return model.attended_keys(length)


def _masked_key_flops(config: ObjectiveConfig, inputs: Inputs) -> float:
    """Returns the FLOPs of the products with masked keys, in the forward and backward pass."""
    if isinstance(config, Seq2Seq):  # causal attention counts in full: see `forward_flops`
        return 0.0
    networks = [(config.model, 3)]
    if isinstance(config, ReplacedTokens):
        networks.append((config.generator, 3))
    if teacher := config.teacher:
        networks.append((teacher.model, 1))  # a teacher has no backward pass
    length = inputs.shapes[-1]["L"]
    flops_per_token = sum(
        passes
        * 4
        * model.hidden_size
        * (sum(scored_keys(model, length)) - sum(model.attended_keys(length)))
        for model, passes in networks
    )
    return inputs.num_sequences * length * flops_per_token


def counted_flops(
    config: ObjectiveConfig,
    inputs: Inputs,
    tuning: TuningConfig = TuningConfig(),  # noqa: B008 (frozen)
) -> float:
    """Counts the FLOPs of all matrix products in a forward and backward pass without remat."""
    plain = dataclasses.replace(config, compute=ComputeConfig())
    objective = make_objective(plain, adapter=tuning.adapter)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype)
        for name, (shape, dtype) in inputs.batch_spec().items()
    }

    def loss(trained: Any, params: Any, batch: Any) -> jax.Array:
        return objective.compute_loss(
            unmask_frozen(trained, params),
            batch,
            objective.loss_denominators(batch),
            jax.random.key(0),
        ).loss

    params = objective.abstract()
    arguments = (mask_frozen(tuning, params), params, batch)
    jaxpr = jax.make_jaxpr(jax.grad(loss))(*arguments).jaxpr
    # The backward pass of `dense` has the gradients of frozen kernels, too; XLA removes them.
    used, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return _jaxpr_flops(used)


def _jaxpr_flops(jaxpr: core.Jaxpr) -> float:
    total, broadcast_scalars = 0.0, set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "broadcast_in_dim" and _shape(equation.invars[0]) == ():
            broadcast_scalars.add(equation.outvars[0])  # its dot_general is only a sum
        elif (
            equation.primitive.name == "dot_general" and equation.invars[0] not in broadcast_scalars
        ):
            total += _dot_general_flops(equation)
        trip_count = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        inner_flops = [_jaxpr_flops(each) for each in _inner_jaxprs(equation.params)]
        # Only one branch of a conditional runs.
        total += trip_count * (
            max(inner_flops, default=0.0) if "branches" in equation.params else sum(inner_flops)
        )
    return total


def _inner_jaxprs(params: dict[str, Any]) -> list[core.Jaxpr]:
    found = []
    for name, value in params.items():
        if name.startswith(("jvp", "fwd", "bwd")):  # differentiation rules, which do not run
            continue
        for each in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(each, "jaxpr", each)
            if isinstance(jaxpr, core.Jaxpr):
                found.append(jaxpr)
    return found


def _dot_general_flops(equation: Any) -> float:
    (contracting_dims, _), _ = equation.params["dimension_numbers"]
    lhs_shape = _shape(equation.invars[0])
    out_shape = _shape(equation.outvars[0])
    return 2.0 * math.prod(out_shape) * math.prod(lhs_shape[axis] for axis in contracting_dims)


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape
