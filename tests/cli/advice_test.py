"""Covers the messages of all modules under bert_jax/: every flag that they advise must exist."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from bert_jax import __main__ as cli
from bert_jax.config.flags import add_flags

PACKAGE = Path(cli.__file__).parent
OTHER_PROGRAMS = {
    "data/corpus/beam.py": {"--runner"},  # a flag of Apache Beam
}


def flags_of_verbs() -> set[str]:
    flags: set[str] = set()
    for verb in cli.VERBS.values():
        parser = argparse.ArgumentParser()
        add_flags(parser, verb.Arguments)
        flags |= set(parser._option_string_actions)
    return flags


def advised_flags(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, flag) for the flags in raised errors and in logged messages."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Raise() | ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))):
                pass
            case _:
                continue
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", part.value):
                    yield node.lineno, flag


def test_flags_in_messages_exist():
    known, num_flags = flags_of_verbs(), 0
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        for line, flag in advised_flags(file.read_text()):
            num_flags += 1
            assert flag in known | OTHER_PROGRAMS.get(name, set()), f"{name}:{line}: {flag}"
    assert num_flags > 50


def test_unknown_flag_in_a_message_is_found():
    source = (
        'raise UserError(f"{path}: bad; use --encodings or --errors")\nlogger.info("see --x-y")'
    )
    assert [flag for _, flag in advised_flags(source)] == ["--encodings", "--errors", "--x-y"]
    assert "--encodings" not in flags_of_verbs() and "--errors" in flags_of_verbs()
