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
    signal: signal.Signals


@dataclass(frozen=True, kw_only=True)
class Plan:
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
    hosts: tuple[int, ...]
    devices: int
    kills: tuple[Kill, ...] = ()
    dropped: frozenset[int] = frozenset()
    steps: int

    def __post_init__(self) -> None:
        if min((*self.hosts, self.devices)) < 1:
            raise ConfigError(
                f"--hosts {' '.join(map(str, self.hosts))} --devices {self.devices}: expected at "
                "least 1 of each"
            )
        for number, kill in enumerate(self.kills):
            said = f"--kill host={kill.host}@step={kill.step}"
            if kill.host >= self.hosts_at(number):
                raise ConfigError(
                    f"{said}: start {number + 1} has {self.hosts_at(number)} hosts, "
                    f"0 to {self.hosts_at(number) - 1}"
                )
            if not 0 < kill.step < self.steps:
                raise ConfigError(
                    f"{said}: the run has {self.steps} steps, so that a host can be killed at "
                    f"step 1 to {self.steps - 1}"
                )
            if number and kill.step <= self.kills[number - 1].step:
                raise ConfigError(f"{said}: expected a later step than that of the kill before it")
        for host in self.dropped:
            if host >= self.hosts[0] or self.hosts[0] == 1:
                raise ConfigError(
                    f"--drop host={host}: the hosts are 0 to {self.hosts[0] - 1}, and one is left"
                )

    def hosts_at(self, start: int) -> int:
        """How many hosts a start has, by its number from 0 on."""
        return self.hosts[min(start, len(self.hosts) - 1)]


def parse_kill(text: str, signal_name: str) -> Kill:
    """ "host=2@step=50" as a kill.

    Raises:
      ConfigError: another form.
    """
    found = re.fullmatch(r"host=(\d+)@step=(\d+)", text)
    if not found:
        raise ConfigError(f"--kill {text}: expected host=NUMBER@step=STEP, as in host=2@step=50")
    host, step = map(int, found.groups())
    return Kill(host=host, step=step, signal=SIGNALS[signal_name])


def parse_drop(text: str) -> int:
    """ "host=3" as a number.

    Raises:
      ConfigError: another form.
    """
    found = re.fullmatch(r"host=(\d+)", text)
    if not found:
        raise ConfigError(f"--drop {text}: expected host=NUMBER, as in host=3")
    return int(found[1])


def logging_every(configured: int, kills: tuple[Kill, ...]) -> int:
    """Steps between two log lines, such that each kill's step has one."""
    return math.gcd(configured, *(kill.step for kill in kills))
