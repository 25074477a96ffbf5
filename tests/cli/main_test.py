"""Covers bert_jax/cli/__init__.py: verbs, help, exit codes and error messages."""

import argparse
import dataclasses
import errno
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import types
from dataclasses import dataclass

import pytest

from bert_jax import __main__ as cli
from bert_jax import __version__
from bert_jax.config.flags import add_flags, flag
from bert_jax.config.recipes import find_recipe, load_recipe
from bert_jax.errors import ConfigError, UserError


@dataclass(frozen=True, kw_only=True)
class VerbArguments:
    output_number: int | None = flag("N", "a number")
    run: str | None = flag("", "a flag with the name of the verb's function")


def a_verb(outcome: int | BaseException | None) -> types.SimpleNamespace:
    """Makes a verb with one typed flag, whose run returns or raises `outcome`."""

    def run(args: VerbArguments) -> int | None:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return types.SimpleNamespace(HELP="does it", EPILOG="", Arguments=VerbArguments, run=run)


@pytest.fixture
def main_with(monkeypatch: pytest.MonkeyPatch):
    def call(outcome: int | BaseException | None, *arguments: str) -> int:
        monkeypatch.setattr(cli, "VERBS", {"thing do": a_verb(outcome), "other": a_verb(0)})
        return cli.main(["thing", "do", "--run", "folder", *arguments])

    return call


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, 0),
        (0, 0),
        (75, 75),
        (UserError("books/: no such folder"), 1),
        (ConfigError("unknown field"), 2),
        (KeyboardInterrupt(), 130),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (BrokenPipeError(), 1),
    ],
)
def test_exit_codes(main_with, outcome, code, monkeypatch):
    monkeypatch.setattr(cli.os, "dup2", lambda *_: None)  # keeps pytest's own standard output
    assert main_with(outcome) == code


def test_user_error_is_one_line_on_stderr(main_with, capsys):
    main_with(UserError("books/: no such folder; expected text files"))
    captured = capsys.readouterr()
    assert captured.err == "error: books/: no such folder; expected text files\n"
    assert captured.out == ""


def test_full_disk_is_one_line_that_names_the_file(main_with, capsys):
    main_with(OSError(errno.ENOSPC, "No space left on device", "runs/a/metrics.jsonl"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: runs/a/metrics.jsonl: No space left on device; free some space")


def test_closed_standard_output_is_an_error(monkeypatch, capsys):
    verb = a_verb(None)
    verb.run = lambda args: print("a result")
    monkeypatch.setattr(cli, "VERBS", {"thing do": verb})
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["thing", "do"]) == 1
    assert "error: standard output is closed" in capsys.readouterr().err


def test_internal_errors_keep_their_traceback(main_with):
    with pytest.raises(ZeroDivisionError):
        main_with(ZeroDivisionError())


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["thing"],
        ["thing", "do", "--output-number", "three"],
        ["thing", "do", "--output", "3"],  # no abbreviated flags
        ["thing", "do", "stray"],
    ],
)
def test_wrong_usage_exits_with_2(main_with, arguments, capsys):
    main_with(0)
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments)
    assert exited.value.code == 2
    assert "usage: bert-jax" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "finetune columns --lable x --run y",
            "bert-jax finetune: error: unrecognized arguments: --lable x; did you mean --label? "
            "`bert-jax finetune --help` lists all flags",
        ),
        (
            "predict model --fiel=x.csv text",
            "unrecognized arguments: --fiel=x.csv text; did you mean --file? "
            "`bert-jax predict --help`",
        ),
        (
            "recipes --zzz",
            "bert-jax recipes: error: unrecognized arguments: --zzz; `bert-jax recipes",
        ),
        (
            "pretrain small_corpus --run x corpus=y steps=5",
            "unrecognized arguments: corpus=y steps=5; did you mean --arg corpus=y? `bert-jax",
        ),
        ("pretrain", "required: CONFIG, --run; `bert-jax pretrain --help` explains them"),
        ("finetun columns", "; did you mean 'finetune'?"),
        ("predict model --truncation head+tial", "; did you mean 'head+tail'?"),
    ],
)
def test_misspelled_words_are_answered_with_the_nearest(arguments, message, capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments.split())
    assert exited.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_each_verb_has_an_example(verb, capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main([*verb.split(), "--help"])
    shown = capsys.readouterr().out
    assert exited.value.code == 0
    assert "\nexample" in shown
    assert f"bert-jax {verb} " in shown.split("\nexample")[1]
    assert cli.VERBS[verb].HELP in " ".join(shown.split())


def test_examples_in_the_help_of_every_verb_parse():
    commands: list[str] = []
    for verb in cli.VERBS.values():
        commands += re.findall(r"(?m)^ +bert-jax (.*)", continued(verb.EPILOG))
    commands += re.findall(r"(?m)^ +bert-jax (.*)", continued(cli.EPILOG))
    assert len(commands) > len(cli.VERBS)
    for command in commands:
        words = shlex.split(command)
        words = words[: words.index(">")] if ">" in words else words
        args = cli.parse_command(words)  # exits if a flag does not exist
        recipe = getattr(args, "config", None)
        if recipe not in (None, "my_recipe.py"):  # one that the example before it writes
            get_config = load_recipe(find_recipe(recipe))
            names = {argument.partition("=")[0] for argument in args.arg}
            assert names <= set(inspect.signature(get_config).parameters), command


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("convert bert --output x --window 64", "--window needs --longformer, which is not given"),
        ("embed model --encoding latin-1 TEXT", "--encoding is for files and standard input"),
        ("predict model --errors ignore TEXT", "--errors is for files and standard input"),
        ("predict model --text review TEXT", "--text needs --file"),
        ("tokenizer train --kind bpe --cased --output v x.txt", "bpe is always case-sensitive"),
        ("embed-evaluate model --file x --text a --label b --task sst2", "--task needs --glue"),
        ("embed-evaluate model --glue x --label stars", "--label needs --file"),
        ("embed-train stsb --glue-dir x --snli-dir y --model m --run r", "not use --snli-dir"),
        (
            "embed-train columns --train x --texts a,b --glue-dir y --model m --run r",
            "columns does not use --glue-dir",
        ),
        (
            "embed-train columns --train x --texts a,b --score-range 0 5 --model m --run r",
            "columns does not use --score-range",
        ),
        ("export run --output x --base-name a/b", "--base-name needs --adapter"),
        ("finetune --text a --model m --run r --split-seed 1", "--split-seed needs --shots"),
        ("simulate bert --hosts 2 --run r --signal KILL", "--signal needs --kill"),
        ("search query index TEXT --candidates 5", "--candidates needs --rerank"),
        ("search query index TEXT --method bm25 --model m", "bm25 reads no model"),
        ("search evaluate squad:x --pooling cls", "--pooling is for MODEL"),
        ("search mine model pairs --output x --seed 3", "--seed is for --sampling random"),
        ("sweep --text a --model m --output x --grid epochs=1 --search-seed 3", "needs --random"),
    ],
)
def test_flags_without_effect_are_errors(command, message, capsys):
    assert cli.main(command.split()) == ConfigError.exit_code
    assert message in capsys.readouterr().err


def continued(epilog: str) -> str:
    """Returns the text with lines that end in a backslash joined to the next."""
    return epilog.replace("\\\n", " ")


def test_every_flag_has_a_help_text():
    for name, verb in cli.VERBS.items():
        parser = argparse.ArgumentParser()
        add_flags(parser, verb.Arguments)
        for action in parser._actions:
            assert action.help, f"{name} {action.option_strings or action.metavar}"
            assert not action.help.startswith(("of ", "default:")), f"{name} {action.help}"


def test_help_lists_every_verb(capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(["--help"])
    assert exited.value.code == 0
    shown = capsys.readouterr().out
    positions = [shown.index(f"\n{title}") for title in ("start here", *cli.VERB_GROUPS)]
    assert positions == sorted(positions)
    for verb in cli.VERBS:
        assert f"\n  {verb} " in shown
    assert len(cli.VERBS) == sum(map(len, cli.VERB_GROUPS.values()))


@pytest.mark.parametrize("verb", ["finetune", "pretrain", "predict", "embed-train", "prepare"])
def test_common_flags_come_first(verb, capsys):
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    usage, _, shown = capsys.readouterr().out.partition("options:\n")
    assert len(usage.partition("\n\n")[0].splitlines()) == 1
    common, others = shown.split("\n\n", 1)
    expected = ["--help", *(f"--{name}".replace("_", "-") for name in cli.VERBS[verb].COMMON)]
    assert re.findall(r"(?m)^  (?:-h, )?(--[a-z-]+)", common) == expected
    assert not set(re.findall(r"(?m)^  (--[a-z-]+)", others)) & set(expected)


def test_every_flag_that_takes_a_number_has_a_type():
    """Tests that `--steps ten` is a usage error, not a traceback."""
    for name, verb in cli.VERBS.items():
        parser = argparse.ArgumentParser()
        add_flags(parser, verb.Arguments)
        defaults = {field.name: field.default for field in dataclasses.fields(verb.Arguments)}
        for action in parser._actions:
            if isinstance(defaults.get(action.dest), int | float) and action.nargs != 0:
                assert action.type is not None, f"{name} {action.option_strings}"


@pytest.mark.parametrize(
    "command", [["-m", "bert_jax"], ["-c", "from bert_jax.__main__ import main; main()"]]
)
def test_command_line_in_a_process(command):
    done = subprocess.run(
        [sys.executable, *command, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["bert-jax", __version__]


def test_closed_output_pipe_is_no_error():
    code = (
        "import dataclasses, types\nfrom bert_jax import __main__ as cli\n"
        "Arguments = dataclasses.make_dataclass('Arguments', [])\n"
        "def run(args):\n    while True: print('x' * 1000)\n"
        "cli.VERBS = {'talk': types.SimpleNamespace("
        "HELP='', EPILOG='', Arguments=Arguments, run=run)}\n"
        "raise SystemExit(cli.main(['talk']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_signal_inside_a_callback_of_the_garbage_collector_is_not_lost():
    code = (
        "import dataclasses, gc, os, signal, sys, time, types\n"
        "from bert_jax import __main__ as cli\n"
        "Arguments = dataclasses.make_dataclass('Arguments', [])\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def callback(phase, info):\n"
        "    gc.callbacks.remove(callback)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(1)\n"
        "def run(args):\n"
        "    gc.callbacks.append(callback)\n"
        "    gc.collect()\n"
        "    print('still running', flush=True)\n"
        "    time.sleep(60)\n"
        "cli.VERBS = {'wait': types.SimpleNamespace("
        "HELP='', EPILOG='', Arguments=Arguments, run=run)}\n"
        "sys.argv = ['bert-jax', 'wait']\nraise SystemExit(cli.main())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (run.returncode, run.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_verb_in_order(number):
    code = (
        "import dataclasses, signal, sys, time, types\nfrom bert_jax import __main__ as cli\n"
        "Arguments = dataclasses.make_dataclass('Arguments', [])\n"
        # A shell that starts the tests in the background makes all of its processes ignore SIGINT.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def run(args):\n"
        "    try:\n"
        "        print('started', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally: print('cleaned up')\n"
        "cli.VERBS = {'wait': types.SimpleNamespace("
        "HELP='', EPILOG='', Arguments=Arguments, run=run)}\n"
        "sys.argv = ['bert-jax', 'wait']\nraise SystemExit(cli.main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(number)
        output, error = process.communicate(timeout=60)
    assert (process.returncode, output, error) == (130, "cleaned up\n", "interrupted\n")


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Returns the command lines that would have been started; the kernel's setting is "madvise"."""
    commands = []
    monkeypatch.setattr(os, "execv", lambda file, argv: commands.append((file, argv)))
    monkeypatch.setattr(cli.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(cli, "HUGE_PAGES_FILE", tmp_path / "enabled")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return commands


def test_same_command_is_started_with_the_tunable(started, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bert_jax", "pretrain", "x.py"])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    cli.restart_with_huge_pages()
    assert started == [(sys.executable, [sys.executable, "-m", "bert_jax", "pretrain", "x.py"])]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"


def test_second_start_does_not_restart(started, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    cli.restart_with_huge_pages()
    assert started == []


@pytest.mark.parametrize("setting", ["[always] madvise never", "always madvise [never]"])
def test_kernel_setting_other_than_madvise_is_respected(started, tmp_path, setting):
    (tmp_path / "enabled").write_text(setting)
    cli.restart_with_huge_pages()
    assert started == []


def test_other_malloc_is_not_restarted(started, monkeypatch):
    monkeypatch.setattr(cli.platform, "libc_ver", lambda: ("", ""))
    cli.restart_with_huge_pages()
    assert started == []
