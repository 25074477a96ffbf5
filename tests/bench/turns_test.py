"""Covers bench/turns.py: time and CPU time of processes, turns that are resumed, the table."""

import json
import sys

import psutil
import pytest

from bench.turns import Command, in_turns, measure, print_medians

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"


def python(program: str, **fields) -> Command:
    return Command(argv=[sys.executable, "-c", program], **fields)


def test_process_is_timed_until_its_end():
    result = measure(python(BUSY))
    assert 0.3 <= result["cpu_seconds"] <= result["seconds"] + 0.1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_process_is_timed_until_its_line_with_its_children_and_killed(stream):
    program = (
        "import subprocess, sys, time\n"
        f"subprocess.run([sys.executable, '-c', {BUSY!r}])\n"
        f"{BUSY}print('1/3 | loss', 1 + 1, file=sys.{stream}, flush=True)\ntime.sleep(600)"
    )
    result = measure(python(program, until=r"^1/\d \| loss", stream=stream))
    assert result["line"] == "1/3 | loss 2\n"
    assert result["cpu_seconds"] > 0.5 and result["seconds"] < 300
    assert not [each for each in psutil.Process().children() if "1/3" in str(each.cmdline())]


def test_time_of_a_first_line_and_of_the_whole_process():
    program = f"print('first update', flush=True)\n{BUSY}print('first update again')"
    result = measure(python(program, first="^first", stream="stdout"))
    assert result["first_line"] == "first update\n"
    assert result["first_cpu_seconds"] + 0.2 < result["cpu_seconds"]
    assert result["first_seconds"] < result["seconds"]
    with pytest.raises(SystemExit, match="another line"):
        measure(python("print('another line')", first="^first", stream="stdout"))


def test_failing_process_is_an_error_with_its_output():
    with pytest.raises(SystemExit, match="no such thing"):
        measure(python("raise SystemExit('no such thing')"))
    with pytest.raises(SystemExit, match="failed"):
        measure(python("print('another line')", until="^first", stream="stdout"))


def test_measurements_take_turns_and_are_not_repeated(tmp_path, capsys):
    calls, output = list[str](), tmp_path / "results.jsonl"

    def measurement(side: str):
        def run():
            calls.append(side)
            return {"seconds": 2.0 * len(calls), "cpu_seconds": 1.0 * len(calls)}

        return run

    measurements = {("task", side): measurement(side) for side in ("own", "peer")}
    assert len(in_turns(measurements, 1, output)["task", "own"]) == 1
    results = in_turns(measurements, 3, output)
    assert calls == ["own", "peer"] * 3
    assert len(output.read_text().splitlines()) == 6
    assert json.loads(output.read_text().splitlines()[-1])["round"] == 2
    capsys.readouterr()
    print_medians(results, {"task": "peer"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| task | own | 6.0 (2.0 .. 10.0) | 0.75 | 3.0 (1.0 .. 5.0) | 0.75 |"
    print_medians({("task", "own"): results["task", "own"]}, {"task": "peer"})
    assert "| not run |" in capsys.readouterr().out
