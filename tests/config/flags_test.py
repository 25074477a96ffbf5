"""Covers bert_jax/config/flags.py: the flags, help and errors that follow from a dataclass."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from bert_jax.config.flags import (
    REQUIRED,
    add_flags,
    first_given,
    flag,
    from_namespace,
    given,
    positional,
    switch,
)
from bert_jax.errors import ConfigError


def _pair(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


@dataclass(frozen=True, kw_only=True)
class Inputs:
    texts: tuple[str, ...] = positional("TEXT", "texts", ())
    file: tuple[str, ...] = flag("FILE", "files", (), action="append")


@dataclass(frozen=True, kw_only=True)
class Arguments(Inputs):
    model: str = positional("MODEL", "model")
    output: Path = flag("FILE", "file", REQUIRED)
    batch_size: int = flag("N", "sequences, 50 % of them short", 32, group="sizes")
    rates: tuple[float, ...] = flag("RATE", "rates", (0.5, 1.0))
    mode: Literal["head", "tail"] | None = flag("", "part of a text")
    columns: tuple[str, ...] | None = flag("A,B", "columns", type=_pair)
    normalize: bool | None = flag("", "vectors of length 1")
    fast: bool = switch("less work")

    def __post_init__(self) -> None:
        if self.fast and self.mode is not None:
            raise ConfigError("--fast and --mode: expected one of them")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_flags(made, Arguments)
    return made


def parse(*words: str) -> Arguments:
    return from_namespace(Arguments, parser().parse_args(words))


def test_words_become_values_of_the_fields_types():
    args = parse("m", "a", "b", "--output", "o", "--rates", "1", "2", "--columns", "x,y")
    assert (args.model, args.texts, args.output) == ("m", ("a", "b"), Path("o"))
    assert parse("m", "--output", "o", "--rates", "1", "2", "--rates", "3").rates == (1.0, 2.0, 3.0)
    assert args.rates == (1.0, 2.0) and args.columns == ("x", "y")
    assert parse("m", "--output", "o", "--file", "p", "--file", "q").file == ("p", "q")


def test_flags_that_are_not_given_have_their_defaults():
    args = parse("m", "--output", "o")
    assert args == Arguments(model="m", output=Path("o"))
    assert (args.texts, args.file, args.rates, args.mode) == ((), (), (0.5, 1.0), None)
    assert args.batch_size == 32 and args.normalize is None and not args.fast
    assert parse("m", "--output", "o", "--no-normalize").normalize is False


def test_given_flags_differ_from_their_defaults():
    args = parse("m", "t", "--output", "o", "--mode", "tail", "--batch-size", "32")
    assert given(args, "batch_size", "mode", "fast") == {"mode": "tail"}
    assert given(args, of=Inputs) == {"texts": ("t",)}
    assert first_given(args, "rates", "batch_size") is None
    assert first_given(args, "normalize", "mode") == "--mode"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m"], "required: --output"),
        (["m", "--output", "o", "--mode", "middle"], "choose from 'head', 'tail'"),
        (["m", "--output", "o", "--batch-size", "many"], "invalid int value: 'many'"),
    ],
)
def test_wrong_words_are_usage_errors(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(*words)
    assert message in capsys.readouterr().err


def test_flags_that_exclude_each_other_are_an_error():
    with pytest.raises(ConfigError, match="--fast and --mode"):
        parse("m", "--output", "o", "--fast", "--mode", "head")


def test_help_shows_defaults_and_groups():
    shown = " ".join(parser().format_help().split())
    assert "sizes: --batch-size N sequences, 50 % of them short (default: 32)" in shown
    assert "rates (default: 0.5 1.0)" in shown
    assert "part of a text --" in shown and "less work" in shown  # None and False are not shown
    assert "MODEL [TEXT ...]" in shown  # words that may be omitted come last
