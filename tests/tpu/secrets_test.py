"""Tests that secrets appear in no command, file, log or output.

Covers tpu/gcloud.py and tpu/code_archive.py; tests/tpu/worker_test.py has the hosts.
"""

import subprocess

import pytest

from tests.helpers.tpu.cloud import DATA, LAUNCH, ONE, WORK, FakeCloud, tpuctl
from tpu.code_archive import pack
from tpu.gcloud import Gcloud, redact
from tpu.job import from_json

# Looks like a token; concatenated so that no file of the repository contains one.
CANARY = "hf_" + "canaryCANARY" * 3
PLAIN = "correct-horse-battery"  # of no known shape: known by its variable's name
SECRET = "projects/p/secrets/hf"


def everything(cloud: FakeCloud) -> str:
    """Returns the content of all files of the cloud except the script, which has the secret."""
    files = [f for f in cloud.folder.rglob("*") if f.is_file() and f.name != "script.json"]
    return "\n".join(file.read_bytes().decode(errors="replace") for file in files)


def test_secret_value_appears_nowhere(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", PLAIN)
    cloud.script(secrets={SECRET: CANARY})
    words = ("launch", *LAUNCH, "--env-secret", f"HF_TOKEN={SECRET}", *DATA, *WORK)
    assert tpuctl(*words) == 0
    for verb in ("status", "logs", "down"):
        tpuctl(verb, *ONE)
    assert tpuctl(*words[:-5], "--dry-run", *words[-5:]) == 0
    output = capsys.readouterr()
    for secret in (CANARY, PLAIN):
        assert secret not in output.out + output.err + everything(cloud)
    job, _ = from_json(cloud.object("job.json").read_text())
    assert job.secrets == {"HF_TOKEN": SECRET}


@pytest.mark.parametrize("secret", [CANARY, PLAIN])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_secret_in_job_arguments_is_rejected(cloud, trainers, capsys, monkeypatch, secret, dry):
    monkeypatch.setenv("HF_TOKEN", PLAIN)
    code = tpuctl("launch", *LAUNCH, *dry, *DATA, *WORK, f"name={secret}")
    output = capsys.readouterr()
    assert code == 1 and "--env-secret NAME=projects/PROJECT/secrets/NAME" in output.err
    assert secret not in output.out + output.err + everything(cloud)


@pytest.mark.parametrize("flag", ["--env-secret", "--data", "--project", "--service-account"])
def test_secret_in_a_flag_is_not_printed(cloud, trainers, capsys, flag):
    """Tests a value that was pasted in place of the name."""
    tpuctl("launch", *LAUNCH, flag, f"HF_TOKEN={CANARY}", *WORK)
    output = capsys.readouterr()
    assert CANARY not in output.out + output.err + everything(cloud)


def test_gcloud_output_is_redacted(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setenv("API_KEY", PLAIN)
    cloud.script(fail=[{"match": "buckets describe", "text": f"bad token {CANARY} and {PLAIN}"}])
    assert tpuctl("launch", *LAUNCH, *DATA, *WORK) == 1
    output = capsys.readouterr().err
    assert "bad token [redacted] and [API_KEY]" in output
    assert CANARY not in output and PLAIN not in output


def test_commands_with_secrets_are_rejected(cloud, monkeypatch):
    monkeypatch.setenv("MY_SECRET", PLAIN)
    for gcloud in (Gcloud(), Gcloud(dry_run=True)):
        with pytest.raises(Exception, match=r"contains the value of \$MY_SECRET"):
            gcloud.run("storage", "ls", f"gs://b/{PLAIN}")
    assert not cloud.argv


@pytest.mark.parametrize(
    "word", ["multi-task-fine-tuning-experiment-1", "gs://b/data/task-descriptions-english"]
)
def test_words_that_resemble_token_prefixes_are_kept(word):
    assert redact(word, {}) == word


@pytest.mark.parametrize("before", ["", "key=", "/", "-"])
def test_token_after_a_non_letter_is_redacted(before):
    token = "sk-" + "canaryCANARY" * 3
    assert redact(f"{before}{token}", {}) == f"{before}[redacted]"


def test_path_in_a_credentials_variable_is_no_secret(tmp_path):
    file = tmp_path / "key.json"
    file.write_text("{}")
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    assert redact(f"using {file}", environment) == f"using {file}"


def test_code_with_a_token_is_rejected(tmp_path):
    names = ("setup.py", "bert_jax/__init__.py", "tpu/worker.py", "tpu/host/bootstrap.sh")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    first = pack(tmp_path)
    assert first == pack(tmp_path), "the same files, other bytes"
    (tmp_path / ".env").write_text(f"HF_TOKEN={CANARY}")
    assert pack(tmp_path) == first, "took a file that git does not know, from outside the code"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.py").write_text(f"TOKEN = '{CANARY}'")
    with pytest.raises(
        Exception, match=r"configs/mine.py contains something that looks like a token"
    ):
        pack(tmp_path)
