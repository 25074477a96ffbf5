"""Covers bert_jax/io/log_handler.py: lines on stderr, above a progress bar, and with the time."""

import contextlib
import io
import logging
import os
import pty
import re
import sys

import pytest
from tqdm import tqdm

from bert_jax.io.log_handler import StderrHandler, set_up_logging


@pytest.fixture
def handlers() -> list[logging.Handler]:
    return logging.getLogger("bert_jax").handlers  # emptied and restored by log_to_caplog


def test_messages_are_lines_on_the_current_stderr(handlers, capsys):
    set_up_logging()
    set_up_logging()  # does not add a second handler
    assert [type(handler) for handler in handlers] == [StderrHandler]
    logging.getLogger("bert_jax.apps.plan.cli").info("compiling for %s", "v5e-16")
    logging.getLogger("bert_jax.apps.plan.cli").debug("not shown")
    logging.getLogger("other").warning("handled by the handlers of the program")
    captured = capsys.readouterr()
    assert captured.err == "compiling for v5e-16\n" and captured.out == ""


def test_launcher_messages_start_with_the_time(capsys):
    set_up_logging("tpu", with_time=True)
    logging.getLogger("tpu.launcher").info("deleting the slice")
    assert re.fullmatch(r"\d\d:\d\d:\d\d deleting the slice\n", capsys.readouterr().err)


def test_messages_are_written_above_a_progress_bar(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    set_up_logging()
    with tqdm(total=4, file=terminal, desc="runs", mininterval=0, ncols=40) as bar:
        bar.update(1)
        before = len(terminal.getvalue())
        logging.getLogger("bert_jax.apps.studies").info("run 1 finished")
        written = terminal.getvalue()[before:]
    erased_bar, _, new_bar = written.partition("run 1 finished\n")
    assert erased_bar.endswith("\r") and not erased_bar.strip()
    assert "runs:" in new_bar


@pytest.mark.parametrize("has_progress_bar", [False, True])
def test_closed_terminal_does_not_end_a_program(monkeypatch, has_progress_bar):
    controller, terminal = pty.openpty()
    stderr = open(terminal, "w")  # noqa: SIM115 (closed below)
    monkeypatch.setattr(sys, "stderr", stderr)
    set_up_logging()
    with tqdm(total=4, file=stderr, mininterval=0, disable=not has_progress_bar) as bar:
        os.close(controller)
        with pytest.raises(OSError, match="Input/output error"):
            print("a message", file=stderr, flush=True)
        for _ in range(3):
            logging.getLogger("bert_jax.apps.studies").info("run 1 finished")
            bar.update(1)
    with contextlib.suppress(OSError):  # it cannot write its buffer
        stderr.close()
