"""What happened to a simulated pod, in a few lines, and whether its hosts agreed."""

from bert_jax.pod.life import Life
from bert_jax.pod.plan import Plan
from bert_jax.pod.supervisor import Outcome, hosts, told
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED


def account(plan: Plan, outcome: Outcome) -> str:
    """One paragraph for each start, and one line for the whole."""
    lines: list[str] = []
    former: Life | None = None
    for number, life in enumerate(outcome.lives):
        lines.append(f"start {number + 1}: {life.hosts} x {plan.devices} devices")
        lines += [f"  {line}" for line in [*_began(life, former), *_ended(plan, number, life)]]
        former = life
    wrong = disagreements(outcome)
    lines += [f"NOT AGREED: {line}" for line in wrong]
    if outcome.code == EXIT_DONE:
        end = f"the run is complete: {plan.steps} steps"
    elif outcome.code == EXIT_PREEMPTED:
        end = "stopped as asked; the same command goes on from there"
    else:
        end = "the run is not complete"
    agreed = "" if wrong else ", and all hosts agreed on every step that they saved and began after"
    return "\n".join([*lines, f"{end}{agreed}" if outcome.code == EXIT_DONE else end])


def disagreements(outcome: Outcome) -> list[str]:
    """Where hosts of one start said different things, or a start did not go on from the last."""
    lines = []
    former: Life | None = None
    for number, life in enumerate(outcome.lives, start=1):
        for what, steps in (("began after", life.begins), ("saved", life.saved)):
            if len(set(steps.values())) > 1:
                said = ", ".join(f"host {host}: {step}" for host, step in sorted(steps.items()))
                lines.append(f"start {number}: hosts {what} different steps ({said})")
        if life.saved and set(life.codes.values()) == {EXIT_PREEMPTED}:
            for host in sorted(set(life.codes) - set(life.saved)):
                lines.append(f"start {number}: host {host} did not say which step was saved")
        if former is not None and former.saved and life.begins:
            saved, began = max(former.saved.values()), min(life.begins.values())
            if saved != began:
                lines.append(f"start {number}: step {saved} was saved, it began after step {began}")
        former = life
    return lines


def _began(life: Life, former: Life | None) -> list[str]:
    steps = sorted(set(life.begins.values()))
    if not steps or (former is None and steps == [0]):
        return []
    lines = [f"began after step {' and '.join(map(str, steps))}"]
    if former is not None and former.killed and not former.saved:
        _, seen = former.killed
        again = seen - steps[0]
        lines[0] += f": {again} steps are done again" if again > 0 else ""
    return lines


def _ended(plan: Plan, number: int, life: Life) -> list[str]:
    lines = []
    if life.killed:
        kill, step = life.killed
        lines.append(f"{kill.signal.name} to host {kill.host}, when step {step} was logged")
    elif number < len(plan.kills):
        kill = plan.kills[number]
        lines.append(f"no {kill.signal.name} to host {kill.host}: step {kill.step} was not seen")
    for step in sorted(set(life.saved.values())):
        these = [host for host, saved in life.saved.items() if saved == step]
        who = f"all {life.hosts} hosts" if len(these) == life.hosts else hosts(sorted(these))
        lines.append(f"{who} saved step {step}")
    absent = sorted(set(range(life.hosts)) - set(life.codes))
    if absent:
        lines.append(f"{hosts(absent)} not started")
    lines.append(told(life))
    if life.ended_here:
        lines.append(f"{hosts(life.ended_here)} had to be killed")
    if life.first_failed is not None and life.killed is None:
        said = life.errors.get(life.first_failed) or "nothing"
        lines.append(f"host {life.first_failed} said: {said}")
    return lines
