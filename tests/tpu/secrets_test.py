"""A canary: a made-up secret that must be in no command, file, log or output, however it comes."""

import json
import os
import subprocess

import pytest

from tests.tpu.cloud import DATA, LAUNCH, WORK, FakeCloud, pod
from tpu.launcher.bundle import pack
from tpu.launcher.gcloud import Gcloud
from tpu.launcher.secrecy import redact

# Shaped like a token, put together so that no file of the repository holds one.
CANARY = "hf_" + "canaryCANARY" * 3
PLAIN = "correct-horse-battery"  # of no known shape: known by its variable's name
SECRET = "projects/p/secrets/hf"


def everything(cloud: FakeCloud) -> str:
    """All files of the cloud but the script, where the secret has its home."""
    files = [f for f in cloud.folder.rglob("*") if f.is_file() and f.name != "script.json"]
    return "\n".join(file.read_bytes().decode(errors="replace") for file in files)


def test_a_secret_by_name_reaches_nobody_by_value(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", PLAIN)
    cloud.script(secrets={SECRET: CANARY})
    words = ("launch", *LAUNCH, "--env-secret", f"HF_TOKEN={SECRET}", *DATA, *WORK)
    assert pod(*words) == 0
    for verb in ("status", "logs", "down"):
        assert pod(verb, "--bucket", "gs://bucket", "--run-id", "r1") == 0
    assert pod(*words[:-5], "--dry-run", *words[-5:]) == 0
    said = capsys.readouterr()
    for secret in (CANARY, PLAIN):
        assert secret not in said.out + said.err + everything(cloud)
    order = json.loads(cloud.object("incarnations/0/order.json").read_text())
    assert order["secrets"] == {"HF_TOKEN": f"{SECRET}/versions/latest"}


@pytest.mark.parametrize("secret", [CANARY, PLAIN])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_secret_in_the_arguments_is_refused(cloud, trainers, capsys, monkeypatch, secret, dry):
    monkeypatch.setenv("HF_TOKEN", PLAIN)
    code = pod("launch", *LAUNCH, *dry, *DATA, *WORK, f"name={secret}")
    said = capsys.readouterr()
    assert code == 1 and "--env-secret NAME=projects/PROJECT/secrets/NAME" in said.err
    assert secret not in said.out + said.err + everything(cloud)


@pytest.mark.parametrize("flag", ["--env-secret", "--data", "--project", "--service-account"])
def test_a_secret_in_a_flag_is_not_repeated(cloud, trainers, capsys, flag):
    """As when someone pastes the value where the name belongs."""
    pod("launch", *LAUNCH, flag, f"HF_TOKEN={CANARY}", *WORK)
    said = capsys.readouterr()
    assert CANARY not in said.out + said.err + everything(cloud)


def test_what_gcloud_says_is_redacted(cloud, trainers, capsys, monkeypatch):
    monkeypatch.setenv("API_KEY", PLAIN)
    cloud.script(fail=[{"match": "buckets describe", "text": f"bad token {CANARY} and {PLAIN}"}])
    assert pod("launch", *LAUNCH, *DATA, *WORK) == 1
    said = capsys.readouterr().err
    assert "bad token [redacted] and [API_KEY]" in said
    assert CANARY not in said and PLAIN not in said


def test_processes_get_no_secret_in_their_words(cloud, monkeypatch):
    environment = {**os.environ, "MY_SECRET": PLAIN}
    with pytest.raises(Exception, match=r"holds the value of \$MY_SECRET"):
        Gcloud(environment).run(["gcloud", "storage", "ls", f"gs://b/{PLAIN}"])
    assert not cloud.argv


@pytest.mark.parametrize(
    "word", ["multi-task-fine-tuning-experiment-1", "gs://b/data/task-descriptions-english"]
)
def test_a_word_that_ends_like_the_beginning_of_a_token_is_none(word):
    assert redact(word, {}) == word


@pytest.mark.parametrize("before", ["", "key=", "/", "-"])
def test_a_token_after_anything_but_a_letter_is_one(before):
    token = "sk-" + "canaryCANARY" * 3
    assert redact(f"{before}{token}", {}) == f"{before}[redacted]"


def test_a_path_in_a_variable_called_credentials_is_no_secret(tmp_path):
    file = tmp_path / "key.json"
    file.write_text("{}")
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    assert redact(f"using {file}", environment) == f"using {file}"


def test_a_bundle_with_a_token_is_refused(tmp_path):
    for name in ("setup.py", "bert_jax/__init__.py", "tpu/worker/agent.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "tpu/worker/bootstrap.sh").write_text("")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    first = pack(tmp_path)
    assert first == pack(tmp_path), "the same files, other bytes"
    (tmp_path / ".env").write_text(f"HF_TOKEN={CANARY}")
    assert pack(tmp_path) == first, "took a file that git does not know, from outside the code"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.py").write_text(f"TOKEN = '{CANARY}'")
    with pytest.raises(Exception, match=r"configs/mine.py holds something shaped like a token"):
        pack(tmp_path)
