"""Tests the error messages for invalid flags, jobs, data and projects, and the dry run.

Covers tpu/cli.py, tpu/job.py, tpu/recipe_check.py, and the checks in tpu/launcher.py.
"""

import inspect
import shutil
import sys

import pytest

from bert_jax.config.recipes import load_recipe, shipped_recipes
from bert_jax.errors import ConfigError
from tests.helpers.tpu.cloud import (
    DATA,
    LAUNCH,
    ONE,
    ROOT,
    WORK,
    FakeCloud,
    Trainers,
    run_tpuctl,
    tpuctl,
)
from tpu.job import from_json
from tpu.recipe_check import check_recipe

RECIPE = ("--", "pretrain", "configs/pretrain/bert.py", "--arg")


def run_for_error(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str]:
    """Returns the exit code and the messages of a command."""
    code = tpuctl(*words)
    return code, capsys.readouterr().err


def with_flag(flag: str, value: str) -> list[str]:
    """Returns the arguments of a launch with one flag changed."""
    words: list[str] = list(LAUNCH)
    if flag in words:
        words[words.index(flag) + 1] = value
    else:
        words += [flag, value]
    return ["launch", *words, *DATA, *WORK]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--slice", "v6e-15", "slice 'v6e-15' is not known; the nearest is 'v6e-16'"),
        ("--slice", "v5litepod-16", "the nearest is 'v5e-16'"),
        ("--slice", "tpu7x-32", "tpu7x is not offered by the Cloud TPU API"),
        ("--run-id", "x; rm -rf ~", "--run-id 'x; rm -rf ~': expected 1 to 40 characters of a-z"),
        ("--run-id", "$(reboot)", "--run-id '$(reboot)'"),
        ("--run-id", "Run_1", "starting with a letter and not ending with -"),
        ("--bucket", "gs://b;ls", "is not a bucket URL"),
        ("--bucket", "my-bucket", "'my-bucket' is not a bucket URL; expected gs://BUCKET/FOLDER"),
        ("--bucket", "gs://bucket/folder", "expected gs://NAME, without a folder"),
        ("--zone", "`id`", "--zone '`id`' is not a zone; expected a name like us-central1-b"),
        (
            "--zone",
            "europe-west4-a",
            "gs://bucket is in us-central1, but zone europe-west4-a is not",
        ),
        ("--project", "p&q", "project: found 'p&q'"),
        ("--service-account", "me;id@p", "--service-account 'me;id@p'"),
        ("--data", "wiki;=gs://bucket/x", "--data 'wiki;'"),
        ("--data", "other=/tmp/x", "--data other: '/tmp/x' is not a bucket URL"),
        ("--data", "nothing", "--data nothing: expected NAME=VALUE"),
        ("--env-secret", "HF_TOKEN=projects/p", "expected HF_TOKEN=projects/PROJECT/secrets/NAME"),
        ("--max-hours", "0", "--max-hours 0: expected more than 0"),
        ("--max-usd", "-3", "--max-usd -3: expected more than 0"),
        ("--max-hours", "soon", "argument --max-hours: invalid float value: 'soon'"),
        ("--capacity", "cheap", "argument --capacity: invalid choice"),
        ("--slices", "x", "unrecognized arguments: --slices x; see tpu/tpuctl"),
    ],
)
def test_invalid_flags_are_reported_in_one_line(
    cloud: FakeCloud, trainers: Trainers, capsys, flag, value, message
):
    code, output = run_for_error(capsys, *with_flag(flag, value))
    assert code == 2 and message in output and output.count("\n") == 1, output
    assert not cloud.commands("create") and not cloud.object("job.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the job after -- must start with"),
        (("--",), "found nothing"),
        (
            ("--", "python", "train.py"),
            "start with one of pretrain, finetune, glue, verify; found 'python'",
        ),
        (("--", "pretrain", "c.py", "--run", "x"), "--run is set by the hosts; omit it"),
        (("--", "glue", "--shard=3"), "--shard is set by the hosts; omit it"),
        (
            ("--", "pretrain", "c.py", "--arg", "corpus=@data/no"),
            "uses data 'no', which is not defined",
        ),
        (("--", "pretrain", "--arg", "corpus=x"), "pretrain needs a recipe"),
        (
            ("--", "pretrain", "--init-from", "@data/wiki", "bert", "--arg", "copus=x"),
            "--arg copus=x: configs/pretrain/bert.py has no argument 'copus'; "
            "the nearest is corpus",
        ),
        (("--", "pretrain", "--init-from", "@data/wiki", "bret"), "bret: no such recipe"),
        (
            ("--", "finetune", "--config=multi_task", "--arg", "modle=x"),
            "--arg modle=x: configs/finetune/multi_task.py has no argument 'modle'; "
            "the nearest is model",
        ),
        (
            (*RECIPE[:2], "configs/pretrain/bret.py"),
            "recipe configs/pretrain/bret.py will not "
            "exist on the hosts; they have the files below configs/, and other files in git as "
            "@code/FILE; the nearest is configs/pretrain/bert.py",
        ),
        ((*RECIPE[:2], "tests/mine.py"), "recipe tests/mine.py will not exist on the hosts"),
        ((*RECIPE[:2], "/etc/x.py"), "recipe /etc/x.py will not exist on the hosts"),
        (
            (*RECIPE, "corpus=@data/wiki", "siz=base"),
            "--arg siz=base: configs/pretrain/bert.py "
            "has no argument 'siz'; the nearest is size; it has corpus, heldout, size, steps",
        ),
        ((*RECIPE, "corpus=@data/wiki", "tpu"), "--arg tpu: expected NAME=VALUE"),
        ((*RECIPE, "size=base"), "configs/pretrain/bert.py needs --arg corpus=..."),
    ],
)
def test_invalid_jobs_are_reported(cloud: FakeCloud, trainers: Trainers, capsys, words, message):
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *words)
    assert code == 2 and message in output and not cloud.commands("create")


@pytest.mark.parametrize(
    "words",
    [
        ("./configs/pretrain/bert.py", "--arg", "corpus=@data/wiki", "--set", "seed=1"),
        ("@code/configs/pretrain/bert.py", "--arg=corpus=@data/wiki"),
        ("--init-from", "@data/wiki", "bert", "--arg", "corpus=@data/wiki"),
        ("@data/wiki/recipe.py", "--arg", "anything=1"),
    ],
)
def test_recipe_paths_that_exist_on_hosts(cloud, trainers, words):
    (cloud.folder / "gcs/bucket/data/wiki/recipe.py").touch()
    assert tpuctl("launch", *LAUNCH, *DATA, "--", "pretrain", *words) == 0


@pytest.mark.parametrize(
    "name", [name for name in shipped_recipes() if name.startswith(("pretrain/", "finetune/"))]
)
def test_every_shipped_recipe_can_be_launched(name: str):
    file = f"configs/{name}.py"
    parameters = inspect.signature(load_recipe(ROOT / file)).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty]
    command = ("pretrain",) if name.startswith("pretrain/") else ("finetune", "--config")
    arguments = (*command, file, "--arg", *(f"{each}=x" for each in required))
    check_recipe(arguments, [file])
    with pytest.raises(ConfigError, match=f"{file} needs --arg {required[0]}="):
        check_recipe((*command, file), [file])


@pytest.mark.parametrize("words", [("cola", "--model", "@data/wiki"), ("mine.tsv",)])
def test_finetune_task_needs_no_recipe(cloud, trainers, words):
    assert tpuctl("launch", *LAUNCH, *DATA, "--", "finetune", *words) == 0


def test_secrets_of_glue_are_rejected(cloud, trainers, capsys):
    secret = ("--env-secret", "X=projects/p/secrets/x")
    code, output = run_for_error(capsys, "launch", *LAUNCH, *secret, "--", "glue")
    assert code == 2 and "`bert-jax glue` reads no secrets" in output


def test_bucket_region_without_the_generation_is_rejected(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "AUSTRALIA-SOUTHEAST1"})
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 2 and "gs://bucket is in australia-southeast1, where v6e is not known" in output
    assert "a bucket in one of asia-northeast1, europe-west4," in output


def test_missing_bucket_is_reported(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": None})
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 1 and "gs://bucket not found: 404" in output


@pytest.mark.parametrize("location", ["US", "NAM4", "US-CENTRAL1"])
def test_multi_region_buckets_are_accepted(cloud, trainers, location):
    cloud.script(buckets={"bucket": location})
    assert tpuctl("launch", *LAUNCH, "--zone", "us-central1-b", *DATA, *WORK) == 0


@pytest.mark.parametrize(
    ("data", "words", "script", "message"),
    [
        (("--data", "wiki=gs://bucket/data/wikki"), WORK, {}, "--data wiki: there is nothing at "
         "gs://bucket/data/wikki; gcloud storage rsync -r FOLDER gs://bucket/data/wikki"),
        (DATA, WORK, {"deny_storage": [["read", "gs://bucket/data"]]}, "HTTPError 403: user@"),
        (DATA, (*WORK[:-1], "corpus=@data/wiki/train", "heldout=@data/wiki/heldout"), {},
         "gs://bucket/data/wiki has no heldout, which @data/wiki/heldout refers to"),
    ],
)  # fmt: skip
def test_unreadable_data_is_found_before_creation(
    cloud, trainers, capsys, data, words, script, message
):
    cloud.script(**script)
    code, output = run_for_error(capsys, "launch", *LAUNCH, *data, *words)
    assert code in (1, 2) and message in output
    assert not cloud.commands(" cp ") and not cloud.commands("create ")


def test_launch_needs_confirmation_of_the_cost(cloud, trainers, capsys, monkeypatch):
    words = [word for word in LAUNCH if word != "--yes"]
    code, output = run_for_error(capsys, "launch", *words, *DATA, *WORK)
    assert code == 2 and "pass --yes" in output and "cost: v6e-16" in output
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for reply, expected in (("n", 1), ("", 1), ("yes", 0)):
        monkeypatch.setattr("builtins.input", lambda reply=reply: reply)
        code, output = run_for_error(capsys, "launch", *words, *DATA, *WORK)
        assert code == expected and ("nothing was created" in output) == (expected == 1)
        assert bool(cloud.commands("create")) == (expected == 0)


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "down", "babysit"])
def test_commands_on_a_missing_run_are_rejected(cloud, trainers, capsys, verb):
    code, output = run_for_error(capsys, verb, *ONE)
    assert code == 1 and "there is no such run" in output and "tpu/tpuctl launch" in output


def test_missing_bucket_flag_names_the_variable(cloud, trainers, capsys, monkeypatch):
    code, output = run_for_error(capsys, "status", "--run-id", "r1")
    assert code == 2 and "--bucket is missing; pass it, or set BERT_TPU_BUCKET" in output
    monkeypatch.setenv("BERT_TPU_BUCKET", "gs://bucket")
    code, output = run_for_error(capsys, "status", "--run-id", "r1")
    assert code == 1 and "gs://bucket/runs/r1/job.json does not exist" in output


def test_flags_take_precedence_over_the_environment(cloud, trainers, monkeypatch):
    monkeypatch.setenv("BERT_TPU_SLICE", "v2-32")
    monkeypatch.setenv("BERT_TPU_MAX_HOURS", "3")
    monkeypatch.setenv("BERT_TPU_CAPACITY", "on-demand")
    monkeypatch.setenv("BERT_TPU_INTERNAL_IPS", "true")
    assert tpuctl("launch", *LAUNCH, "--capacity", "spot", *DATA, *WORK) == 0
    job, rental = from_json(cloud.object("job.json").read_text())
    assert (job.slice, rental.max_hours, rental.capacity) == ("v6e-16", 3.0, "spot")
    assert rental.internal_ips


def test_invalid_environment_variable_is_rejected(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setenv("BERT_TPU_CAPACITY", "cheap")
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 2 and "BERT_TPU_CAPACITY='cheap': expected spot, on-demand, reserved" in output


def test_max_usd_without_a_known_price_is_rejected(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setattr("tpu.job.Rental.usd_per_hour", lambda self, slice_type: None)
    code, output = run_for_error(capsys, "launch", *LAUNCH, "--max-usd", "5", *DATA, *WORK)
    assert code == 2 and "no price of v6e-16 is published" in output


def test_job_of_another_version_is_reported(cloud, trainers, capsys):
    cloud.object("job.json").parent.mkdir(parents=True)
    cloud.object("job.json").write_text('{"slice": "v6e-16"}')
    code, output = run_for_error(capsys, "status", *ONE)
    assert code == 2 and "job.json cannot be read (KeyError: 'job')" in output


@pytest.mark.parametrize(
    "verb", ["launch", "babysit", "status", "logs", "stop", "down", "prices", "work"]
)
def test_every_command_has_help_with_an_example(cloud, trainers, capsys, verb):
    with pytest.raises(SystemExit) as done:
        tpuctl(verb, "--help")
    assert done.value.code == 0
    assert f"example:\n  tpu/tpuctl {verb} " in capsys.readouterr().out


def test_missing_gcloud_is_reported_with_install_link(cloud):
    done = run_tpuctl("status", *ONE, PATH="/usr/sbin:/sbin:" + _python_only(cloud))
    assert done.returncode == 1 and "cloud.google.com/sdk/docs/install" in done.stderr


def test_dry_run_reads_the_project_and_the_region_and_prints_the_rest(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "EUROPE-WEST4"})
    assert tpuctl("launch", *LAUNCH, "--dry-run", *DATA, *WORK) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert all(line.startswith("gcloud ") for line in lines)
    verbs = ("get-value", "describe", "ls", "cat", "cp", "create", "ssh", "delete")
    found = [verb for line in lines for verb in verbs if f" {verb} " in line[:60]]
    assert [word for i, word in enumerate(found) if word not in found[:i]] == [*verbs]
    (created,) = [line for line in lines if " create " in line]
    assert "--project=test-project --zone=europe-west4-a" in created
    assert "the dry run continues" not in output.err and "cost: v6e-16" in output.err
    commands = [" ".join(words[:3]) for words in cloud.argv]
    assert commands == ["config get-value project", "storage buckets describe"]


@pytest.mark.parametrize("script", [{"project": "(unset)"}, {"buckets": {"bucket": None}}])
def test_dry_run_uses_defaults_for_missing_project_or_bucket(cloud, trainers, capsys, script):
    cloud.script(**script)
    assert tpuctl("launch", *LAUNCH, "--dry-run", *DATA, *WORK) == 0
    assert capsys.readouterr().err.count("the dry run continues with ") == 1


def test_dry_run_works_without_gcloud(cloud):
    words = ("launch", *LAUNCH, "--dry-run", *DATA, "--zone", "us-east1-d", *WORK)
    done = run_tpuctl(*words, PATH="/usr/sbin:/sbin:" + _python_only(cloud, "git"))
    assert done.returncode == 0, done.stderr
    assert "--project=my-project --zone=us-east1-d" in done.stdout
    assert "gcloud is not on PATH" in done.stderr
    assert "the dry run continues with us-east1" in done.stderr


def _python_only(cloud: FakeCloud, *more: str) -> str:
    """Returns a folder with only python3, bash, dirname and the named programs."""
    folder = cloud.folder / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    for name in ("bash", "dirname", "env", *more):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


def test_tpuctl_runs_from_any_directory(cloud, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_tpuctl("prices", "--hours", "2")
    assert done.returncode == 0 and "| v6e-16 | 16 | $21.60 | $43.20 |" in done.stdout
    assert (ROOT / "tpu/tpuctl").is_file()
