"""Tests the JSON objects that launcher and hosts exchange.

Covers tpu/protocol.py, tpu/strict_json.py and tpu/bucket_layout.py.
"""

import ast
import dataclasses
import json
import sys
from pathlib import Path

import pytest

from bert_jax.errors import ConfigError, UserError
from bert_jax.parallel.tpu_slices import find_slice
from tpu import bucket_layout, protocol, strict_json
from tpu.protocol import (
    ExitReport,
    Heartbeat,
    JobSpec,
    PreflightProblem,
    PreflightReport,
    SliceShape,
)

ROOT = Path(__file__).parents[2]


def job_spec(**fields) -> JobSpec:
    kind = find_slice("v6e-16")
    plain = {
        "run_id": "base",
        "attempt": 3,
        "slice": SliceShape(
            name=kind.name, hosts=kind.hosts, devices=kind.devices, chips=kind.chips
        ),
        "bundle": "ab" * 32,
        "run_url": "gs://bucket/runs/base",
        "mode": "pod",
        "arguments": (
            "pretrain",
            "configs/pretrain/bert.py",
            "--arg",
            "corpus=@data/wiki/train",
        ),
        "data": {"wiki": "gs://bucket/data/wiki"},
        "secrets": {"HF_TOKEN": "projects/p/secrets/s/versions/latest"},
        "max_hours": 12,
        "host_addresses": ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"),
        "required_versions": {"jax": "0.10.2"},
    }
    return JobSpec(**{**plain, **fields})


PROBLEM = PreflightProblem(check="chips", found="3", expected="4", fix="create a new slice")
VALUES = [
    job_spec(),
    PreflightReport(
        host=1, ok=False, problems=(PROBLEM,), warnings=(), address="a", versions={}, time=1.5
    ),
    Heartbeat(
        host=0,
        phase="training",
        pid=None,
        last_log_line="",
        step=3,
        rss_bytes=1,
        disk_free_bytes=2,
        time=9.0,
    ),
    ExitReport(host=2, code=75, meaning=protocol.describe_exit_code(75), time=2.0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_json_round_trip_and_strictness(value):
    text = strict_json.to_text(value)
    assert strict_json.from_text(type(value), text, "x.json") == value
    data = json.loads(text)
    for field in dataclasses.fields(value):
        less = {key: each for key, each in data.items() if key != field.name}
        with pytest.raises(ConfigError, match=rf"x.json: key {field.name} is missing"):
            strict_json.from_text(type(value), json.dumps(less), "x.json")
        wrong = {**data, field.name: {"no": ["such"]}}
        with pytest.raises(ConfigError, match=rf"x.json: .*{field.name}|is missing|unknown key"):
            strict_json.from_text(type(value), json.dumps(wrong), "x.json")
    with pytest.raises(ConfigError, match="unknown key surprise; known keys"):
        strict_json.from_text(type(value), json.dumps({**data, "surprise": 1}), "x.json")
    with pytest.raises(UserError, match=r"x\.json is not JSON"):
        strict_json.from_text(type(value), text[:-9], "x.json")


def test_unknown_nested_key_is_named_with_its_path():
    data = json.loads(strict_json.to_text(job_spec()))
    data["slice"]["cips"] = data["slice"].pop("chips")
    with pytest.raises(ConfigError, match=r"unknown key slice\.cips"):
        strict_json.from_text(JobSpec, json.dumps(data), "job.json")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"version": 1}, "has version 1, this code reads version 2"),
        ({"run_id": "x; rm -rf /"}, "run id"),
        ({"run_url": "gs://bucket/runs/other"}, "expected gs://.../runs/base"),
        ({"run_url": "gs://bucket/$(id)/runs/base"}, "is not a bucket URL"),
        ({"run_url": "gs://bucket/../x/runs/base"}, "is not a bucket URL"),
        ({"bundle": "ab"}, "sha256 of 64"),
        ({"host_addresses": ("a", "b")}, "has 2 addresses, 2 of them different .*; expected 4"),
        ({"host_addresses": ("a", "b", "c", "c")}, "has 4 addresses, 3 of them different"),
        ({"host_addresses": ("a", "b", "c", "d e")}, "expected IP addresses"),
        ({"arguments": ()}, "arguments is empty"),
        ({"arguments": ("export", "x")}, "runs bert-jax pretrain or finetune, not 'export'"),
        ({"mode": "shards"}, "mode shards runs bert-jax glue, not 'pretrain'"),
        ({"arguments": ("pretrain", "a=@data/wikki")}, "uses data 'wikki'.*defined data: wiki"),
        ({"data": {"a/b": "gs://bucket/x"}}, "data 'a/b'"),
        ({"secrets": {"HF_TOKEN": "hunter2"}}, "projects/PROJECT/secrets/NAME"),
        ({"secrets": {"A-B": "projects/p/secrets/s/versions/1"}}, "environment variable name"),
        ({"max_hours": 0}, "max_hours"),
        ({"attempt": -1}, "attempt -1"),
        ({"coordinator_port": 80}, "1024 to 65535"),
    ],
)
def test_invalid_job_specs(fields, words):
    with pytest.raises(ConfigError, match=words):
        job_spec(**fields)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a_b", "1a", "a" * 41, "a\n", "a b", "ä"])
def test_invalid_run_ids(text):
    with pytest.raises(ConfigError, match="1 to 40"):
        bucket_layout.validate_run_id(text)


def test_run_folder_urls():
    folder = bucket_layout.RunFolder(bucket_layout.run_url("gs://bucket/", "base"))
    assert folder.checkpoints == "gs://bucket/runs/base/run/checkpoints"
    assert folder.attempt(2).log(3) == "gs://bucket/runs/base/attempts/2/host-3.log"
    assert job_spec().attempt_folder == folder.attempt(3)
    assert bucket_layout.bundle_url("gs://bucket", "ab" * 32).endswith(
        f"/bundles/{'ab' * 32}.tar.gz"
    )
    assert bucket_layout.unit_name("base", 3) == "bert-base-3"


def test_every_exit_code_has_a_meaning():
    codes = [v for k, v in vars(protocol).items() if k.startswith("EXIT_") and isinstance(v, int)]
    assert set(codes) == set(protocol.EXIT_CODE_MEANINGS) >= protocol.FATAL_EXIT_CODES
    assert "unknown code 99" in protocol.describe_exit_code(99)


def test_worker_uses_only_the_standard_library_and_python_3_10():
    """Ubuntu 22.04 has Python 3.10; nothing is installed when the agent begins."""
    files = [*(ROOT / "tpu").glob("*.py"), *(ROOT / "tpu/worker").glob("*.py")]
    shared = ("errors", "file_lock")
    files += [ROOT / f"bert_jax/{name}.py" for name in ("__init__", *shared)]
    assert len(files) > 15
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 10))
        # The package's lazy imports do not run on a host, only those of its top level.
        lazy = file == ROOT / "bert_jax/__init__.py"
        for node in tree.body if lazy else ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                first = module.split(".")[0]
                own_package = first == "tpu" or module in [f"bert_jax.{name}" for name in shared]
                assert own_package or first in sys.stdlib_module_names - {"tomllib"}, (
                    f"{file}: {module}"
                )


def test_worker_files_and_functions_are_small():
    for file in [*(ROOT / "tpu").glob("*.py"), *(ROOT / "tpu/worker").glob("*.py")]:
        tree = ast.parse(file.read_text())
        assert ast.get_docstring(tree), file
        assert len(file.read_text().splitlines()) <= 300, file
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{file}: {node.name}"
