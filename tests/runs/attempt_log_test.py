"""Tests the record of processes that trained in a run folder: order, ends, damaged lines."""

import json
import time

import pytest

from bert_jax.errors import UserError
from bert_jax.runs.attempt_log import FILE, AttemptLog, command_line, read_attempts

DATA = {"Training corpus": "books: 8 documents"}


def start(folder, step=0):
    return AttemptLog(
        folder, started_at=time.monotonic() - 5, step=step, num_parameters=12, data=DATA
    )


def test_attempts_are_read_in_order_with_their_ends(tmp_path):
    assert read_attempts(tmp_path) == []
    start(tmp_path).end("stopped by a signal")
    start(tmp_path, step=3)  # killed: no end
    start(tmp_path, step=3).end("failed", "the loss is nan")
    first, killed, failed = read_attempts(tmp_path)
    assert (first.start_step, first.outcome, first.message) == (0, "stopped by a signal", "")
    assert first.seconds is not None and 5 <= first.seconds < 10
    assert first.num_parameters == 12 and first.data == DATA
    assert (killed.start_step, killed.outcome, killed.seconds) == (3, None, None)
    assert (failed.outcome, failed.message) == ("failed", "the loss is nan")


def test_line_that_was_cut_off_is_skipped(tmp_path):
    start(tmp_path)
    file = tmp_path / FILE
    file.write_text(file.read_text() + '{"event": "end", "seco')
    assert [attempt.outcome for attempt in read_attempts(tmp_path)] == [None]
    start(tmp_path, step=7).end("complete")
    assert [attempt.outcome for attempt in read_attempts(tmp_path)] == [None, "complete"]


@pytest.mark.parametrize(
    "line",
    [
        *("[]", "{}", '{"event": "start", "time": 3}', '{"event": "end", "seconds": "5"}'),
        '{"event": "pause", "seconds": 1, "outcome": "complete", "message": ""}',
        '{"event": "end", "seconds": NaN, "outcome": "complete", "message": ""}',
    ],
)
def test_other_json_is_an_error_that_names_the_line(tmp_path, line):
    start(tmp_path)
    with (tmp_path / FILE).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(UserError, match=r"attempts\.jsonl, line 2: expected"):
        read_attempts(tmp_path)


def test_end_without_a_start_is_an_error(tmp_path):
    start(tmp_path).end("complete")
    lines = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / FILE).write_text(f"{lines[1]}\n")
    assert json.loads(lines[1])["outcome"] == "complete"
    with pytest.raises(UserError, match="line 1"):
        read_attempts(tmp_path)


def test_command_can_be_typed_again():
    assert command_line(["/usr/bin/bert-jax", "--run", "a b"]) == "bert-jax --run 'a b'"
    module = ["/lib/bert_jax/__main__.py", "--help"]
    assert command_line(module) == "python -m bert_jax --help"
