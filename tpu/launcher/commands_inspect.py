"""Implements the commands that show a run or end it: status, logs, stop, down, prices.

Each command takes a `CommandContext` and returns the exit code.
"""

import json
import logging
import time
from dataclasses import asdict, replace
from typing import Any

from bert_jax.errors import UserError
from tpu.launcher.cloud.backend import BILLED_STATUSES, LiveSlice
from tpu.launcher.command_context import CommandContext
from tpu.launcher.commands_launch import load_run
from tpu.launcher.restarts import actions, observe
from tpu.launcher.restarts.loop_types import LoopState
from tpu.launcher.restarts.restart_loop import describe_state, load_loop_state, save_loop_state
from tpu.launcher.runs import cost
from tpu.launcher.runs.manifest import utc_timestamp
from tpu.launcher.runs.run_context import RunContext
from tpu.protocol import EXIT_DONE, EXIT_FAILED, describe_exit_code

logger = logging.getLogger(__name__)

TEARDOWN_TIMEOUT_SECONDS = 30 * 60
_POLL_SECONDS = 10.0


def status(context: CommandContext) -> int:
    """Shows the state of a run: slices, hosts, checkpoints, cost so far."""
    run, now = load_run(context), context.clock.time()
    state = load_loop_state(run, now)
    markers = observe.list_markers(run)
    live_slices = observe.list_slices(run, run.manifest.zones)
    if any(live.status in BILLED_STATUSES for live in live_slices):
        # The restart loop saves its state only every few minutes, and not at all once it has ended.
        elapsed = max(0.0, now - state.wall_time)
        state = replace(state, billed_seconds=state.billed_seconds + elapsed)
    newest_attempt = max([state.attempt, *(each.attempt for each in live_slices)])
    reports = observe.read_reports(run, newest_attempt)
    if context.runner.dry:
        return EXIT_DONE
    if context.options.json:
        slices = [{**asdict(each), "resources": sorted(each.resources)} for each in live_slices]
        output = {
            "manifest": asdict(run.manifest),
            "restart_loop": asdict(state),
            "markers": sorted(markers),
            "slices": slices,
            "reports": reports,
        }
        print(json.dumps(output))
        return EXIT_DONE
    print(f"{run.manifest.run_id}: {' '.join(run.manifest.arguments)}")
    done = "DONE.json" in markers
    if done:
        state = replace(state, phase="ended", exit_code=EXIT_DONE, reason="done")
    elif not live_slices and state.phase in ("ready", "running"):
        # The slice was preempted after the restart loop last saved its state.
        state = replace(state, phase="idle", reason="")
    print(f"  {describe_state(state, run.usd_per_hour)}")
    if observe.is_stop_requested(markers) and not done:
        print(f"  asked to stop; `{run.command_line('babysit')}` resumes it")
    for live in live_slices:
        print(f"  slice of attempt {live.attempt} in {live.zone}: {live.status} ({live.detail})")
    if not live_slices:
        print("  no slice exists, so nothing is billed by the hour")
    for line in _host_status_lines(reports):
        print(f"  {line}")
    return EXIT_DONE


def logs(context: CommandContext) -> int:
    """Prints the logs of the hosts from the bucket; --follow keeps printing new lines."""
    run, options = load_run(context), context.options
    attempt = options.attempt
    if attempt is None:
        attempt = max(load_loop_state(run, time.time()).attempt, 0)
    slice_type = run.manifest.slice_type
    hosts = range(slice_type.hosts) if options.host is None else [options.host]
    if options.host is not None and not 0 <= options.host < slice_type.hosts:
        raise UserError(
            f"--host {options.host}: {slice_type.name} has hosts 0 to {slice_type.hosts - 1}"
        )
    lines_shown: dict[int, int] = {}
    while True:
        for host in hosts:
            text = run.bucket.read(run.folder.attempt(attempt).log(host)) or ""
            lines = text.splitlines()
            first = lines_shown.get(host, max(0, len(lines) - options.lines))
            for line in lines[first:]:
                print(f"[attempt {attempt} host {host}] {line}")
            lines_shown[host] = max(first, len(lines))
        if not options.follow or context.runner.dry:
            break
        context.clock.sleep(_POLL_SECONDS)
    if not any(lines_shown.values()) and not context.runner.dry:
        logger.info(
            "attempt %d has no logs yet; hosts copy them to the bucket every 30 s once training "
            "has started",
            attempt,
        )
    return EXIT_DONE


def stop(context: CommandContext) -> int:
    """Saves, ends the trainers and deletes the slice; the run can be resumed."""
    run, keep_slice = load_run(context), context.options.keep_slice
    # A restart loop that manages the run obeys this object, too.
    request = {"requested_at": utc_timestamp(), "keep_slice": keep_slice}
    run.bucket.write(run.stop_url, json.dumps(request) + "\n")
    all_stopped = True
    for live in observe.list_slices(run, run.manifest.zones):
        if live.status in ("ready", "degraded"):
            logger.info("asking the trainers of attempt %d to save", live.attempt)
            failure = actions.run_agent(run, live, "stop")
            if failure is not None:
                logger.warning("%s", failure.message)
                all_stopped = False
    if all_stopped and not keep_slice:
        return _delete_all_slices(context, run)
    price = run.usd_per_hour
    price_text = "" if price is None else f" at ${price:.2f} an hour"
    warning = "" if all_stopped else "not all trainers have confirmed the save; run `stop` again; "
    delete_command = run.command_line("down")
    logger.info("%sthe slice is kept%s; `%s` deletes it", warning, price_text, delete_command)
    return EXIT_DONE if all_stopped else EXIT_FAILED


def down(context: CommandContext) -> int:
    """Deletes every slice of the run and waits until none is left."""
    run = load_run(context)
    # Without this object, a restart loop that manages the run would create another slice.
    run.bucket.write(run.stop_url, json.dumps({"requested_at": utc_timestamp()}) + "\n")
    return _delete_all_slices(context, run)


def prices(context: CommandContext) -> int:
    """Prints the prices of all slices as a Markdown table."""
    print(cost.price_table(context.options.hours))
    return EXIT_DONE


def _delete_all_slices(context: CommandContext, run: RunContext) -> int:
    clock = context.clock
    started_at = clock.time()
    delete_requested: set[int] = set()
    while live_slices := observe.list_slices(run, run.manifest.zones):
        for live in live_slices:
            if live.status != "deleting" or live.attempt not in delete_requested:
                _delete_slice(run, live)
                delete_requested.add(live.attempt)
        if clock.time() - started_at > TEARDOWN_TIMEOUT_SECONDS:
            remaining = ", ".join(f"{each.detail} in {each.zone}" for each in live_slices)
            raise UserError(
                f"not deleted after {TEARDOWN_TIMEOUT_SECONDS // 60} minutes: {remaining}; run the "
                "command again"
            )
        clock.sleep(_POLL_SECONDS)
    logger.info(
        "no slice of this run is left, so nothing is billed by the hour; its folder in the bucket "
        "is kept: %s",
        run.folder.url,
    )
    state, now = load_loop_state(run, clock.time()), clock.time()
    if state.is_billed:
        # Otherwise a restart loop that resumes the run would count the hours until then as billed.
        billed = state.billed_seconds + max(0.0, now - state.wall_time)
        save_loop_state(run, replace(state, wall_time=now, billed_seconds=billed, is_billed=False))
    if run.manifest.backend == "gce":
        _delete_leftovers(run, state)
    return EXIT_DONE


def _delete_slice(run: RunContext, live: LiveSlice) -> None:
    logger.info("deleting the slice of attempt %d in %s (%s)", live.attempt, live.zone, live.detail)
    for error in actions.delete_slice(run, live.attempt, live.zone, live.resources):
        logger.warning("%s", error)


def _delete_leftovers(run: RunContext, state: LoopState) -> None:
    """Deletes templates and policies that an interrupted creation has left; they cost nothing."""
    zone = state.zone or run.manifest.zones[0]
    for attempt in range(max(0, state.attempt - 1), state.attempt + 1):
        for error in actions.delete_slice(run, attempt, zone, frozenset()):
            logger.warning("%s", error)


def _host_status_lines(reports: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for host in sorted({each["host"] for each in reports}):
        host_reports = [each for each in reports if each["host"] == host]
        heartbeat = next((each for each in host_reports if "phase" in each), None)
        exit_report = next((each for each in host_reports if "meaning" in each), None)
        if exit_report is not None:
            code = exit_report["code"]
            lines.append(f"host {host}: exited with code {code}: {describe_exit_code(code)}")
        elif heartbeat is not None:
            ago = max(0.0, time.time() - heartbeat["time"])
            step = "" if heartbeat["step"] is None else f", checkpoint {heartbeat['step']}"
            # `line` is the key in layout version 1.
            last_line = heartbeat.get("last_log_line", heartbeat.get("line"))
            lines.append(f"host {host}: {heartbeat['phase']}{step}, {ago:.0f} s ago: {last_line}")
        else:
            lines.append(f"host {host}: checked, not started")
    return lines
