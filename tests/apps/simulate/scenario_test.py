"""Parses and validates scenarios of simulations."""

import signal
from pathlib import Path

import pytest

from bert_jax.apps.simulate.scenario import (
    Kill,
    Scenario,
    logging_interval,
    parse_kill,
    parse_missing_host,
)
from bert_jax.errors import ConfigError


def kill(host: int, step: int) -> Kill:
    return Kill(host=host, step=step, signal_to_send=signal.SIGTERM)


def scenario(**changes) -> Scenario:
    settings = {
        "command": ("true",),
        "run": Path("run"),
        "hosts_per_attempt": (4,),
        "devices_per_host": 2,
        "steps": 100,
    }
    return Scenario(**settings | changes)


def test_parse_kill_and_missing_host():
    assert parse_kill("host=2@step=50", "KILL") == Kill(
        host=2, step=50, signal_to_send=signal.SIGKILL
    )
    assert parse_missing_host("host=3") == 3
    for text in ("2@50", "host=2", "host=a@step=3", "host=2@step=50 ", "step=5@host=1"):
        with pytest.raises(ConfigError, match="as in host=2@step=50"):
            parse_kill(text, "TERM")
    with pytest.raises(ConfigError, match="--missing-host 3: expected host=NUMBER"):
        parse_missing_host("3")


def test_num_hosts_of_each_attempt():
    found = scenario(hosts_per_attempt=(1, 4, 2))
    assert [found.num_hosts(start) for start in range(5)] == [1, 4, 2, 2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts_per_attempt": (0,)}, "expected at least 1 host and 1 device"),
        ({"devices_per_host": 0}, "expected at least 1 host and 1 device"),
        ({"kills": (kill(4, 5),)}, "expected a host from 0 to 3 in attempt 1"),
        (
            {"hosts_per_attempt": (4, 1), "kills": (kill(3, 5), kill(1, 6))},
            "host from 0 to 0 in attempt 2",
        ),
        ({"kills": (kill(0, 100),)}, "the run has 100 steps"),
        ({"kills": (kill(0, 0),)}, "expected a step from 1 to 99"),
        ({"kills": (kill(0, 9), kill(1, 9))}, "a later step than the previous kill's"),
        ({"missing_hosts": frozenset({4})}, "--missing-host host=4: expected a host from 0 to 3"),
        (
            {"hosts_per_attempt": (1,), "missing_hosts": frozenset({0})},
            "at least one host must be started",
        ),
    ],
)
def test_invalid_scenarios(changes, message):
    with pytest.raises(ConfigError, match=message):
        scenario(**changes)


@pytest.mark.parametrize(
    ("configured", "steps", "interval"),
    [(50, (), 50), (50, (100,), 50), (50, (30,), 10), (50, (7,), 1)],
)
def test_logging_interval_divides_kill_steps(configured, steps, interval):
    assert logging_interval(configured, tuple(kill(0, step) for step in steps)) == interval
