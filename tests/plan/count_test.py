"""The formula of FLOPs against the products of the program itself, and a formula that is wrong."""

import pytest

from bert_jax import paths
from bert_jax.errors import UserError
from bert_jax.models.config import ChoiceHead, bert
from bert_jax.plan import count
from bert_jax.plan.inputs import Inputs, make_inputs
from bert_jax.plan.stand_in import planned_experiment
from bert_jax.programs.config import FineTuning
from bert_jax.programs.make import make_program
from bert_jax.train.config import Phase
from bert_jax.tuning.depth import lowest_moving
from bert_jax.tuning.frozen import Frozen

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
    monkeypatch.setattr(count, "step_flops", lambda *_, **__: 1e9)
    with pytest.raises(UserError, match="FLOPs a step by count and 1e\\+09 by formula"):
        count.check_formula(experiment.program, make_inputs(experiment)[0])


def test_choices_are_texts_that_the_encoder_reads():
    """Four texts a row are four times the FLOPs: the head has one score for each."""
    phase = Phase(steps=1, length=64, batch_size=8)
    config = FineTuning(model=bert("tiny"), head=ChoiceHead())
    fields = make_program(config).fields()
    sizes = {"B": 8, "A": 4, "L": 64}
    inputs = Inputs(phase=phase, fields=fields, shapes=(sizes,), shares=(1.0,))
    counted = count.check_formula(config, inputs)
    assert counted == pytest.approx(4 * count.step_flops(config, phase), rel=0.01)


@pytest.mark.parametrize("still", [0, 1, 6, 12])
def test_frozen_layers_have_no_backward_pass(still, monkeypatch):
    """The products that are there with the lowest layers frozen, by the program itself."""
    frozen = ("encoder/embeddings/**", *(f"encoder/layers/{k}/**" for k in range(still)))
    experiment, _ = planned_experiment(RECIPE, ["size=base"], [], 30522)
    inputs, config = make_inputs(experiment)[0], experiment.program
    params = paths.flatten(make_program(config).abstract())
    lowest = lowest_moving(params, frozen)
    assert lowest == still + 1
    monkeypatch.setattr(count, "make_program", lambda config: Frozen(make_program(config), frozen))
    formula = count.step_flops(config, inputs.phase, lowest=lowest)
    assert count.counted_flops(config, inputs) == pytest.approx(formula, rel=0.03)
