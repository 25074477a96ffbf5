"""Counts the FLOPs of matrix products in the gradient of a program, as it is written.

It holds the formula (`train/flops.py`) to account: a formula that has lost sight of the program
would make every MFU wrong in silence.
"""

import dataclasses
import math
from typing import Any

import jax
from jax.extend import core

from bert_jax.errors import UserError
from bert_jax.models.config import Compute
from bert_jax.plan.inputs import Inputs
from bert_jax.programs.config import ProgramConfig
from bert_jax.programs.make import make_program
from bert_jax.train.flops import step_flops

TOLERANCE = 0.03


def check_formula(config: ProgramConfig, inputs: Inputs) -> float:
    """The counted FLOPs of a step of a phase's longest batch, with every parameter moving.

    Raises:
      UserError: the formula is off by more than 3 %.
    """
    sizes = inputs.shapes[-1]
    formula = step_flops(config, inputs.phase, sizes["L"], choices=sizes.get("A", 1))
    counted = counted_flops(config, inputs)
    if abs(counted / formula - 1) > TOLERANCE:
        raise UserError(
            f"the program has {counted:.4g} FLOPs a step by count and {formula:.4g} by formula, "
            f"more than {TOLERANCE:.0%} apart: bert_jax/train/flops.py does not know this program"
        )
    return counted


def counted_flops(config: ProgramConfig, inputs: Inputs) -> float:
    """FLOPs of all products in the forward and backward pass, nothing computed twice."""
    program = make_program(dataclasses.replace(config, compute=Compute()))
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in inputs.spec().items()
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        return program.losses(params, batch, program.normalisers(batch), jax.random.key(0)).loss

    return _flops(jax.make_jaxpr(jax.grad(loss))(program.abstract(), batch).jaxpr)


def _flops(jaxpr: core.Jaxpr) -> float:
    total, ones = 0.0, set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "broadcast_in_dim" and _shape(equation.invars[0]) == ():
            ones.add(equation.outvars[0])  # a product with it is a sum
        elif equation.primitive.name == "dot_general" and equation.invars[0] not in ones:
            total += _product(equation)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        inner = [_flops(each) for each in _inside(equation.params)]
        # Of the branches of a condition one runs.
        total += times * (max(inner, default=0.0) if "branches" in equation.params else sum(inner))
    return total


def _inside(params: dict[str, Any]) -> list[core.Jaxpr]:
    found = []
    for name, value in params.items():
        if name.startswith(("jvp", "fwd", "bwd")):  # rules that were applied already, or never will
            continue
        for each in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(each, "jaxpr", each)
            if isinstance(jaxpr, core.Jaxpr):
                found.append(jaxpr)
    return found


def _product(equation: Any) -> float:
    (contract, _), _ = equation.params["dimension_numbers"]
    left = _shape(equation.invars[0])
    out = _shape(equation.outvars[0])
    return 2.0 * math.prod(out) * math.prod(left[axis] for axis in contract)


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape
