"""How often each of several tasks is drawn (Raffel et al. 2020, 3.5.2)."""

from collections.abc import Mapping

from bert_jax.data.finetuning.config import (
    CappedMixing,
    EqualMixing,
    Mixing,
    ProportionalMixing,
    TemperatureMixing,
)
from bert_jax.errors import UserError


def mixing_rates(num_examples: Mapping[str, int], mixing: Mixing) -> dict[str, float]:
    """Task -> share of the draws; the shares add up to 1.

    Args:
      examples: task -> number of its examples.
      mixing: what the rates follow from the numbers by.

    Raises:
      UserError: there is no task, or one has no examples.
    """
    if not num_examples or min(num_examples.values()) < 1:
        raise UserError(
            f"a mixture of {dict(num_examples)}; expected tasks with an example or more"
        )
    rates = {name: _rate(count, mixing) for name, count in num_examples.items()}
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}


def _rate(count: int, mixing: Mixing) -> float:
    match mixing:
        case EqualMixing():
            return 1.0
        case ProportionalMixing():
            return float(count)
        case TemperatureMixing(temperature=temperature):
            return count ** (1.0 / temperature)
        case CappedMixing(max_examples=max_examples):
            return float(min(count, max_examples))
