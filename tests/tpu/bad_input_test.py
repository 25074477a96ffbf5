"""Tests the error messages for invalid flags, jobs, data and projects.

Covers tpu/launcher/options.py, cli.py, commands_launch.py and tpu/launcher/checks/.
"""

import json

import pytest

from tests.helpers.tpu.cloud import (
    DATA,
    LAUNCH,
    ROOT,
    WORK,
    FakeCloud,
    Trainers,
    run_tpuctl,
    tpuctl,
)

ONE = ("--bucket", "gs://bucket", "--run-id", "r1")
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
        ("--slice", "v6e-61", "slice 'v6e-61' is not known; the nearest is 'v6e-16'"),
        ("--slice", "v5litepod-16", "the nearest is 'v5e-16'"),
        (
            "--run-id",
            "x; rm -rf ~",
            "run id 'x; rm -rf ~': expected 1 to 40 characters of a-z, 0-9 and -",
        ),
        ("--run-id", "$(reboot)", "run id '$(reboot)'"),
        ("--run-id", "Run_1", "starting with a letter and not ending with -"),
        ("--bucket", "gs://b;ls", "is not a bucket URL"),
        ("--bucket", "my-bucket", "is not a bucket URL; expected gs://BUCKET/FOLDER"),
        ("--bucket", "gs://bucket/folder", "expected gs://NAME, without a folder"),
        ("--zones", "us-central1-b,`id`", "--zones '`id`' is not a zone"),
        (
            "--zones",
            "europe-west4-a",
            "gs://bucket is in us-central1, but zone europe-west4-a is not",
        ),
        ("--project", "p&q", "project: found 'p&q'"),
        ("--service-account", "me;id@p", "--service-account 'me;id@p'"),
        ("--data", "wiki;=gs://bucket/x", "data 'wiki;'"),
        ("--data", "other=/tmp/x", "is not a bucket URL"),
        ("--data", "nothing", "--data 'nothing': expected NAME=VALUE"),
        ("--env-secret", "HF_TOKEN=projects/p", "expected HF_TOKEN=projects/PROJECT/secrets/NAME"),
        ("--max-hours", "0", "--max-hours 0: expected more than 0"),
        ("--max-usd", "-3", "--max-usd -3: expected more than 0"),
        ("--max-hours", "soon", "argument --max-hours: invalid float value: 'soon'"),
        ("--backend", "aws", "argument --backend: invalid choice"),
        ("--slices", "x", "unrecognized arguments: --slices x"),
    ],
)
def test_invalid_flags_are_reported_in_one_line(
    cloud: FakeCloud, trainers: Trainers, capsys, flag, value, message
):
    code, output = run_for_error(capsys, *with_flag(flag, value))
    assert code == 2 and message in output and output.count("\n") == 1, output
    assert not cloud.commands("create") and not cloud.object("manifest.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the job after -- must start with"),
        (("--",), "found nothing"),
        (
            ("--", "python", "train.py"),
            "start with one of glue, pretrain, finetune; found 'python'",
        ),
        (("--", "pretrain", "c.py", "--run", "x"), "--run is set by the hosts; omit it"),
        (("--", "glue", "--lane=3"), "--lane is set by the hosts; omit it"),
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


@pytest.mark.parametrize("words", [("cola", "--model", "@data/wiki"), ("mine.tsv",)])
def test_finetune_task_needs_no_recipe(cloud, trainers, words):
    assert tpuctl("launch", *LAUNCH, *DATA, "--", "finetune", *words) == 0


def test_unsupported_backend_is_rejected(cloud, trainers, capsys):
    words = ["launch", *LAUNCH, "--backend", "gce", *DATA, *WORK]
    words[words.index("v6e-16")] = "v4-32"
    code, output = run_for_error(capsys, *words)
    assert code == 2 and "v4 can only be rented through tpu-api" in output


def test_bucket_region_without_the_generation_is_rejected(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "AUSTRALIA-SOUTHEAST1"})
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 2 and "gs://bucket is in australia-southeast1, where v6e is not known" in output


def test_missing_bucket_is_reported(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": None})
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 1 and "gs://bucket not found: 404" in output


@pytest.mark.parametrize("location", ["US", "NAM4", "US-CENTRAL1"])
def test_multi_region_buckets_are_accepted(cloud, trainers, location):
    cloud.script(buckets={"bucket": location})
    assert tpuctl("launch", *LAUNCH, "--zones", "us-central1-b", *DATA, *WORK) == 0


POOL = {"quotaId": "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"}


@pytest.mark.parametrize(
    ("rows", "code", "message"),
    [
        ([{**POOL, "dimensionsInfos": [{"dimensions": {"zone": "us-central1-b"},
           "details": {"value": "8"}}]}], 2, "us-central1-b: 8, and v6e-16 needs 16"),
        ([{**POOL, "dimensionsInfos": [{"dimensions": {}, "details": {"value": "0"}}]}], 2,
         "us-central1-b: 0, and v6e-16 needs 16"),
        ([], 0, "no pool for spot v6e in us-central1-b is recognized"),
    ],
)  # fmt: skip
def test_missing_quota_is_found_before_creation(cloud, trainers, capsys, rows, code, message):
    cloud.script(quotas={"tpu.googleapis.com": rows})
    found, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert found == code and message in output
    assert bool(cloud.commands("queued-resources create")) == (code == 0)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"account": None}, "gcloud is not logged in; gcloud auth login"),
        ({"apis": ["storage.googleapis.com"]}, "gcloud services enable tpu.googleapis.com"),
        ({"types": {"us-central1-b": ["v5p-32"]}}, "us-central1-b does not offer v6e-16"),
        ({"project": "(unset)"}, "gcloud config set project PROJECT"),
        ({"missing_accounts": ["a@p.iam.gserviceaccount.com"]}, "Unknown service account"),
    ],
)
def test_failed_doctor_checks_end_a_launch(cloud, trainers, capsys, script, message):
    cloud.script(**script)
    account = ("--service-account", "a@p.iam.gserviceaccount.com")
    code, output = run_for_error(capsys, "launch", *LAUNCH, *account, *DATA, *WORK)
    assert code == 2 and message in output and not cloud.commands("create ")


OTHER = ("--data", "glue=gs://other/glue")
FAR = {"bucket": "US-CENTRAL1", "other": "EUROPE-WEST4"}


@pytest.mark.parametrize(
    ("data", "script", "message"),
    [
        (("--data", "wiki=gs://bucket/data/wikki"), {}, "--data wiki: there is nothing at "
         "gs://bucket/data/wikki; gcloud storage rsync -r FOLDER gs://bucket/data/wikki"),
        (DATA, {"deny_storage": [["read", "gs://bucket/data"]]}, "--data wiki: gs://bucket/data/"
         "wiki cannot be listed: ERROR: (gcloud.storage.ls) HTTPError 403: user@example.com does"),
        (DATA, {"deny_storage": [["read", "gs://bucket/data"]]}, "roles/storage.objectViewer"),
        ((*DATA, *OTHER), {"buckets": FAR}, "--data glue: gs://other is in europe-west4, "
         "zone us-central1-b is not; gcloud storage rsync -r gs://other/glue gs://bucket/data/glue"),
        ((*DATA, *OTHER), {"buckets": {"other": None}}, "there is nothing at gs://other/glue"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["launch", "up", "doctor"])
def test_unreadable_data_is_found_before_creation(
    cloud, trainers, capsys, verb, data, script, message
):
    (cloud.folder / "gcs/other/glue/RTE").mkdir(parents=True)
    cloud.script(**script)
    code = tpuctl(verb, *LAUNCH, *data, *WORK)
    output = capsys.readouterr()
    if verb == "doctor":
        assert code == 1
        assert message in output.out.replace("\n       fix: ", "; ").replace("FAIL ", "")
    else:
        assert code == 2 and message in output.err
    assert not cloud.commands(" cp ") and not cloud.commands("create ")


def test_missing_subfolder_of_the_data_is_found(cloud, trainers, capsys):
    words = [*WORK[:-1], "corpus=@data/wiki/train", "heldout=@data/wiki/heldout"]
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *words)
    assert code == 2 and not cloud.commands("create ")
    assert "gs://bucket/data/wiki has no heldout, which @data/wiki/heldout refers to" in output
    (cloud.folder / "gcs/bucket/data/wiki/heldout").mkdir()
    assert run_for_error(capsys, "launch", *LAUNCH, *DATA, *words)[0] == 0


def test_data_bucket_without_readable_location_is_a_warning(cloud, trainers, capsys):
    (cloud.folder / "gcs/other/glue/RTE").mkdir(parents=True)
    cloud.script(fail=[{"match": "buckets describe gs://other", "text": "HTTPError 403: no"}])
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *OTHER, *WORK)
    assert code == 0 and "WARN --data glue: gs://other has no readable location" in output


CLOSED = "PERMISSION_DENIED: Permission denied on 'locations/us-central1-a' (or it may not exist)"
LIST = "accelerator-types list .*us-central1-a"


def test_unreadable_zone_in_zones_flag_ends_the_launch(cloud, trainers, capsys):
    cloud.script(fail=[{"match": LIST, "text": CLOSED}])
    zones = ("--zones", "us-central1-b,us-central1-a")
    code, output = run_for_error(capsys, "launch", *LAUNCH, *zones, *DATA, *WORK)
    assert code == 2 and not cloud.commands("create ")
    assert (
        "zone: us-central1-a cannot be read: ERROR" in output and "other zones: --zones" in output
    )


def test_unreadable_default_zone_is_skipped(cloud, trainers, capsys):
    location, closed = {"bucket": "US"}, {"match": " list .*us-east5-a", "text": CLOSED}
    cloud.script(buckets=location, fail=[closed], types={"us-central1-b": ["v5p-32"]})
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 0, output
    assert "does not offer v6e-16; it is not used" in output and output.count("it is not used") == 2
    zones = json.loads(cloud.object("manifest.json").read_text())["zones"]
    assert zones and not {"us-central1-b", "us-east5-a"} & set(zones)


def test_doctor_prints_passed_and_failed_checks(cloud, trainers, capsys):
    cloud.script(apis=[])
    words = [word for word in LAUNCH if word != "--yes"]
    assert tpuctl("doctor", *words, *DATA, *WORK) == 1
    output = capsys.readouterr().out
    assert "OK   bucket: gs://bucket is in us-central1" in output
    assert "FAIL API: tpu.googleapis.com" in output and "fix: gcloud services enable" in output
    assert not cloud.commands(" cp ") and not cloud.commands("create")


def test_launch_needs_confirmation_of_the_cost(cloud, trainers, capsys, monkeypatch):
    words = [word for word in LAUNCH if word != "--yes"]
    code, output = run_for_error(capsys, "launch", *words, *DATA, *WORK)
    assert code == 2 and "pass --yes" in output
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    code, output = run_for_error(capsys, "launch", *words, *DATA, *WORK)
    assert code == 1 and "nothing was created" in output and not cloud.commands("create")


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "down", "run", "babysit", "sync"])
def test_commands_on_a_missing_run_are_rejected(cloud, trainers, capsys, verb):
    code, output = run_for_error(capsys, verb, *ONE)
    assert code == 1 and "there is no such run" in output and "tpu/tpuctl launch" in output


def test_missing_bucket_flag_names_the_variable(cloud, trainers, capsys, monkeypatch):
    code, output = run_for_error(capsys, "status", "--run-id", "r1")
    assert code == 2 and "--bucket is missing; pass it, or set BERT_TPU_BUCKET" in output
    monkeypatch.setenv("BERT_TPU_BUCKET", "gs://bucket")
    code, output = run_for_error(capsys, "status", "--run-id", "r1")
    assert code == 1 and "gs://bucket/runs/r1/manifest.json does not exist" in output


def test_flags_take_precedence_over_the_environment(cloud, trainers, monkeypatch):
    monkeypatch.setenv("BERT_TPU_SLICE", "v2-32")
    monkeypatch.setenv("BERT_TPU_MAX_HOURS", "3")
    monkeypatch.setenv("BERT_TPU_CAPACITY", "on-demand")
    assert tpuctl("launch", *LAUNCH, "--capacity", "spot", *DATA, *WORK) == 0
    found = json.loads(cloud.object("manifest.json").read_text())
    assert (found["slice"], found["max_hours"], found["capacity"]) == ("v6e-16", 3.0, "spot")


def test_invalid_environment_variable_is_rejected(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setenv("BERT_TPU_CAPACITY", "cheap")
    code, output = run_for_error(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 2 and "BERT_TPU_CAPACITY='cheap'" in output


def test_max_usd_without_a_known_price_is_rejected(cloud, trainers, capsys, monkeypatch):
    from tpu.launcher.runs import run_context

    monkeypatch.setattr(run_context, "usd_per_hour", lambda name, spot: None)
    code, output = run_for_error(capsys, "launch", *LAUNCH, "--max-usd", "5", *DATA, *WORK)
    assert code == 2 and "no price of v6e-16 is published" in output


def test_every_command_has_help_with_an_example(cloud, trainers, capsys):
    from tpu.launcher.cli import COMMANDS

    for verb in COMMANDS:
        with pytest.raises(SystemExit) as done:
            tpuctl(verb, "--help")
        assert done.value.code == 0
        assert f"example:\n  tpu/tpuctl {verb} " in capsys.readouterr().out


def test_missing_gcloud_is_reported_with_install_link(cloud):
    done = run_tpuctl("status", *ONE, PATH="/usr/sbin:/sbin:" + _python_only(cloud))
    assert done.returncode == 1 and "cloud.google.com/sdk/docs/install" in done.stderr


def test_dry_run_reads_the_real_project_and_region(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "EUROPE-WEST4"})
    assert tpuctl("launch", *LAUNCH, "--dry-run", *DATA, *WORK) == 0
    output = capsys.readouterr()
    (made,) = [line for line in output.out.splitlines() if " create " in line]
    assert (
        "--project=test-project --zone=europe-west4-a" in made
        and "the dry run continues" not in output.err
    )
    commands = [" ".join(words[:3]) for words in cloud.argv]
    assert commands == ["config get-value project", "storage buckets describe"]


@pytest.mark.parametrize("script", [{"project": "(unset)"}, {"buckets": {"bucket": None}}])
def test_dry_run_uses_defaults_for_missing_project_or_bucket(cloud, trainers, capsys, script):
    cloud.script(**script)
    assert tpuctl("launch", *LAUNCH, "--dry-run", *DATA, *WORK) == 0
    assert capsys.readouterr().err.count("the dry run continues with ") == 1


def test_dry_run_works_without_gcloud(cloud):
    words = ("launch", *LAUNCH, "--dry-run", *DATA, "--zones", "us-east1-d", *WORK)
    done = run_tpuctl(*words, PATH="/usr/sbin:/sbin:" + _python_only(cloud, "git"))
    assert done.returncode == 0, done.stderr
    assert "--project=my-project --zone=us-east1-d" in done.stdout
    assert (
        "gcloud is not on PATH" in done.stderr
        and "the dry run continues with us-east1" in done.stderr
    )


def _python_only(cloud: FakeCloud, *more: str) -> str:
    """Returns a folder with only python3, bash, dirname and the named programs."""
    import shutil
    import sys

    folder = cloud.folder / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    for name in ("bash", "dirname", "env", *more):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


def test_tpuctl_runs_from_any_directory(cloud, tmp_path):
    import subprocess

    done = subprocess.run(
        [str(ROOT / "tpu/tpuctl"), "prices", "--hours", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "| v6e-16 | 16 | $21.60 | $43.20 |" in done.stdout
