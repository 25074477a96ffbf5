"""Runs the restart loop: observe, decide, save the state, act; until the run ends.

The state is saved in the bucket before each action, so the loop can be killed at any moment and
resumed on any machine.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from bert_jax.errors import UserError
from tpu.launcher import TPUCTL
from tpu.launcher.restarts import actions, observe
from tpu.launcher.restarts.lease import RENEW_SECONDS, Lease, LeaseLost
from tpu.launcher.restarts.loop_types import (
    Action,
    ActionFailure,
    CreateSlice,
    Limits,
    LoopState,
    Observation,
    StartTrainers,
    StopTrainers,
)
from tpu.launcher.restarts.restart_policy import decide
from tpu.launcher.runs import version_1
from tpu.launcher.runs.run_context import RunContext, max_slice_hours
from tpu.protocol import EXIT_DONE, EXIT_FAILED, EXIT_SAVED

logger = logging.getLogger(__name__)

TURN_SECONDS = 30.0
FAST_TURN_SECONDS = 5.0  # after a turn with actions, and while slices are being deleted


class RestartLoop:
    """Manages one run: creates slices, starts trainers, restarts and deletes."""

    def __init__(
        self,
        run: RunContext,
        limits: Limits,
        lease: Lease,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        turn_seconds: float = TURN_SECONDS,
    ):
        self._run, self._limits, self._lease = run, limits, lease
        self._clock, self._sleep, self._turn_seconds = clock, sleep, turn_seconds
        self._last_failure: ActionFailure | None = None
        self._started_attempt: int | None = None
        self._last_status_line = ""
        self._lease_renewed_at = clock()

    def run(self, until: str = "end") -> int:
        """Runs turns until the run ends; with `until` "ready", until its slice is ready.

        Returns:
          The run's exit code; 0 when the slice is ready.

        Raises:
          UserError: another launcher has taken the run over.
        """
        state = load_loop_state(self._run, self._clock())
        while True:
            try:
                self._renew_lease()
            except LeaseLost:
                raise UserError(
                    f"another launcher has taken over run {self._run.manifest.run_id}; "
                    "this launcher exits and has changed nothing since"
                ) from None
            before = state
            state, turn_actions = decide(state, self._observe(state), self._clock(), self._limits)
            if until == "ready" and state.phase in ("ready", "running"):
                turn_actions = tuple(
                    each for each in turn_actions if not isinstance(each, StartTrainers)
                )
            self._log_status(state)
            if before.phase == "running" and state.phase == "draining":
                self._print_host_logs(state)
            if _should_save(before, state) or turn_actions or state.ended:
                self._save_state(state)
            with self._lease.renewing():
                for action in turn_actions:
                    self._perform(action)
            if state.ended or (until == "ready" and state.phase in ("ready", "running")):
                code = state.exit_code if state.ended else 0
                return EXIT_FAILED if code is None else code
            poll_fast = state.phase == "draining" or (
                self._last_failure is None and bool(turn_actions)
            )
            self._sleep(
                min(FAST_TURN_SECONDS, self._turn_seconds) if poll_fast else self._turn_seconds
            )

    def _observe(self, state: LoopState) -> Observation:
        failure, self._last_failure = self._last_failure, None
        run = self._run
        try:
            markers = observe.list_markers(run)
            live_slices = observe.list_slices(run, self._zones_to_observe(state))
            newest_attempt = max([state.attempt, *(each.attempt for each in live_slices)])
            hosts = observe.summarize_hosts(observe.read_reports(run, newest_attempt))
            stop_requested = observe.is_stop_requested(markers)
            keep_slice = stop_requested and observe.is_keep_slice_requested(run)
        except UserError as error:
            self._last_failure = failure  # `decide` handles it in the next turn that can observe
            logger.info("the cloud cannot be read at the moment, so nothing is changed: %s", error)
            return Observation(reachable=False)
        return Observation(
            slices=live_slices,
            hosts=hosts,
            # After a loop that died, only some hosts may have been started: start again.
            trainers_started=self._started_attempt == newest_attempt
            or len(hosts) == self._limits.hosts,
            done="DONE.json" in markers,
            stop_requested=stop_requested,
            keep_slice=keep_slice,
            failure=failure,
        )

    def _zones_to_observe(self, state: LoopState) -> list[str]:
        zones = [*self._limits.zones, *self._run.manifest.zones, state.zone]
        return list(dict.fromkeys(zone for zone in zones if zone))

    def _perform(self, action: Action) -> None:
        run = self._run
        if isinstance(action, CreateSlice):
            logger.info(
                "requesting %s in %s (attempt %d)", run.manifest.slice, action.zone, action.attempt
            )
            self._last_failure = actions.create_slice(run, action)
        elif isinstance(action, StartTrainers):
            logger.info("starting the trainers on %s", ", ".join(action.live.addresses))
            self._last_failure = actions.start_trainers(run, action.live)
            if self._last_failure is None:
                self._started_attempt = action.live.attempt
        elif isinstance(action, StopTrainers):
            logger.info("asking the trainers to save")
            failure = actions.run_agent(run, action.live, "stop")
            if failure is not None:
                logger.warning("not all hosts were reached: %s", failure.message)
        else:  # DeleteSlice
            live = action.live
            logger.info(
                "deleting the slice of attempt %d in %s (%s)", live.attempt, live.zone, live.detail
            )
            for error_text in actions.delete_slice(run, live.attempt, live.zone, live.resources):
                logger.warning("%s", error_text)
        if self._last_failure is not None:
            logger.warning("%s", self._last_failure.message)

    def _renew_lease(self) -> None:
        if (
            self._clock() - self._lease_renewed_at >= RENEW_SECONDS
            or self._clock() < self._lease_renewed_at
        ):
            try:
                self._lease.renew()
                self._lease_renewed_at = self._clock()
            except UserError as error:  # other launchers cannot reach the bucket either
                logger.warning("the lease could not be renewed: %s", error)

    def _save_state(self, state: LoopState) -> None:
        try:
            save_loop_state(self._run, state)
        except UserError as error:
            logger.warning("the state of the restart loop could not be saved: %s", error)

    def _print_host_logs(self, state: LoopState) -> None:
        """Prints the last lines of the hosts' logs when an attempt ended unexpectedly."""
        if state.exit_code in (EXIT_DONE, EXIT_SAVED):
            return
        folder = self._run.folder.attempt(state.attempt)
        max_lines = 10 if state.exit_code is None else 50
        for host in range(self._limits.hosts):
            try:
                lines = (self._run.bucket.read(folder.log(host)) or "").splitlines()
            except UserError:
                continue
            for line in lines[-max_lines:]:
                logger.info("[attempt %d host %d] %s", state.attempt, host, line)

    def _log_status(self, state: LoopState) -> None:
        # The cost changes every turn; a change of the cost alone is logged every ten minutes.
        status_line = (
            f"{describe_state(replace(state, billed_seconds=0.0), None)} {state.loop_time // 600}"
        )
        if status_line != self._last_status_line:
            logger.info("%s", describe_state(state, self._run.usd_per_hour))
            self._last_status_line = status_line


def load_loop_state(run: RunContext, wall_time: float) -> LoopState:
    """Loads the saved state; returns a new one if there is none or if the loop had ended.

    Raises:
      UserError: the saved state has another format; or the bucket cannot be read.
    """
    url = run.folder.loop_state
    text = run.bucket.read(url)
    if text is None:
        # An attempt number is never used twice: reports of the earlier attempt would be read as
        # reports of the new one.
        return LoopState(wall_time=wall_time, attempt=observe.latest_attempt(run))
    try:
        data = json.loads(text)
        if run.folder.layout_version == 1:
            data = version_1.upgrade_loop_state(data)
        state = LoopState(**data)
    except (TypeError, ValueError, AttributeError):
        raise UserError(
            f"{url} was written by another version of the launcher; use the checkout that launched "
            f"the run, or remove the object after `{TPUCTL} down` has found no slice: the run can "
            "then be resumed, and its hours are counted from 0"
        ) from None
    if not state.ended:
        return state
    # Resumed on purpose: the hours so far still count, failures and blocked zones do not.
    return replace(
        LoopState(wall_time=wall_time),
        attempt=state.attempt,
        billed_seconds=state.billed_seconds,
        step=state.step,
        step_at_start=state.step,
    )


def save_loop_state(run: RunContext, state: LoopState) -> None:
    """Saves the state for the next launcher.

    Raises:
      GcloudError: it cannot be written.
    """
    run.bucket.write(run.folder.loop_state, json.dumps(asdict(state), indent=2) + "\n")


def make_limits(run: RunContext, zones: tuple[str, ...], keep_slice: bool) -> Limits:
    """Returns the limits of a run, from its manifest."""
    return Limits(
        hosts=run.manifest.slice_type.hosts,
        zones=zones,
        max_hours=max_slice_hours(run.manifest),
        wait_hours=run.manifest.wait_hours,
        keep_slice=keep_slice,
    )


def describe_state(state: LoopState, usd_per_hour: float | None) -> str:
    """Returns one line that describes the state of the run."""
    phase_text = {
        "idle": "no slice",
        "requested": f"attempt {state.attempt}: waiting for a slice in {state.zone}",
        "ready": f"attempt {state.attempt}: slice in {state.zone} is ready",
        "running": f"attempt {state.attempt}: training in {state.zone}",
        "draining": "deleting the slice",
        "ended": f"ended with code {state.exit_code}",
    }[state.phase]
    step = f", checkpoint at step {state.step}" if state.step >= 0 else ""
    hours = state.billed_seconds / 3600
    cost = f", {hours:.1f} slice hours" if hours >= 0.05 else ""
    if cost and usd_per_hour is not None:
        cost += f" (${hours * usd_per_hour:.2f})"
    show_reason = state.phase in ("idle", "draining", "ended") and state.reason
    return f"{phase_text}{step}{cost}" + (f": {state.reason}" if show_reason else "")


def _should_save(before: LoopState, after: LoopState) -> bool:
    """Returns whether more than timers has changed; timers are saved every ten minutes."""
    timer_fields = {
        "wall_time": 0.0,
        "loop_time": 0.0,
        "billed_seconds": 0.0,
        "heartbeats": {},
        "heartbeat_times": {},
    }
    changed = replace(before, **timer_fields) != replace(after, **timer_fields)
    return changed or after.loop_time // 600 != before.loop_time // 600
