"""Rates of mixtures against their definitions."""

import numpy as np
import pytest

from bert_jax.data.finetuning.config import (
    CappedMixing,
    EqualMixing,
    ProportionalMixing,
    TemperatureMixing,
)
from bert_jax.data.finetuning.mixing_rates import mixing_rates
from bert_jax.errors import ConfigError, UserError

COUNTS = {"rte": 2490, "mrpc": 3668, "mnli": 392702}


def test_rates():
    sizes = np.array(list(COUNTS.values()))
    expected = {
        EqualMixing(): np.ones(3),
        ProportionalMixing(): sizes,
        TemperatureMixing(temperature=2): np.sqrt(sizes),
        TemperatureMixing(temperature=1): sizes,
        TemperatureMixing(temperature=1e9): np.ones(3),
        CappedMixing(max_examples=3000): np.array([2490, 3000, 3000]),
        CappedMixing(max_examples=10**9): sizes,
    }
    for mixing, weights in expected.items():
        rates = mixing_rates(COUNTS, mixing)
        assert list(rates) == list(COUNTS)
        np.testing.assert_allclose(list(rates.values()), weights / weights.sum(), rtol=1e-6)


def test_mistakes():
    with pytest.raises(UserError, match="expected tasks with an example or more"):
        mixing_rates({"rte": 0}, EqualMixing())
    with pytest.raises(UserError, match="expected tasks with an example or more"):
        mixing_rates({}, EqualMixing())
    with pytest.raises(ConfigError, match="expected above 0"):
        TemperatureMixing(temperature=0)
    with pytest.raises(ConfigError, match="expected 1 or more"):
        CappedMixing(max_examples=0)
