"""How often each of several tasks is drawn (Raffel et al. 2020, 3.5.2)."""

from collections.abc import Mapping

from bert_jax.data.labelled.config import Capped, Equal, Mixing, Proportional, Temperature
from bert_jax.errors import UserError


def mixing_rates(examples: Mapping[str, int], mixing: Mixing) -> dict[str, float]:
    """Task -> share of the draws; the shares add up to 1.

    Args:
      examples: task -> number of its examples.
      mixing: what the rates follow from the numbers by.

    Raises:
      UserError: there is no task, or one has no examples.
    """
    if not examples or min(examples.values()) < 1:
        raise UserError(f"a mixture of {dict(examples)}; expected tasks with an example or more")
    rates = {name: _rate(count, mixing) for name, count in examples.items()}
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}


def _rate(count: int, mixing: Mixing) -> float:
    match mixing:
        case Equal():
            return 1.0
        case Proportional():
            return float(count)
        case Temperature(temperature=temperature):
            return count ** (1.0 / temperature)
        case Capped(examples=most):
            return float(min(count, most))
