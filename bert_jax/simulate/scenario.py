"""What a simulated pod is to go through: its hosts at each start, and its accidents."""

import math
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import ConfigError

SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A signal to one host, as soon as process 0 has logged a step; a start has at most one."""

    host: int
    step: int
    signal_to_send: signal.Signals


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One simulation.

    Attributes:
      command: what each host runs, `bert-jax pretrain ...` with the run folder in it.
      run: the run folder.
      hosts: how many hosts each start has; the last number holds for all later starts.
      devices: of each host.
      kills: the first is for the first start, the second for the start after it, and so on.
      dropped: hosts that are never started.
      steps: updates of the whole run.
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
                f"--devices {self.devices_per_host}: expected at least 1 of each"
            )
        for index, kill in enumerate(self.kills):
            flag = f"--kill host={kill.host}@step={kill.step}"
            if kill.host >= self.num_hosts(index):
                raise ConfigError(
                    f"{flag}: start {index + 1} has {self.num_hosts(index)} hosts, "
                    f"0 to {self.num_hosts(index) - 1}"
                )
            if not 0 < kill.step < self.steps:
                raise ConfigError(
                    f"{flag}: the run has {self.steps} steps, so that a host can be killed at "
                    f"step 1 to {self.steps - 1}"
                )
            if index and kill.step <= self.kills[index - 1].step:
                raise ConfigError(f"{flag}: expected a later step than that of the kill before it")
        for host in self.missing_hosts:
            if host >= self.hosts_per_attempt[0] or self.hosts_per_attempt[0] == 1:
                raise ConfigError(
                    f"--missing-host host={host}: the hosts are 0 to "
                    f"{self.hosts_per_attempt[0] - 1}, and one is left"
                )

    def num_hosts(self, attempt_index: int) -> int:
        """How many hosts a start has, by its number from 0 on."""
        return self.hosts_per_attempt[min(attempt_index, len(self.hosts_per_attempt) - 1)]


def parse_kill(text: str, signal_name: str) -> Kill:
    """ "host=2@step=50" as a kill.

    Raises:
      ConfigError: another form.
    """
    found = re.fullmatch(r"host=(\d+)@step=(\d+)", text)
    if not found:
        raise ConfigError(f"--kill {text}: expected host=NUMBER@step=STEP, as in host=2@step=50")
    host, step = map(int, found.groups())
    return Kill(host=host, step=step, signal_to_send=SIGNALS[signal_name])


def parse_missing_host(text: str) -> int:
    """ "host=3" as a number.

    Raises:
      ConfigError: another form.
    """
    found = re.fullmatch(r"host=(\d+)", text)
    if not found:
        raise ConfigError(f"--missing-host {text}: expected host=NUMBER, as in host=3")
    return int(found[1])


def logging_interval(configured: int, kills: tuple[Kill, ...]) -> int:
    """Steps between two log lines, such that each kill's step has one."""
    return math.gcd(configured, *(kill.step for kill in kills))
