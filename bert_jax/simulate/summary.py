"""What happened to a simulated pod, in a few lines, and whether its hosts agreed."""

from bert_jax.simulate.attempt import Attempt
from bert_jax.simulate.scenario import Scenario
from bert_jax.simulate.supervisor import Outcome, describe_exit_codes, format_hosts
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED


def summarize(scenario: Scenario, outcome: Outcome) -> str:
    """One paragraph for each start, and one line for the whole."""
    lines: list[str] = []
    previous: Attempt | None = None
    for number, attempt in enumerate(outcome.attempts):
        lines.append(
            f"start {number + 1}: {attempt.num_hosts} x {scenario.devices_per_host} devices"
        )
        lines += [
            f"  {line}"
            for line in [*_resume_lines(attempt, previous), *_end_lines(scenario, number, attempt)]
        ]
        previous = attempt
    mismatches = disagreements(outcome)
    lines += [f"NOT AGREED: {line}" for line in mismatches]
    if outcome.exit_code == EXIT_DONE:
        end = f"the run is complete: {scenario.steps} steps"
    elif outcome.exit_code == EXIT_PREEMPTED:
        end = "stopped as asked; the same command goes on from there"
    else:
        end = "the run is not complete"
    agreement = (
        "" if mismatches else ", and all hosts agreed on every step that they saved and began after"
    )
    return "\n".join([*lines, f"{end}{agreement}" if outcome.exit_code == EXIT_DONE else end])


def disagreements(outcome: Outcome) -> list[str]:
    """Where hosts of one start said different things, or a start did not go on from the last."""
    lines = []
    previous: Attempt | None = None
    for number, attempt in enumerate(outcome.attempts, start=1):
        for event, steps in (("began after", attempt.resumed_from), ("saved", attempt.saved)):
            if len(set(steps.values())) > 1:
                steps_by_host = ", ".join(
                    f"host {host}: {step}" for host, step in sorted(steps.items())
                )
                lines.append(f"start {number}: hosts {event} different steps ({steps_by_host})")
        if attempt.saved and set(attempt.exit_codes.values()) == {EXIT_PREEMPTED}:
            for host in sorted(set(attempt.exit_codes) - set(attempt.saved)):
                lines.append(f"start {number}: host {host} did not say which step was saved")
        if previous is not None and previous.saved and attempt.resumed_from:
            saved, resumed = max(previous.saved.values()), min(attempt.resumed_from.values())
            if saved != resumed:
                lines.append(
                    f"start {number}: step {saved} was saved, it began after step {resumed}"
                )
        previous = attempt
    return lines


def _resume_lines(attempt: Attempt, previous: Attempt | None) -> list[str]:
    steps = sorted(set(attempt.resumed_from.values()))
    if not steps or (previous is None and steps == [0]):
        return []
    lines = [f"began after step {' and '.join(map(str, steps))}"]
    if previous is not None and previous.killed and not previous.saved:
        _, logged_step = previous.killed
        repeated_steps = logged_step - steps[0]
        lines[0] += f": {repeated_steps} steps are done again" if repeated_steps > 0 else ""
    return lines


def _end_lines(scenario: Scenario, number: int, attempt: Attempt) -> list[str]:
    lines = []
    if attempt.killed:
        kill, step = attempt.killed
        lines.append(f"{kill.signal_to_send.name} to host {kill.host}, when step {step} was logged")
    elif number < len(scenario.kills):
        kill = scenario.kills[number]
        lines.append(
            f"no {kill.signal_to_send.name} to host {kill.host}: step {kill.step} was not seen"
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
        lines.append(f"{format_hosts(attempt.killed_by_simulator)} had to be killed")
    if attempt.first_failed_host is not None and attempt.killed is None:
        message = attempt.errors.get(attempt.first_failed_host) or "nothing"
        lines.append(f"host {attempt.first_failed_host} said: {message}")
    return lines
