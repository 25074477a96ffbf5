"""Defines the scenario of a simulation: the hosts of each attempt, and which are killed when."""

import math
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import ConfigError

SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Describes a signal sent to one host when process 0 logs a step; at most one per attempt."""

    host: int
    step: int
    signal_to_send: signal.Signals


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Describes one simulation.

    Attributes:
      command: the command of each host, `bert-jax pretrain ...` with the run folder in it.
      run: the run folder.
      hosts_per_attempt: the number of hosts of each attempt; later attempts use the last number.
      devices_per_host: the number of CPU devices of each host.
      kills: the kill of the first attempt, of the second, and so on.
      missing_hosts: hosts that are not started in the first attempt.
      steps: the steps of the whole run.
    """

    command: tuple[str, ...]
    run: Path
    hosts_per_attempt: tuple[int, ...]
    devices_per_host: int
    kills: tuple[Kill, ...] = ()
    missing_hosts: frozenset[int] = frozenset()
    steps: int

    def __post_init__(self) -> None:
        if min((*self.hosts_per_attempt, self.devices_per_host)) < 1:
            raise ConfigError(
                f"--hosts {' '.join(map(str, self.hosts_per_attempt))} "
                f"--devices {self.devices_per_host}: expected at least 1 host and 1 device"
            )
        for index, kill in enumerate(self.kills):
            flag = f"--kill host={kill.host}@step={kill.step}"
            if kill.host >= self.num_hosts(index):
                raise ConfigError(
                    f"{flag}: expected a host from 0 to {self.num_hosts(index) - 1} in attempt "
                    f"{index + 1}"
                )
            if not 0 < kill.step < self.steps:
                raise ConfigError(
                    f"{flag}: expected a step from 1 to {self.steps - 1}, because the run has "
                    f"{self.steps} steps"
                )
            if index and kill.step <= self.kills[index - 1].step:
                raise ConfigError(f"{flag}: expected a later step than the previous kill's")
        for host in self.missing_hosts:
            flag = f"--missing-host host={host}"
            if self.hosts_per_attempt[0] == 1:
                raise ConfigError(f"{flag}: at least one host must be started; use --hosts 2")
            if host >= self.hosts_per_attempt[0]:
                raise ConfigError(
                    f"{flag}: expected a host from 0 to {self.hosts_per_attempt[0] - 1}"
                )

    def num_hosts(self, attempt_index: int) -> int:
        """Returns the number of hosts of an attempt, by its index from 0."""
        return self.hosts_per_attempt[min(attempt_index, len(self.hosts_per_attempt) - 1)]

    def describe_attempt(self, attempt_index: int) -> str:
        """Describes the hosts of an attempt, as in "attempt 1: 3 hosts x 2 devices"."""
        hosts, devices = self.num_hosts(attempt_index), self.devices_per_host
        return (
            f"attempt {attempt_index + 1}: {hosts} host{'s' * (hosts > 1)} x "
            f"{devices} device{'s' * (devices > 1)}"
        )


def parse_kill(text: str, signal_name: str) -> Kill:
    """Parses a kill like "host=2@step=50".

    Raises:
      ConfigError: the text has another form.
    """
    found = re.fullmatch(r"host=(\d+)@step=(\d+)", text)
    if not found:
        raise ConfigError(f"--kill {text}: expected host=NUMBER@step=STEP, as in host=2@step=50")
    host, step = map(int, found.groups())
    return Kill(host=host, step=step, signal_to_send=SIGNALS[signal_name])


def parse_missing_host(text: str) -> int:
    """Parses a host like "host=3".

    Raises:
      ConfigError: the text has another form.
    """
    found = re.fullmatch(r"host=(\d+)", text)
    if not found:
        raise ConfigError(f"--missing-host {text}: expected host=NUMBER, as in host=3")
    return int(found[1])


def logging_interval(configured: int, kills: tuple[Kill, ...]) -> int:
    """Returns a logging interval that divides the configured one and every kill's step."""
    return math.gcd(configured, *(kill.step for kill in kills))
