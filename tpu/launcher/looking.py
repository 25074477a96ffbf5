"""The verbs that look at a run or end it: status, logs, stop, down, prices."""

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from bert_jax.errors import UserError
from tpu.launcher import act, cost, observe
from tpu.launcher.babysit import describe, load_loop, save_loop, say
from tpu.launcher.backend import LiveSlice
from tpu.launcher.context import Run
from tpu.launcher.decide import BILLED
from tpu.launcher.gcloud import Runner
from tpu.launcher.manifest import now_text
from tpu.launcher.states import Loop
from tpu.launcher.verbs import find_run
from tpu.protocol import EXIT_DONE, EXIT_FAILED, meaning

GONE_SECONDS = 30 * 60
_TURN = 10.0


def status(args: argparse.Namespace, runner: Runner) -> int:
    """Where a run stands: slices, hosts, checkpoints, cost so far."""
    run, now = find_run(args, runner), args.timing.clock()
    state = load_loop(run, now)
    found = observe.marks(run)
    there = observe.slices(run, run.manifest.zones)
    if any(live.status in BILLED for live in there):
        # The loop writes seldom, and not at all if nobody looks after the run.
        state = replace(state, billed=state.billed + max(0.0, now - state.clock))
    newest = max([state.incarnation, *(each.incarnation for each in there)])
    reports = observe.reports(run, newest)
    if runner.dry:
        return EXIT_DONE
    if args.json:
        slices = [{**asdict(each), "parts": sorted(each.parts)} for each in there]
        known = {"manifest": asdict(run.manifest), "loop": asdict(state), "marks": sorted(found)}
        print(json.dumps({**known, "slices": slices, "reports": reports}))
        return EXIT_DONE
    print(f"{run.manifest.run_id}: {' '.join(run.manifest.arguments)}")
    done = "DONE.json" in found
    if done:
        state = replace(state, phase="ended", outcome=EXIT_DONE, reason="done")
    elif not there and state.phase in ("ready", "running"):
        state = replace(state, phase="down", reason="")  # taken away, and nobody has looked since
    print(f"  {describe(state, run.usd_per_hour)}")
    if observe.is_stopped(found) and not done:
        print(f"  asked to stop; {run.words('babysit')} goes on")
    for live in there:
        print(f"  slice of life {live.incarnation} in {live.zone}: {live.status} ({live.detail})")
    if not there:
        print("  no slice exists: nothing costs by the hour")
    for line in _host_lines(reports):
        print(f"  {line}")
    return EXIT_DONE


def logs(args: argparse.Namespace, runner: Runner) -> int:
    """The logs of all hosts, as they were copied into the bucket; -f goes on reading."""
    run = find_run(args, runner)
    life = args.incarnation
    if life is None:
        life = max(load_loop(run, time.time()).incarnation, 0)
    kind = run.manifest.kind
    hosts = range(kind.hosts) if args.host is None else [args.host]
    if args.host is not None and not 0 <= args.host < kind.hosts:
        raise UserError(f"--host {args.host}: {kind.name} has hosts 0 to {kind.hosts - 1}")
    seen: dict[int, int] = {}
    while True:
        for host in hosts:
            text = run.bucket.read(run.folder.incarnation(life).log(host)) or ""
            lines = text.splitlines()
            first = seen.get(host, max(0, len(lines) - args.lines))
            for line in lines[first:]:
                print(f"[life {life} host {host}] {line}")
            seen[host] = max(first, len(lines))
        if not args.follow or runner.dry:
            break
        args.timing.sleep(_TURN)
    if not any(seen.values()) and not runner.dry:
        say(f"life {life} has left no log yet; they are copied every 30 s once training has begun")
    return EXIT_DONE


def stop(args: argparse.Namespace, runner: Runner) -> int:
    """The trainers save and end, and the slice goes; the run can be taken up again."""
    run = find_run(args, runner)
    # A babysitter goes by it, too.
    run.bucket.write(run.stop_url, json.dumps({"asked": now_text(), "keep": args.keep}) + "\n")
    heard = True
    for live in observe.slices(run, run.manifest.zones):
        if live.status in ("ready", "unwell"):
            say(f"asking the trainers of life {live.incarnation} to save")
            failure = act.agent(run, live, "stop")
            if failure is not None:
                say(failure.text)
                heard = False
    if heard and not args.keep:
        return _take_down(args, run)
    price = run.usd_per_hour
    each = "" if price is None else f" at ${price:.2f} an hour"
    why = "" if heard else "not all trainers are known to have saved; `stop` again asks again; "
    say(f"{why}the slice is kept{each}; {run.words('down')} takes it away")
    return EXIT_DONE if heard else EXIT_FAILED


def down(args: argparse.Namespace, runner: Runner) -> int:
    """Deletes every slice of the run, and waits until none is left."""
    run = find_run(args, runner)
    # A babysitter would make another one.
    run.bucket.write(run.stop_url, json.dumps({"asked": now_text()}) + "\n")
    return _take_down(args, run)


def prices(args: argparse.Namespace, runner: Runner) -> int:
    """What slices cost, as Markdown."""
    print(cost.table(args.hours))
    return EXIT_DONE


def _take_down(args: argparse.Namespace, run: Run) -> int:
    begun = args.timing.clock()
    asked: set[int] = set()
    while there := observe.slices(run, run.manifest.zones):
        for live in there:
            if live.status != "deleting" or live.incarnation not in asked:
                _delete(run, live)
                asked.add(live.incarnation)
        if args.timing.clock() - begun > GONE_SECONDS:
            left = ", ".join(f"{each.detail} in {each.zone}" for each in there)
            raise UserError(f"still there after {GONE_SECONDS // 60} minutes: {left}; try again")
        args.timing.sleep(_TURN)
    print("nothing of this run is left that costs by the hour; its folder in the bucket stays: "
          f"{run.folder.url}", file=sys.stderr)  # fmt: skip
    state, now = load_loop(run, args.timing.clock()), args.timing.clock()
    if state.billing:
        # Whoever takes the run up again would count until then.
        billed = state.billed + max(0.0, now - state.clock)
        save_loop(run, replace(state, clock=now, billed=billed, billing=False))
    if run.manifest.backend == "gce":
        _sweep(run, state)
    return EXIT_DONE


def _delete(run: Run, live: LiveSlice) -> None:
    say(f"deleting the slice of life {live.incarnation} in {live.zone} ({live.detail})")
    for wrong in act.delete(run, live.incarnation, live.zone, live.parts):
        say(wrong)


def _sweep(run: Run, state: Loop) -> None:
    """Templates and policies cost nothing, but would be left over by a creation cut short."""
    for life in range(max(0, state.incarnation - 1), state.incarnation + 1):
        for wrong in act.delete(run, life, state.zone or run.manifest.zones[0], frozenset()):
            say(wrong)


def _host_lines(reports: list[dict[str, Any]]) -> list[str]:
    hosts = sorted({each["host"] for each in reports})
    lines: list[str] = []
    for host in hosts:
        own = [each for each in reports if each["host"] == host]
        state = next((each for each in own if "phase" in each), None)
        ended = next((each for each in own if "meaning" in each), None)
        if ended is not None:
            lines.append(f"host {host}: ended with {ended['code']}: {meaning(ended['code'])}")
        elif state is not None:
            ago = max(0.0, time.time() - state["time"])
            step = "" if state["step"] is None else f", checkpoint {state['step']}"
            lines.append(f"host {host}: {state['phase']}{step}, {ago:.0f} s ago: {state['line']}")
        else:
            lines.append(f"host {host}: looked over, not started")
    return lines
