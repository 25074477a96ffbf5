"""Records commands as a terminal shows them, and writes docs/reference/terminal.md.

    python docs/record_terminal.py WORK --output docs/reference/terminal.md

WORK is a folder with the data that the commands below name; they run there, in order, in a terminal
of 100 columns. The page shows every line with the seconds since the command began, a few states of
the live line, and how well the live line estimated the time left.
"""

import argparse
import codecs
import contextlib
import fcntl
import io
import os
import pty
import re
import statistics
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_COLUMNS = 100
_LIVE_STATES = 6
_MAX_CHARACTERS = 400  # of a shown line: some commands print long JSON lines
_PROGRESS = re.compile(r" (\d+)/(\d+) .*\| ([\dhmsd ]+) left")
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}

PREPARED = "corpus=prepared/train heldout=prepared/heldout"
COMMANDS = (
    (
        "Train a tokenizer",
        "bert-jax tokenizer train --vocab-size 8192 --output vocabulary 'books/*'",
    ),
    (
        "Prepare",
        "bert-jax prepare --files 'books/*' --tokenizer vocabulary --output prepared/train",
    ),
    (
        "Prepare held-out text",
        "bert-jax prepare --files 'heldout/*' --tokenizer vocabulary --output prepared/heldout",
    ),
    ("Plan", "bert-jax plan bert --arg size=base --slice v5e-16 v6e-16"),
    (
        "Pretrain",
        f"bert-jax pretrain small_corpus --run runs/books --arg {PREPARED} steps=120 "
        "--set train.evaluation.num_examples=256",
    ),
    ("Compare with n-gram models", "bert-jax baselines runs/books"),
    ("Export", "bert-jax export runs/books --output exported"),
    (
        "Continue pretraining on other text",
        f"bert-jax pretrain adapt --run runs/adapted --arg {PREPARED} model=exported steps=40 "
        "batch_size=16",
    ),
    (
        "Fine-tune: classification",
        "bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte "
        "--epochs 1 --max-length 64 --learning-rate 3e-4",
    ),
    (
        "Fine-tune: tagging",
        "bert-jax finetune conll --train ner.train --dev ner.dev --model exported --run runs/ner "
        "--epochs 2 --learning-rate 3e-4",
    ),
    (
        "Fine-tune: question answering",
        "bert-jax finetune squad --train squad.train.json --dev squad.dev.json --model exported "
        "--run runs/squad --epochs 1 --max-length 128",
    ),
    (
        "Fine-tune: several tasks",
        "bert-jax finetune --config multi_task --run runs/four --arg model=exported "
        "glue_dir=glue_data conll=conll2003 epochs=0.05",
    ),
    ("Evaluate", "bert-jax evaluate runs/rte glue/rte --glue-dir glue_data --split dev"),
    ("Predict", "bert-jax predict runs/ner 'Mary Smith lives in London.'"),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Holds a line of the terminal; `is_live` if a later one overwrote it."""

    seconds: float
    text: str
    is_live: bool


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the commands and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path, help="folder with the data")
    parser.add_argument("--output", type=Path, required=True, help="page to write")
    parser.add_argument("--note", metavar="TEXT", help="when and on what machine it was recorded")
    args = parser.parse_args(argv)
    parts = [_INTRODUCTION, *([f"{args.note}\n"] if args.note else [])]
    for title, command in COMMANDS:
        lines, code = record(command, args.work)
        parts.append(_section(title, command, lines, code))
        args.output.write_text("\n".join(parts))


def record(command: str, folder: Path) -> tuple[list[Line], int]:
    """Runs a command in a terminal and returns what it showed, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _COLUMNS, 0, 0))
    process = subprocess.Popen(
        command, shell=True, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    # These keep characters and "\r\n" together that arrive in two chunks.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    newlines = io.IncrementalNewlineDecoder(decoder, translate=False)
    started, lines, buffer, first_seen = time.monotonic(), list[Line](), "", 0.0
    with contextlib.suppress(OSError):  # raised on Linux when the command has ended
        while chunk := os.read(ours, 65536):
            now = time.monotonic() - started
            text = newlines.decode(chunk).replace("\r\n", "\n")
            *complete, rest = re.split(r"(?<=[\r\n])", buffer + text)
            for piece in complete:
                # A live line ends when the next one replaces it: its time is that of its start.
                seconds, buffer = (first_seen if buffer else now), ""
                _append_line(lines, seconds, piece)
            first_seen, buffer = (first_seen if buffer else now), rest
    _append_line(lines, first_seen, buffer)
    os.close(ours)
    return lines, process.wait()


def _append_line(lines: list[Line], seconds: float, text: str) -> None:
    if plain := re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).rstrip():
        lines.append(Line(seconds=seconds, text=plain, is_live=text.endswith("\r")))


def estimates(lines: Sequence[Line], total: float) -> list[float]:
    """Returns (estimated total - total) / total of each live line after the first tenth."""
    errors = []
    for line in lines:
        if match := _PROGRESS.search(line.text):
            step, steps, left = match.groups()
            if int(step) >= int(steps) / 10 and int(step) < int(steps):
                seconds = sum(int(part[:-1]) * _UNITS[part[-1]] for part in left.split())
                errors.append((line.seconds + seconds - total) / total)
    return errors


def _section(title: str, command: str, lines: Sequence[Line], code: int) -> str:
    total = lines[-1].seconds if lines else 0.0
    live = [index for index, line in enumerate(lines) if _PROGRESS.search(line.text)]
    kept = (
        {live[round(i * (len(live) - 1) / (_LIVE_STATES - 1))] for i in range(_LIVE_STATES)}
        if live
        else set[int]()
    )
    shown = [
        f"{line.seconds:6.1f}  {line.text[:_MAX_CHARACTERS]}"
        for index, line in enumerate(lines)
        if index in kept or (index not in live and not line.is_live)
    ]
    text = "\n".join([f"$ {command}", *shown])
    remark = f"Exit code {code} after {total:.0f} s."
    if errors := estimates(lines, total):
        worst = max(errors, key=abs)
        inside = statistics.fmean(abs(error) <= 0.3 for error in errors)
        remark += (
            f" Time left, from {len(errors)} states of the live line after the first tenth of the "
            f"updates: the estimated total was off by {statistics.median(map(abs, errors)):.0%} in "
            f"the median, by {worst:+.0%} at worst; {inside:.0%} of the states were within 30 %."
        )
    return f"## {title}\n\n```text\n{text}\n```\n\n{remark}\n"


_INTRODUCTION = """# What a terminal shows

`docs/record_terminal.py` ran these commands on real data, in a terminal of 100 columns. The first
column is the time in seconds since a command began. Of the live line with the progress, which is
overwritten, six states are shown. The models are tiny and trained for minutes: this page is about
the messages, not about the results.
"""


if __name__ == "__main__":
    main()
