"""Times processes that take turns, and appends each result to a file, for several benches.

A measurement is a process from its start to its end, or to a line that it writes. A file of JSON
lines has what was measured, so that a bench that was stopped goes on where it was.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # nobody compiles all modules again at each start
    "PYTHONPATH": str(REPOSITORY),
    "USE_TF": "0",  # transformers 4 would import TensorFlow where it is installed
}
Result = dict[str, Any]
Key = tuple[str, str]
"""What is measured, and with what: ("finetune, short", "transformers")."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Describes a process to time.

    Attributes:
      argv: the program and its arguments.
      until: pattern of the line that ends the time, after which the process is killed; None: until
        the process ends.
      first: pattern of a line whose time is measured, too, while the process goes on; not with
        `until`.
      stream: where that line is written.
      environment: variables besides those of this process and `ENVIRONMENT`.
    """

    argv: list[str]
    until: str | None = None
    first: str | None = None
    stream: Literal["stdout", "stderr"] = "stderr"
    environment: dict[str, str] = field(default_factory=dict[str, str])


def measure(command: Command) -> Result:
    """Runs a command; returns seconds and CPU seconds, and the line that `until` describes.

    With `first`, the line and its times are "first_line", "first_seconds" and "first_cpu_seconds".
    CPU seconds are user and system time of the process and of all its children.
    """
    with tempfile.TemporaryFile("w+") as log:
        start = time.monotonic()
        process = start_process(command, log)
        try:
            found = find_line(process, command, log, start)
            if command.until is None:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                result = {f"first_{name}": value for name, value in found.items()}
                result["seconds"] = time.monotonic() - start
                result["cpu_seconds"] = usage.ru_utime + usage.ru_stime
            else:
                result = found
        finally:
            stop(process)
        # With `until` the process was killed here.
        is_failed = process.returncode > 0 if command.until else process.returncode != 0
        if is_failed or ((command.until or command.first) and not found):
            log.seek(0)
            raise SystemExit(f"{' '.join(command.argv)} failed:\n{log.read()[-4000:]}")
    return result


def find_line(process: subprocess.Popen[str], command: Command, log: Any, start: float) -> Result:
    """Reads the output of a process until the line of `until`, or to its end.

    Returns:
      Seconds since `start`, CPU seconds and the text of the first line that matches; {} if none
      does.
    """
    found: Result = {}
    pattern = re.compile(command.until or command.first or "(?!)")
    for line in (process.stdout if command.stream == "stdout" else process.stderr) or ():
        log.write(line)
        if not found and pattern.search(line):
            found = {"cpu_seconds": cpu_seconds(process.pid), "line": line}
            found["seconds"] = time.monotonic() - start
            if command.until is not None:
                break
    return found


def prepare_cache(cache: Path, is_warm: bool, fill: Callable[[], object]) -> None:
    """Empties a compilation cache, or fills it if nothing has since the bench was started."""
    if not is_warm:
        shutil.rmtree(cache, ignore_errors=True)
    elif not cache.exists():
        fill()


def start_process(command: Command, log: Any) -> subprocess.Popen[str]:
    """Starts a process; what is not read goes to `log`."""
    outputs = {"stdout": log, "stderr": log}
    if command.until is not None or command.first is not None:
        outputs[command.stream] = subprocess.PIPE
    environment = {**os.environ, **ENVIRONMENT, **command.environment}
    return subprocess.Popen(command.argv, text=True, env=environment, **outputs)


def cpu_seconds(pid: int) -> float:
    """Returns user and system time of a process and of its children, also of those that ended."""
    process = psutil.Process(pid)
    return sum(
        sum(each.cpu_times()[:4] if each == process else each.cpu_times()[:2])
        for each in (process, *process.children(recursive=True))
    )


def stop(process: subprocess.Popen[str]) -> None:
    """Kills a process and its children if it runs."""
    if process.returncode is None and process.poll() is None:
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def in_turns(
    measurements: Mapping[Key, Callable[[], Result]], rounds: int, output: Path
) -> dict[Key, list[Result]]:
    """Runs all measurements in each round; those that the file `output` has are not repeated."""
    lines = output.read_text().splitlines() if output.exists() else []
    records = [json.loads(line) for line in lines]
    done = {(record["work"], record["side"], record["round"]): record for record in records}
    for number in range(rounds):
        for (work, side), run in measurements.items():
            if (work, side, number) in done:
                continue
            record = {"work": work, "side": side, "round": number, **run()}
            with output.open("a") as file:
                file.write(json.dumps(record) + "\n")
            done[work, side, number] = record
            print({k: v for k, v in record.items() if "line" not in k}, flush=True)
    return {
        (work, side): [done[work, side, number] for number in range(rounds)]
        for work, side in measurements
    }


def print_medians(
    results: Mapping[Key, list[Result]], peer_sides: Mapping[str, str], prefix: str = ""
) -> None:
    """Prints a Markdown table of medians and ranges.

    Args:
      results: the measurements of each work and side.
      peer_sides: the side of each work with which the others are compared.
      prefix: of the names of seconds and CPU seconds: "" or "first_".
    """
    print("| work | side | seconds | / peer | CPU seconds | / peer |")
    print("|---|---|---|---|---|---|")
    for (work, side), each in results.items():
        peer, cells = results.get((work, peer_sides[work])), list[str]()
        for name in (f"{prefix}seconds", f"{prefix}cpu_seconds"):
            values = sorted(result[name] for result in each)
            cells.append(f"{statistics.median(values):.1f} ({values[0]:.1f} .. {values[-1]:.1f})")
            ratio = peer and statistics.median(values) / _median(peer, name)
            cells.append(f"{ratio:.2f}" if ratio else "not run")
        print(f"| {work} | {side} | {' | '.join(cells)} |")


def _median(results: list[Result], name: str) -> float:
    return statistics.median(result[name] for result in results)
