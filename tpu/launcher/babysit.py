"""The restart loop: look, decide, remember, do; until the run is done or its limits are reached.

What it remembers is written into the bucket before it acts, so that it can be killed at any moment
and begun again on any machine.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from bert_jax.errors import UserError
from tpu.launcher import act, observe
from tpu.launcher.context import Run, slice_hours
from tpu.launcher.decide import decide
from tpu.launcher.lease import RENEW_SECONDS, Lease, LeaseLost
from tpu.launcher.states import (
    Action,
    Create,
    Delete,
    Failure,
    Limits,
    Loop,
    Observation,
    Start,
    Stop,
)
from tpu.protocol import EXIT_DONE, EXIT_FAILED, EXIT_SAVED

TURN_SECONDS = 30.0
FAST = 5.0  # while something is being done


class Babysitter:
    """Looks after one run. `until` "ready" ends as soon as the slice can be used."""

    def __init__(
        self,
        run: Run,
        limits: Limits,
        lease: Lease,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        turn_seconds: float = TURN_SECONDS,
    ):
        self._run, self._limits, self._lease = run, limits, lease
        self._clock, self._sleep, self._turn = clock, sleep, turn_seconds
        self._failure: Failure | None = None
        self._started: int | None = None
        self._said = ""
        self._renewed = clock()

    def look_after(self, until: str = "end") -> int:
        """Returns the run's exit code.

        Raises:
          UserError: another babysitter has taken over.
        """
        state = load_loop(self._run, self._clock())
        while True:
            try:
                self._renew()
            except LeaseLost:
                raise UserError(
                    f"another babysitter has taken {self._run.manifest.run_id} over; "
                    "nothing was touched, and this one leaves"
                ) from None
            before = state
            state, actions = decide(state, self._observe(state), self._clock(), self._limits)
            if until == "ready" and state.phase in ("ready", "running"):
                actions = tuple(each for each in actions if not isinstance(each, Start))
            self._tell(state)
            if before.phase == "running" and state.phase == "leaving":
                self._show_logs(state)
            if _memorable(before, state) or actions or state.ended:
                self._remember(state)
            with self._lease.kept():
                for action in actions:
                    self._do(action)
            if state.ended or (until == "ready" and state.phase in ("ready", "running")):
                code = state.outcome if state.ended else 0
                return EXIT_FAILED if code is None else code
            quick = state.phase == "leaving" or (self._failure is None and bool(actions))
            self._sleep(min(FAST, self._turn) if quick else self._turn)

    def _observe(self, state: Loop) -> Observation:
        failure, self._failure = self._failure, None
        run = self._run
        try:
            found = observe.marks(run)
            there = observe.slices(run, self._zones(state))
            newest = max([state.incarnation, *(each.incarnation for each in there)])
            hosts = observe.hosts(observe.reports(run, newest))
            stop = observe.is_stopped(found)
            keep = stop and observe.keeps_slice(run)
        except UserError as error:
            self._failure = failure  # told when it can be acted upon
            say(f"cannot look at the moment, so nothing is changed: {error}")
            return Observation(seen=False)
        return Observation(
            slices=there,
            hosts=hosts,
            # After a loop that died: a start that reached some hosts only is done again.
            started=self._started == newest or len(hosts) == self._limits.hosts,
            done="DONE.json" in found,
            stop=stop,
            keep=keep,
            failure=failure,
        )

    def _zones(self, state: Loop) -> list[str]:
        known = [*self._limits.zones, *self._run.manifest.zones, state.zone]
        return list(dict.fromkeys(zone for zone in known if zone))

    def _do(self, action: Action) -> None:
        run = self._run
        if isinstance(action, Create):
            say(f"asking for {run.manifest.slice} in {action.zone} (life {action.incarnation})")
            self._failure = act.create(run, action)
        elif isinstance(action, Start):
            say(f"starting on {', '.join(action.live.addresses)}")
            self._failure = act.start(run, action.live)
            if self._failure is None:
                self._started = action.live.incarnation
        elif isinstance(action, Stop):
            say("asking the trainers to save")
            failure = act.agent(run, action.live, "stop")
            if failure is not None:
                say(f"that did not reach all hosts: {failure.text}")
        elif isinstance(action, Delete):
            live = action.live
            say(f"deleting the slice of life {live.incarnation} in {live.zone} ({live.detail})")
            for wrong in act.delete(run, live.incarnation, live.zone, live.parts):
                say(wrong)
        if self._failure is not None:
            say(self._failure.text)

    def _renew(self) -> None:
        if self._clock() - self._renewed >= RENEW_SECONDS or self._clock() < self._renewed:
            try:
                self._lease.renew()
                self._renewed = self._clock()
            except UserError as error:  # the bucket cannot be reached: neither can it by others
                say(f"the lease could not be renewed: {error}")

    def _remember(self, state: Loop) -> None:
        try:
            save_loop(self._run, state)
        except UserError as error:
            say(f"the loop's memory could not be written: {error}")

    def _show_logs(self, state: Loop) -> None:
        """The end of what the hosts said, when a life has not ended as it should."""
        if state.outcome in (EXIT_DONE, EXIT_SAVED):
            return
        folder = self._run.folder.incarnation(state.incarnation)
        most = 10 if state.outcome is None else 50
        for host in range(self._limits.hosts):
            try:
                lines = (self._run.bucket.read(folder.log(host)) or "").splitlines()
            except UserError:
                continue
            for line in lines[-most:]:
                print(f"[life {state.incarnation} host {host}] {line}", file=sys.stderr)

    def _tell(self, state: Loop) -> None:
        # The cost changes at every turn; that alone is told every ten minutes.
        news = f"{describe(replace(state, billed=0.0), None)} {state.now // 600}"
        if news != self._said:
            say(describe(state, self._run.usd_per_hour))
            self._said = news


def load_loop(run: Run, clock: float) -> Loop:
    """What the loop remembers; a new one when there is nothing, or its run had ended before.

    Raises:
      UserError: what is there was written by other code; or the bucket cannot be read.
    """
    text = run.bucket.read(run.loop_url)
    if text is None:
        # Never a number again that has left reports: they would be taken for the new life's.
        return Loop(clock=clock, incarnation=observe.latest_life(run))
    try:
        state = Loop(**json.loads(text))
    except (TypeError, ValueError):
        raise UserError(
            f"{run.loop_url} is not what this version of the launcher writes; use the code that "
            "began the run, or remove the object once `tpu/pod down` has found nothing left: the "
            "run goes on, and counts its hours from 0 again"
        ) from None
    if not state.ended:
        return state
    # Begun again on purpose: what was spent still counts, old grudges do not.
    return replace(
        Loop(clock=clock),
        incarnation=state.incarnation,
        billed=state.billed,
        step=state.step,
        step_before=state.step,
    )


def save_loop(run: Run, state: Loop) -> None:
    """Keeps it for the next launcher.

    Raises:
      GcloudError: it cannot be written.
    """
    run.bucket.write(run.loop_url, json.dumps(asdict(state), indent=2) + "\n")


def make_limits(run: Run, zones: tuple[str, ...], keep: bool) -> Limits:
    """The limits of a run by its manifest."""
    return Limits(
        hosts=run.manifest.kind.hosts,
        zones=zones,
        hours=slice_hours(run.manifest),
        wait_hours=run.manifest.wait_hours,
        keep=keep,
    )


def describe(state: Loop, usd_per_hour: float | None) -> str:
    """One line that says where a run stands."""
    words = {
        "down": "no slice",
        "asked": f"life {state.incarnation}: waiting for a slice in {state.zone}",
        "ready": f"life {state.incarnation}: slice in {state.zone} is ready",
        "running": f"life {state.incarnation}: training in {state.zone}",
        "leaving": "taking the slice away",
        "ended": f"ended with code {state.outcome}",
    }[state.phase]
    step = f", checkpoint at step {state.step}" if state.step >= 0 else ""
    hours = state.billed / 3600
    cost = f", {hours:.1f} h of slices" if hours >= 0.05 else ""
    if cost and usd_per_hour is not None:
        cost += f" (${hours * usd_per_hour:.2f})"
    why = state.phase in ("down", "leaving", "ended") and state.reason
    return f"{words}{step}{cost}" + (f": {state.reason}" if why else "")


def say(line: str) -> None:
    """For people, on stderr, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _memorable(before: Loop, after: Loop) -> bool:
    """Whether more has changed than timers; those are written every ten minutes."""
    timers = {"clock": 0.0, "now": 0.0, "billed": 0.0, "beats": {}, "beats_since": {}}
    changed = replace(before, **timers) != replace(after, **timers)
    return changed or after.now // 600 != before.now // 600
