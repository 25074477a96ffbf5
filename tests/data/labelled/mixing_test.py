"""Rates of mixtures against their definitions."""

import numpy as np
import pytest

from bert_jax.data.labelled.config import Capped, Equal, Proportional, Temperature
from bert_jax.data.labelled.mixing import mixing_rates
from bert_jax.errors import ConfigError, UserError

COUNTS = {"rte": 2490, "mrpc": 3668, "mnli": 392702}


def test_rates():
    sizes = np.array(list(COUNTS.values()))
    expected = {
        Equal(): np.ones(3),
        Proportional(): sizes,
        Temperature(temperature=2): np.sqrt(sizes),
        Temperature(temperature=1): sizes,
        Temperature(temperature=1e9): np.ones(3),
        Capped(examples=3000): np.array([2490, 3000, 3000]),
        Capped(examples=10**9): sizes,
    }
    for mixing, weights in expected.items():
        rates = mixing_rates(COUNTS, mixing)
        assert list(rates) == list(COUNTS)
        np.testing.assert_allclose(list(rates.values()), weights / weights.sum(), rtol=1e-6)


def test_mistakes():
    with pytest.raises(UserError, match="expected tasks with an example or more"):
        mixing_rates({"rte": 0}, Equal())
    with pytest.raises(UserError, match="expected tasks with an example or more"):
        mixing_rates({}, Equal())
    with pytest.raises(ConfigError, match="expected above 0"):
        Temperature(temperature=0)
    with pytest.raises(ConfigError, match="expected 1 or more"):
        Capped(examples=0)
