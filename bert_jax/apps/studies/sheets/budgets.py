"""Computes how many updates of a model a budget of tokens or FLOPs allows."""

from collections.abc import Callable
from typing import NamedTuple

from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment, check_experiment
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.errors import ConfigError, UserError
from bert_jax.train.flops import step_flops

TOLERANCE = 0.01
"""The largest allowed deviation from the budget, as a fraction of it."""
_FIRST_GUESS = 1000


class Spending(NamedTuple):
    """Holds what a run spends.

    Attributes:
      updates: the number of updates.
      tokens: the positions of all batches, padding included.
      flops: the model FLOPs by formula.
    """

    updates: int
    tokens: float
    flops: float

    def amount(self, unit: str) -> float:
        """Returns the amount in the unit of a `Budget`."""
        return {"updates": self.updates, "tokens": self.tokens, "FLOPs": self.flops}[unit]


def spending(experiment: Experiment) -> Spending:
    """Computes what a run of a config spends."""
    phases = experiment.train.phases
    return Spending(
        updates=sum(phase.steps for phase in phases),
        tokens=float(sum(phase.steps * phase.batch_size * phase.seq_length for phase in phases)),
        flops=sum(phase.steps * step_flops(experiment.objective, phase) for phase in phases),
    )


def spend(budget: Budget, run: Callable[[int], Spending], name: str) -> Spending:
    """Finds the number of updates that spends a budget.

    Args:
      budget: the budget.
      run: what a run of a number of updates spends.
      name: the name of the model, for messages.

    Raises:
      UserError: no number of updates comes within one percent of the budget, so the models of a
        sheet would not be comparable.
    """
    steps, amount = _FIRST_GUESS, 0.0
    # Phases are rounded parts of the updates, so what a run spends is linear up to rounding.
    for _ in range(4):
        spent = run(steps)
        amount = spent.amount(budget.unit)
        best = max(1, round(steps * budget.amount / amount))
        if best == steps:
            break
        steps = best
    spent = run(steps)
    amount = spent.amount(budget.unit)
    if abs(amount / budget.amount - 1) > TOLERANCE:
        raise UserError(
            f"the model {name!r} cannot be trained with an equal budget: {steps:,} updates are "
            f"{amount:.4g} {budget.unit}, but the budget is {budget.amount:.4g}; expected a "
            "difference of at most 1 %: set a larger budget, or smaller batches"
        )
    return spent


def updates_of(model: Pretrain, budget: Budget, name: str) -> Spending:
    """Returns the updates, tokens and FLOPs of a model that is trained with a budget.

    Raises:
      ConfigError: the recipe has no such arguments or returns something else than an experiment.
      UserError: as for `spend`; or a corpus cannot be read.
    """
    get_config = load_recipe(model.recipe)

    def run(steps: int) -> Spending:
        built = call_recipe(get_config, model.assignments(steps, 0), model.recipe)
        found = spending(override(check_experiment(built, model.recipe), model.overrides))
        if not found.flops:
            raise ConfigError(f"{model.recipe}: a run has no updates; expected at least one")
        return found

    return spend(budget, run, name)
