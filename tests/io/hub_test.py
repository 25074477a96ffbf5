"""Covers bert_jax/io/hub.py and its uses, against a hub on loopback that serves real folders."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.interop.peft.adapter_config import read_adapter_config
from bert_jax.io.hub import parse_model
from tests.helpers.hub import TOKEN, LoopbackHub

ROWS = "text,label\n" + "a net,work\nthe sea,rest\n" * 8


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    model = small_model(root / "vocabulary")
    (root / "models" / "org").mkdir(parents=True)
    export(model, root / "models" / "org" / "bert")
    # What must not be downloaded.
    (root / "models" / "org" / "bert" / "pytorch_model.bin").write_bytes(b"a pickle")
    (root / "models" / "org" / "bert" / "modeling_bert.py").write_text("raise SystemExit")
    (root / "datasets" / "org" / "reviews").mkdir(parents=True)
    (root / "datasets" / "org" / "reviews" / "train.csv").write_text(ROWS)
    with LoopbackHub(root) as server:
        yield server


def run(
    hub: LoopbackHub, home: Path, *words: str, code: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command, or Python code, with the hub and an empty cache below `home`."""
    home.mkdir(exist_ok=True)
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home / "cache"), "HF_TOKEN": TOKEN}
    settings |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    command = ["-c", code] if code else ["-m", "bert_jax", *words]
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **settings},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_names_of_models():
    assert parse_model("org/bert") == ("org/bert", None)
    assert parse_model("org/bert@v1.0") == ("org/bert", "v1.0")
    for name in ("bert", "a/b/c", "/org/bert", "org/bert/", "./org/bert", "org/bert@", "a b/c"):
        assert parse_model(name) is None


def test_upload_name_is_checked_before_the_export(tmp_path, capsys):
    words = ["export", "run", "--output", str(tmp_path / "copy"), "--push-to-hub", "me/copy@v1"]
    assert main(words) == 2
    assert "--push-to-hub me/copy@v1: expected ORG/NAME" in capsys.readouterr().err


def test_run_pins_the_commit_and_resumes_offline(hub, tmp_path):
    words = "finetune --model org/bert --train hf://datasets/org/reviews/train.csv --text text"
    words += " --label label --run run --epochs 1 --batch-size 8 --max-length 8 --method lora"
    done = run(hub, tmp_path, *words.split())
    assert done.returncode == 0, done.stderr
    commit = hub.commit("models", "org/bert")
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["init_from"] == f"org/bert@{commit}"
    cached = {path.name for path in (tmp_path / "cache").rglob("snapshots/*/*")}
    assert {"config.json", "model.safetensors", "train.csv"} <= cached
    assert not cached & {"pytorch_model.bin", "modeling_bert.py"}

    num_requests = len(hub.requests)
    offline = {"HF_HUB_OFFLINE": "1"}
    commands = [
        words.split(),
        ["export", "run", "--adapter", "--output", "adapter"],
        ["export", "run", "--adapter", "--base-name", "other/base", "--output", "named"],
        ["predict", "adapter", "a net"],
    ]
    code = f"from bert_jax.__main__ import main; print([main(words) for words in {commands}])"
    again = run(hub, tmp_path, code=code, **offline)
    prediction, exit_codes = again.stdout.splitlines()[-2:]
    assert exit_codes == "[0, 0, 0, 0]" and "the run is complete" in again.stderr, again.stderr
    assert json.loads(prediction)["label"] in ("work", "rest")
    assert len(hub.requests) == num_requests
    adapter = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("org/bert", commit)
    assert read_adapter_config(tmp_path / "adapter").base == f"org/bert@{commit}"
    assert read_adapter_config(tmp_path / "named").base == "other/base"


def test_loaded_model_is_uploaded_and_equal(hub, tmp_path):
    words = ["export", "org/bert", "--output", "copy", "--push-to-hub", "me/copy"]
    done = run(hub, tmp_path, *words)
    assert done.returncode == 0 and "/me/copy/commit/" in done.stderr, done.stderr
    assert TOKEN not in done.stderr + done.stdout
    original = hub.root / "models" / "org" / "bert" / "model.safetensors"
    copy = hub.root / "models" / "me" / "copy"
    assert (copy / "model.safetensors").read_bytes() == original.read_bytes()
    assert "bert_jax" in (copy / "README.md").read_text()
    code = "import bert_jax; print(bert_jax.load_model('me/copy').config.hidden_size)"
    assert run(hub, tmp_path, code=code).stdout.strip() == "16"
    code = "from pathlib import Path; from bert_jax.io.hub import upload_folder\n"
    code += "upload_folder(Path('copy'), 'me/copy')"
    refused = run(hub, tmp_path, code=code, HF_TOKEN="wrong")
    assert "UserError: me/copy: " in refused.stderr


@pytest.mark.parametrize(
    ("model", "environment", "message"),
    [
        (
            "org/absent",
            {},
            "org/absent: not on the Hugging Face hub, or private or .*hf auth",
        ),
        ("org/bert@v9", {}, "hub has no revision 'v9' of it"),
        (
            "org/bert",
            {"HF_HUB_OFFLINE": "1"},
            "not in the cache of this machine.*with network, run `hf download org/bert`",
        ),
        ("bert", {}, "bert: no such folder; .*or ORG/NAME, a model of the Hugging Face hub"),
    ],
)
def test_models_that_cannot_be_had(hub, tmp_path, model, environment, message):
    code = f"from bert_jax.pretrained.folder import resolve_model_folder as r; r({model!r})"
    done = run(hub, tmp_path, code=code, **environment)
    assert re.search(f"UserError: .*{message}", done.stderr), done.stderr
