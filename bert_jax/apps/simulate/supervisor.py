"""Supervises a simulated run: restarts all hosts from the newest checkpoint, or gives up.

all hosts exit with 0                        the run is complete
all hosts exit with 75                       all have saved: restart
a host is killed, aborts, or hangs (70)      restart, while checkpoints make progress
anything else                                would fail again: give up
"""

import contextlib
import logging
import signal
import time
from dataclasses import dataclass
from types import FrameType, TracebackType

from bert_jax.apps.simulate.attempt import (
    Attempt,
    describe_exit_code,
    newest_checkpoint_step,
    run_attempt,
)
from bert_jax.apps.simulate.scenario import Scenario
from bert_jax.runs.progress import format_duration
from bert_jax.train.preemption import (
    EXIT_DONE,
    EXIT_HUNG,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    signal_handlers,
)

logger = logging.getLogger(__name__)

MAX_ATTEMPTS_WITHOUT_PROGRESS = 3
"""The supervisor gives up after this many attempts in a row without a newer checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Holds all attempts of a simulation, and its exit code."""

    exit_code: int
    attempts: tuple[Attempt, ...]


class Supervisor:
    """Runs a scenario as a context manager that forwards SIGTERM and Ctrl-C to all hosts.

    A second Ctrl-C kills them. The output of the hosts is logged, prefixed with their numbers.
    """

    def __init__(self, scenario: Scenario):
        self._scenario = scenario
        self._stack = contextlib.ExitStack()
        self._pending_signals: list[signal.Signals] = []
        self._stop_requested = False
        self._start_time = time.monotonic()

    def __enter__(self) -> "Supervisor":
        self._stack.enter_context(signal_handlers((signal.SIGTERM, signal.SIGINT), self._on_signal))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self) -> Outcome:
        """Starts attempts until the run is complete or another attempt would be useless."""
        attempts: list[Attempt] = []
        attempts_without_progress = 0
        while True:
            start_step = newest_checkpoint_step(self._scenario.run)
            origin = f"from step {start_step}" if start_step else "from scratch"
            self._log(f"{self._scenario.describe_attempt(len(attempts))}, {origin}")
            attempt = run_attempt(
                self._scenario,
                len(attempts),
                on_line=self._on_line,
                log=self._log,
                next_signal=self._next_signal,
            )
            attempts.append(attempt)
            exit_codes = set(attempt.exit_codes.values())
            self._log(f"attempt {len(attempts)} ended: {describe_exit_codes(attempt)}")
            if exit_codes == {EXIT_DONE}:
                return Outcome(exit_code=EXIT_DONE, attempts=tuple(attempts))
            if self._stop_requested:
                exit_code = EXIT_PREEMPTED if exit_codes == {EXIT_PREEMPTED} else EXIT_USER_ERROR
                return Outcome(exit_code=exit_code, attempts=tuple(attempts))
            progressed = (
                # An attempt that the scenario killed counts as progress: it did not fail by
                # itself.
                attempt.killed is not None
                or newest_checkpoint_step(self._scenario.run) > start_step
            )
            attempts_without_progress = 0 if progressed else attempts_without_progress + 1
            if (
                not _is_retryable(attempt)
                or attempts_without_progress >= MAX_ATTEMPTS_WITHOUT_PROGRESS
            ):
                return Outcome(exit_code=_failure_exit_code(attempt), attempts=tuple(attempts))

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        second_interrupt = self._stop_requested and signal_number == signal.SIGINT
        # The handler only records the signal; the loop of the attempt sends it, because hosts are
        # not known here.
        self._pending_signals.append(signal.SIGKILL if second_interrupt else signal.SIGTERM)
        self._stop_requested = True

    def _next_signal(self) -> signal.Signals | None:
        return self._pending_signals.pop() if self._pending_signals else None

    def _on_line(self, host: int, line: str) -> None:
        logger.info("[host %d] %s", host, line)

    def _log(self, line: str) -> None:
        elapsed = format_duration(time.monotonic() - self._start_time)
        logger.info("[simulator %s] %s", elapsed, line)


def describe_exit_codes(attempt: Attempt) -> str:
    """Describes exit codes, as in "exit code 0 on hosts 0, 1; killed by SIGKILL on host 2"."""
    groups: dict[int, list[int]] = {}
    for host, exit_code in sorted(attempt.exit_codes.items()):
        groups.setdefault(exit_code, []).append(host)
    return "; ".join(
        f"{describe_exit_code(exit_code)} on {format_hosts(host_numbers)}"
        for exit_code, host_numbers in groups.items()
    )


def format_hosts(host_numbers: list[int]) -> str:
    """Formats host numbers, as in "host 2" or "hosts 0, 1"."""
    return f"host{'s' * (len(host_numbers) > 1)} {', '.join(map(str, host_numbers))}"


def _is_retryable(attempt: Attempt) -> bool:
    """Returns whether another attempt may succeed, judging by the host that failed first."""
    if attempt.first_failed_host is None:
        return True  # all hosts have saved or are done
    exit_code = attempt.exit_codes[attempt.first_failed_host]
    return exit_code < 0 or exit_code == EXIT_HUNG


def _failure_exit_code(attempt: Attempt) -> int:
    exit_code = (
        EXIT_USER_ERROR
        if attempt.first_failed_host is None
        else attempt.exit_codes[attempt.first_failed_host]
    )
    return exit_code if exit_code > 0 else EXIT_USER_ERROR


def summarize(scenario: Scenario, outcome: Outcome) -> str:
    """Returns a paragraph for each attempt, and a line for the whole run."""
    lines: list[str] = []
    previous: Attempt | None = None
    for number, attempt in enumerate(outcome.attempts):
        lines.append(scenario.describe_attempt(number))
        lines += [
            f"  {line}"
            for line in [*_resume_lines(attempt, previous), *_end_lines(scenario, number, attempt)]
        ]
        previous = attempt
    mismatches = disagreements(outcome)
    lines += [f"MISMATCH: {line}" for line in mismatches]
    if outcome.exit_code == EXIT_DONE:
        end = f"the run is complete: {scenario.steps} steps"
    elif outcome.exit_code == EXIT_PREEMPTED:
        end = "stopped by a signal; run the same command to resume"
    else:
        end = "the run is not complete"
    agreement = "" if mismatches else "; all hosts agree on every saved and resumed step"
    return "\n".join([*lines, f"{end}{agreement}" if outcome.exit_code == EXIT_DONE else end])


def disagreements(outcome: Outcome) -> list[str]:
    """Lists attempts whose hosts disagree, or that do not resume where the previous one ended."""
    lines = []
    previous: Attempt | None = None
    for number, attempt in enumerate(outcome.attempts, start=1):
        for event, steps in (("resumed after", attempt.resumed_from), ("saved", attempt.saved)):
            if len(set(steps.values())) > 1:
                steps_by_host = ", ".join(
                    f"host {host}: {step}" for host, step in sorted(steps.items())
                )
                lines.append(f"attempt {number}: hosts {event} different steps ({steps_by_host})")
        if attempt.saved and set(attempt.exit_codes.values()) == {EXIT_PREEMPTED}:
            for host in sorted(set(attempt.exit_codes) - set(attempt.saved)):
                lines.append(f"attempt {number}: host {host} did not report the saved step")
        if previous is not None and previous.saved and attempt.resumed_from:
            saved, resumed = max(previous.saved.values()), min(attempt.resumed_from.values())
            if saved != resumed:
                lines.append(
                    f"attempt {number}: step {saved} was saved, but it resumed after step {resumed}"
                )
        previous = attempt
    return lines


def _resume_lines(attempt: Attempt, previous: Attempt | None) -> list[str]:
    steps = sorted(set(attempt.resumed_from.values()))
    if not steps or (previous is None and steps == [0]):
        return []
    lines = [f"resumed after step {' and '.join(map(str, steps))}"]
    if previous is not None and previous.killed and not previous.saved:
        _, logged_step = previous.killed
        repeated_steps = logged_step - steps[0]
        lines[0] += f": {repeated_steps} steps are repeated" if repeated_steps > 0 else ""
    return lines


def _end_lines(scenario: Scenario, number: int, attempt: Attempt) -> list[str]:
    lines = []
    if attempt.killed:
        kill, step = attempt.killed
        lines.append(f"{kill.signal_to_send.name} to host {kill.host} after step {step}")
    elif number < len(scenario.kills):
        kill = scenario.kills[number]
        lines.append(
            f"no {kill.signal_to_send.name} to host {kill.host}: step {kill.step} was not logged"
        )
    for step in sorted(set(attempt.saved.values())):
        host_numbers = [host for host, saved in attempt.saved.items() if saved == step]
        host_names = (
            f"all {attempt.num_hosts} hosts"
            if len(host_numbers) == attempt.num_hosts
            else format_hosts(sorted(host_numbers))
        )
        lines.append(f"{host_names} saved step {step}")
    missing = sorted(set(range(attempt.num_hosts)) - set(attempt.exit_codes))
    if missing:
        lines.append(f"{format_hosts(missing)} not started")
    lines.append(describe_exit_codes(attempt))
    if attempt.killed_by_simulator:
        lines.append(f"{format_hosts(attempt.killed_by_simulator)} killed by the simulator")
    if attempt.first_failed_host is not None and attempt.killed is None:
        message = attempt.errors.get(attempt.first_failed_host) or "no output"
        lines.append(f"message of host {attempt.first_failed_host}: {message}")
    return lines
