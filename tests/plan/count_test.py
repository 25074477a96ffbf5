"""The formula of FLOPs against the products of the program itself, and a formula that is wrong."""

import pytest

from bert_jax.errors import UserError
from bert_jax.plan import count
from bert_jax.plan.inputs import make_inputs
from bert_jax.plan.stand_in import planned_experiment

RECIPE = "configs/pretrain/bert.py"


@pytest.mark.parametrize("size", ["tiny", "base"])
def test_the_formula_agrees_with_the_program(size):
    experiment, _ = planned_experiment(RECIPE, [f"size={size}"], [], 30522)
    for inputs in make_inputs(experiment):
        counted = count.check_formula(experiment.program, inputs)
        assert counted == pytest.approx(
            count.step_flops(experiment.program, inputs.phase), rel=0.005
        )


def test_a_formula_that_is_wrong_is_found(monkeypatch):
    experiment, _ = planned_experiment(RECIPE, ["size=tiny"], [], 30522)
    monkeypatch.setattr(count, "step_flops", lambda *_: 1e9)
    with pytest.raises(UserError, match="FLOPs a step by count and 1e\\+09 by formula"):
        count.check_formula(experiment.program, make_inputs(experiment)[0])
