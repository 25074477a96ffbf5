"""Summarizes a simulation in a few lines, and checks that its hosts agree with each other."""

from bert_jax.apps.simulate.attempt import Attempt
from bert_jax.apps.simulate.scenario import Scenario
from bert_jax.apps.simulate.supervisor import Outcome, describe_exit_codes, format_hosts
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED


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
