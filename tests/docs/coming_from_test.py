"""Covers docs/coming_from.md: its flags and fields exist, and its settings can be combined."""

import dataclasses
import re
import shlex
from pathlib import Path

from bert_jax.__main__ import VERBS, parse_command
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import finetune
from bert_jax.config.config_lib import override
from bert_jax.config.flags import flag_name
from bert_jax.export.export import export

PAGE = Path(__file__).parents[2] / "docs/coming_from.md"


def test_flags_of_the_page_exist():
    arguments = [verb.Arguments for verb in VERBS.values()]
    known = {flag_name(field.name) for each in arguments for field in dataclasses.fields(each)}
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE.read_text()))
    assert len(found) > 30
    assert not found - known


def test_settings_of_the_page_are_accepted(tmp_path):
    export(small_model(tmp_path / "vocabulary"), tmp_path / "model")
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "the sea,yes\na net,no\n" * 4)
    words = f"finetune --train {table} --dev {table} --text text --label label --run r"
    arguments = parse_command([*words.split(), "--model", str(tmp_path / "model")])
    experiment = finetune.make_experiment(arguments)
    settings = re.findall(r"`--set ([^`]+)`", PAGE.read_text())
    assert len(settings) > 15
    for assignments in settings:
        assert override(experiment, shlex.split(assignments)) != experiment, assignments
