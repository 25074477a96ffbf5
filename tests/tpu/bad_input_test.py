"""What a user can get wrong, and what the launcher says about it: one clear message each."""

import json

import pytest

from tests.tpu.cloud import DATA, LAUNCH, ROOT, WORK, FakeCloud, Trainers, pod, run_pod

ONE = ("--bucket", "gs://bucket", "--run-id", "r1")
RECIPE = ("--", "pretrain", "configs/pretrain/bert.py", "--with")


def told(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str]:
    """Exit code and the last message of a command."""
    code = pod(*words)
    return code, capsys.readouterr().err


def with_flag(flag: str, value: str) -> list[str]:
    """A launch with one flag changed."""
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
        ("--run-id", "x; rm -rf ~", "run id 'x; rm -rf ~': expected 1 to 40 of a-z, 0-9 and -"),
        ("--run-id", "$(reboot)", "run id '$(reboot)'"),
        ("--run-id", "Run_1", "a letter first and no - last"),
        ("--bucket", "gs://b;ls", "is no place in a bucket"),
        ("--bucket", "my-bucket", "is no place in a bucket; expected gs://BUCKET/FOLDER"),
        ("--bucket", "gs://bucket/folder", "expected gs://NAME, without a folder"),
        ("--zones", "us-central1-b,`id`", "--zones '`id`' is no zone"),
        ("--zones", "europe-west4-a", "gs://bucket is in us-central1, zone europe-west4-a is not"),
        ("--project", "p&q", "project: found 'p&q'"),
        ("--service-account", "me;id@p", "--service-account 'me;id@p'"),
        ("--data", "wiki;=gs://bucket/x", "data 'wiki;'"),
        ("--data", "other=/tmp/x", "is no place in a bucket"),
        ("--data", "nothing", "--data 'nothing': expected NAME=VALUE"),
        ("--env-secret", "HF_TOKEN=projects/p", "expected HF_TOKEN=projects/PROJECT/secrets/NAME"),
        ("--max-hours", "0", "--max-hours 0: expected more than 0"),
        ("--max-usd", "-3", "--max-usd -3: expected more than 0"),
        ("--max-hours", "soon", "argument --max-hours: invalid float value: 'soon'"),
        ("--backend", "aws", "argument --backend: invalid choice"),
        ("--slices", "x", "unrecognized arguments: --slices x"),
    ],
)
def test_flags(cloud: FakeCloud, trainers: Trainers, capsys, flag, value, message):
    code, said = told(capsys, *with_flag(flag, value))
    assert code == 2 and message in said and said.count("\n") == 1, said
    assert not cloud.commands("create") and not cloud.object("manifest.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "what is to run stands after --"),
        (("--",), "found nothing"),
        (("--", "python", "train.py"), "begins with glue, pretrain, finetune; found 'python'"),
        (("--", "pretrain", "c.py", "--run", "x"), "--run is given by the hosts themselves"),
        (("--", "glue", "--lane=3"), "--lane is given by the hosts themselves"),
        (("--", "pretrain", "c.py", "--with", "corpus=@data/no"), "speaks of data 'no'"),
        (("--", "pretrain", "--with", "corpus=x"), "pretrain needs a recipe"),
        (
            (*RECIPE[:2], "configs/pretrain/bret.py"),
            "recipe configs/pretrain/bret.py: hosts will "
            "not have it; they have files below configs/, and others that git lists as @code/FILE; "
            "the nearest is configs/pretrain/bert.py",
        ),
        ((*RECIPE[:2], "tests/mine.py"), "recipe tests/mine.py: hosts will not have it"),
        ((*RECIPE[:2], "/etc/x.py"), "recipe /etc/x.py: hosts will not have it"),
        (
            (*RECIPE, "corpus=@data/wiki", "siz=base"),
            "--with siz=base: configs/pretrain/bert.py "
            "has no argument 'siz'; the nearest is size; it has corpus, heldout, size, steps",
        ),
        ((*RECIPE, "corpus=@data/wiki", "tpu"), "--with tpu: expected NAME=VALUE"),
        ((*RECIPE, "size=base"), "configs/pretrain/bert.py needs --with corpus=..."),
    ],
)
def test_what_is_to_run(cloud: FakeCloud, trainers: Trainers, capsys, words, message):
    code, said = told(capsys, "launch", *LAUNCH, *DATA, *words)
    assert code == 2 and message in said and not cloud.commands("create")


@pytest.mark.parametrize(
    "words",
    [
        ("./configs/pretrain/bert.py", "--with", "corpus=@data/wiki", "--set", "seed=1"),
        ("@code/configs/pretrain/bert.py", "--with=corpus=@data/wiki"),
        ("@data/wiki/recipe.py", "--with", "anything=1"),
    ],
)
def test_recipes_that_hosts_will_have(cloud, trainers, words):
    (cloud.folder / "gcs/bucket/data/wiki/recipe.py").touch()
    assert pod("launch", *LAUNCH, *DATA, "--", "pretrain", *words) == 0


@pytest.mark.parametrize("words", [("cola", "--model", "@data/wiki"), ("mine.tsv",)])
def test_a_task_is_no_recipe(cloud, trainers, words):
    assert pod("launch", *LAUNCH, *DATA, "--", "finetune", *words) == 0


def test_a_backend_that_the_generation_does_not_have(cloud, trainers, capsys):
    words = ["launch", *LAUNCH, "--backend", "gce", *DATA, *WORK]
    words[words.index("v6e-16")] = "v4-32"
    code, said = told(capsys, *words)
    assert code == 2 and "v4 is rented through tpu-api only" in said


def test_a_bucket_where_the_generation_is_not_offered(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "AUSTRALIA-SOUTHEAST1"})
    code, said = told(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 2 and "gs://bucket is in australia-southeast1, where v6e is not known" in said


def test_a_bucket_that_is_not_there(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": None})
    code, said = told(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 1 and "gs://bucket not found: 404" in said


@pytest.mark.parametrize("location", ["US", "NAM4", "US-CENTRAL1"])
def test_buckets_of_several_regions(cloud, trainers, location):
    cloud.script(buckets={"bucket": location})
    assert pod("launch", *LAUNCH, "--zones", "us-central1-b", *DATA, *WORK) == 0


POOL = {"quotaId": "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"}


@pytest.mark.parametrize(
    ("rows", "code", "message"),
    [
        ([{**POOL, "dimensionsInfos": [{"dimensions": {"zone": "us-central1-b"},
           "details": {"value": "8"}}]}], 2, "us-central1-b: 8, and v6e-16 needs 16"),
        ([{**POOL, "dimensionsInfos": [{"dimensions": {}, "details": {"value": "0"}}]}], 2,
         "us-central1-b: 0, and v6e-16 needs 16"),
        ([], 0, "no pool for spot v6e in us-central1-b is recognised"),
    ],
)  # fmt: skip
def test_missing_quota_is_known_before_anything_is_made(
    cloud, trainers, capsys, rows, code, message
):
    cloud.script(quotas={"tpu.googleapis.com": rows})
    found, said = told(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert found == code and message in said
    assert bool(cloud.commands("queued-resources create")) == (code == 0)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"account": None}, "nobody is logged in; gcloud auth login"),
        ({"apis": ["storage.googleapis.com"]}, "gcloud services enable tpu.googleapis.com"),
        ({"types": {"us-central1-b": ["v5p-32"]}}, "us-central1-b does not offer v6e-16"),
        ({"project": "(unset)"}, "gcloud config set project PROJECT"),
        ({"missing_accounts": ["a@p.iam.gserviceaccount.com"]}, "Unknown service account"),
    ],
)
def test_what_doctor_finds_ends_a_launch(cloud, trainers, capsys, script, message):
    cloud.script(**script)
    account = ("--service-account", "a@p.iam.gserviceaccount.com")
    code, said = told(capsys, "launch", *LAUNCH, *account, *DATA, *WORK)
    assert code == 2 and message in said and not cloud.commands("create ")


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
         "us-central1-b is not; gcloud storage rsync -r gs://other/glue gs://bucket/data/glue"),
        ((*DATA, *OTHER), {"buckets": {"other": None}}, "there is nothing at gs://other/glue"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["launch", "up", "doctor"])
def test_data_that_hosts_could_not_have(cloud, trainers, capsys, verb, data, script, message):
    (cloud.folder / "gcs/other/glue/RTE").mkdir(parents=True)
    cloud.script(**script)
    code = pod(verb, *LAUNCH, *data, *WORK)
    said = capsys.readouterr()
    if verb == "doctor":
        assert code == 1
        assert message in said.out.replace("\n       fix: ", "; ").replace("FAIL ", "")
    else:
        assert code == 2 and message in said.err
    assert not cloud.commands(" cp ") and not cloud.commands("create ")


def test_a_part_of_the_data_that_is_missing(cloud, trainers, capsys):
    words = [*WORK[:-1], "corpus=@data/wiki/train", "heldout=@data/wiki/heldout"]
    code, said = told(capsys, "launch", *LAUNCH, *DATA, *words)
    assert code == 2 and not cloud.commands("create ")
    assert "gs://bucket/data/wiki has no heldout, which @data/wiki/heldout stands for" in said
    (cloud.folder / "gcs/bucket/data/wiki/heldout").mkdir()
    assert told(capsys, "launch", *LAUNCH, *DATA, *words)[0] == 0


def test_data_of_another_bucket_in_the_region(cloud, trainers, capsys):
    (cloud.folder / "gcs/other/glue/RTE").mkdir(parents=True)
    cloud.script(fail=[{"match": "buckets describe gs://other", "text": "HTTPError 403: no"}])
    code, said = told(capsys, "launch", *LAUNCH, *DATA, *OTHER, *WORK)
    assert code == 0 and "WARN --data glue: gs://other does not say where it is" in said


CLOSED = "PERMISSION_DENIED: Permission denied on 'locations/us-central1-a' (or it may not exist)"
LIST = "accelerator-types list .*us-central1-a"


def test_a_zone_that_cannot_be_asked_ends_a_launch_that_names_it(cloud, trainers, capsys):
    cloud.script(fail=[{"match": LIST, "text": CLOSED}])
    zones = ("--zones", "us-central1-b,us-central1-a")
    code, said = told(capsys, "launch", *LAUNCH, *zones, *DATA, *WORK)
    assert code == 2 and not cloud.commands("create ")
    assert "zone: us-central1-a cannot be asked: ERROR" in said and "other zones: --zones" in said


def test_a_zone_that_nobody_named_and_cannot_be_asked_is_left_out(cloud, trainers, capsys):
    location, closed = {"bucket": "US"}, {"match": " list .*us-east5-a", "text": CLOSED}
    cloud.script(buckets=location, fail=[closed], types={"us-central1-b": ["v5p-32"]})
    code, said = told(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 0, said
    assert "does not offer v6e-16; it is left out" in said and said.count("left out") == 2
    zones = json.loads(cloud.object("manifest.json").read_text())["zones"]
    assert zones and not {"us-central1-b", "us-east5-a"} & set(zones)


def test_doctor_says_what_is_well_and_what_is_not(cloud, trainers, capsys):
    cloud.script(apis=[])
    words = [word for word in LAUNCH if word != "--yes"]
    assert pod("doctor", *words, *DATA, *WORK) == 1
    said = capsys.readouterr().out
    assert "OK   bucket: gs://bucket is in us-central1" in said
    assert "FAIL API: tpu.googleapis.com" in said and "fix: gcloud services enable" in said
    assert not cloud.commands(" cp ") and not cloud.commands("create")


def test_nobody_says_yes(cloud, trainers, capsys, monkeypatch):
    words = [word for word in LAUNCH if word != "--yes"]
    code, said = told(capsys, "launch", *words, *DATA, *WORK)
    assert code == 2 and "give --yes" in said
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    code, said = told(capsys, "launch", *words, *DATA, *WORK)
    assert code == 1 and "nothing was created" in said and not cloud.commands("create")


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "down", "run", "babysit", "sync"])
def test_verbs_of_a_run_that_is_not_there(cloud, trainers, capsys, verb):
    code, said = told(capsys, verb, *ONE)
    assert code == 1 and "there is no such run" in said and "tpu/pod launch" in said


def test_a_missing_bucket_flag(cloud, trainers, capsys, monkeypatch):
    code, said = told(capsys, "status", "--run-id", "r1")
    assert code == 2 and "--bucket is missing; give it, or set BERT_TPU_BUCKET" in said
    monkeypatch.setenv("BERT_TPU_BUCKET", "gs://bucket")
    code, said = told(capsys, "status", "--run-id", "r1")
    assert code == 1 and "gs://bucket/runs/r1/manifest.json does not exist" in said


def test_flags_beat_the_environment(cloud, trainers, monkeypatch):
    monkeypatch.setenv("BERT_TPU_SLICE", "v2-32")
    monkeypatch.setenv("BERT_TPU_MAX_HOURS", "3")
    monkeypatch.setenv("BERT_TPU_CAPACITY", "on-demand")
    assert pod("launch", *LAUNCH, "--capacity", "spot", *DATA, *WORK) == 0
    found = json.loads(cloud.object("manifest.json").read_text())
    assert (found["slice"], found["max_hours"], found["capacity"]) == ("v6e-16", 3.0, "spot")


def test_a_wrong_environment_is_refused(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setenv("BERT_TPU_CAPACITY", "cheap")
    code, said = told(capsys, "launch", *LAUNCH, *DATA, *WORK)
    assert code == 2 and "BERT_TPU_CAPACITY='cheap'" in said


def test_max_usd_without_a_price(cloud, trainers, capsys, monkeypatch):
    from tpu.launcher import context

    monkeypatch.setattr(context, "usd_per_hour", lambda name, spot: None)
    code, said = told(capsys, "launch", *LAUNCH, "--max-usd", "5", *DATA, *WORK)
    assert code == 2 and "no price of v6e-16 is published" in said


def test_every_verb_has_help_with_an_example_that_it_understands(cloud, trainers, capsys):
    from tpu.launcher.cli import VERBS

    for verb in VERBS:
        with pytest.raises(SystemExit) as done:
            pod(verb, "--help")
        assert done.value.code == 0
        assert f"example:\n  tpu/pod {verb} " in capsys.readouterr().out


def test_without_gcloud_it_says_how_to_get_it(cloud):
    done = run_pod("status", *ONE, PATH="/usr/sbin:/sbin:" + _python_only(cloud))
    assert done.returncode == 1 and "cloud.google.com/sdk/docs/install" in done.stderr


def test_a_dry_run_is_about_the_real_project_and_region(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "EUROPE-WEST4"})
    assert pod("launch", *LAUNCH, "--dry-run", *DATA, *WORK) == 0
    said = capsys.readouterr()
    (made,) = [line for line in said.out.splitlines() if " create " in line]
    assert "--project=test-project --zone=europe-west4-a" in made and not said.err.count("as if")
    asked = [" ".join(words[:3]) for words in cloud.argv]
    assert asked == ["config get-value project", "storage buckets describe"]


@pytest.mark.parametrize("script", [{"project": "(unset)"}, {"buckets": {"bucket": None}}])
def test_a_dry_run_makes_up_what_is_not_there_yet_and_says_so(cloud, trainers, capsys, script):
    cloud.script(**script)
    assert pod("launch", *LAUNCH, "--dry-run", *DATA, *WORK) == 0
    assert capsys.readouterr().err.count("a dry run goes on, as if it were ") == 1


def test_a_dry_run_needs_no_gcloud(cloud):
    words = ("launch", *LAUNCH, "--dry-run", *DATA, "--zones", "us-east1-d", *WORK)
    done = run_pod(*words, PATH="/usr/sbin:/sbin:" + _python_only(cloud, "git"))
    assert done.returncode == 0, done.stderr
    assert "--project=my-project --zone=us-east1-d" in done.stdout
    assert "gcloud is not on PATH" in done.stderr and "as if it were us-east1" in done.stderr


def _python_only(cloud: FakeCloud, *more: str) -> str:
    """A folder with python3, bash and dirname, and nothing else but what is named."""
    import shutil
    import sys

    folder = cloud.folder / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    for name in ("bash", "dirname", "env", *more):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


def test_pod_runs_from_anywhere(cloud, tmp_path):
    import subprocess

    done = subprocess.run(
        [str(ROOT / "tpu/pod"), "prices", "--hours", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "| v6e-16 | 16 | $21.60 | $43.20 |" in done.stdout
