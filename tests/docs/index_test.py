"""Covers docs/index.md: the commands of its tables are complete, and their flags exist."""

import re
import shlex
from pathlib import Path

from bert_jax.__main__ import parse_command

PAGE = Path(__file__).parents[2] / "docs/index.md"


def test_commands_of_the_tables_are_accepted():
    commands = re.findall(r"`bert-jax ([^`]+)`", PAGE.read_text())
    complete = [
        words
        for command in commands
        if "..." not in command and "VERB" not in command and " > " not in command
        for words in [shlex.split(command)]
        if len(words) > 2 and words[0] != "tpu"
    ]
    assert len(complete) >= 25
    for words in complete:
        parse_command(words)  # a command that is not accepted raises SystemExit or a UserError
