"""What launcher and hosts say to each other: read strictly, and only with names that are plain."""

import ast
import dataclasses
import json
import sys
from pathlib import Path

import pytest

from bert_jax.errors import ConfigError, UserError
from bert_jax.hardware.tpu_slices import find_slice
from tpu import names, protocol, strict_json
from tpu.protocol import Exit, Order, Preflight, Problem, SliceShape, State

ROOT = Path(__file__).parents[2]


def order(**fields) -> Order:
    kind = find_slice("v6e-16")
    plain = {
        "run_id": "base",
        "incarnation": 3,
        "slice": SliceShape(
            name=kind.name, hosts=kind.hosts, devices=kind.devices, chips=kind.chips
        ),
        "bundle": "ab" * 32,
        "run_url": "gs://bucket/runs/base",
        "mode": "pod",
        "arguments": (
            "pretrain",
            "configs/pretrain/bert.py",
            "--with",
            "corpus=@data/wiki/train",
        ),
        "data": {"wiki": "gs://bucket/data/wiki"},
        "secrets": {"HF_TOKEN": "projects/p/secrets/s/versions/latest"},
        "max_hours": 12,
        "hosts": ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"),
        "requires": {"jax": "0.10.2"},
    }
    return Order(**{**plain, **fields})


PROBLEM = Problem(check="chips", found="3", expected="4", fix="make the slice anew")
VALUES = [
    order(),
    Preflight(
        host=1, ok=False, problems=(PROBLEM,), warnings=(), address="a", versions={}, time=1.5
    ),
    State(
        host=0,
        phase="training",
        pid=None,
        line="",
        step=3,
        rss_bytes=1,
        disk_free_bytes=2,
        time=9.0,
    ),
    Exit(host=2, code=75, meaning=protocol.meaning(75), time=2.0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_written_is_read_and_nothing_else(value):
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
    with pytest.raises(ConfigError, match="unknown key surprise; known are"):
        strict_json.from_text(type(value), json.dumps({**data, "surprise": 1}), "x.json")
    with pytest.raises(UserError, match=r"x\.json is not JSON"):
        strict_json.from_text(type(value), text[:-9], "x.json")


def test_a_key_within_is_named_with_its_path():
    data = json.loads(strict_json.to_text(order()))
    data["slice"]["cips"] = data["slice"].pop("chips")
    with pytest.raises(ConfigError, match=r"unknown key slice\.cips"):
        strict_json.from_text(Order, json.dumps(data), "order.json")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"version": 2}, "has version 2, this code reads 1"),
        ({"run_id": "x; rm -rf /"}, "run id"),
        ({"run_url": "gs://bucket/runs/other"}, "expected gs://.../runs/base"),
        ({"run_url": "gs://bucket/$(id)/runs/base"}, "no place in a bucket"),
        ({"run_url": "gs://bucket/../x/runs/base"}, "no place in a bucket"),
        ({"bundle": "ab"}, "sha256 of 64"),
        ({"hosts": ("a", "b")}, "has 4 hosts"),
        ({"hosts": ("a", "b", "c", "c")}, "an address of its own"),
        ({"hosts": ("a", "b", "c", "d e")}, "no address"),
        ({"arguments": ()}, "arguments is empty"),
        ({"arguments": ("export", "x")}, "runs bert-jax pretrain or finetune, not 'export'"),
        ({"mode": "lanes"}, "mode lanes runs bert-jax glue, not 'pretrain'"),
        ({"arguments": ("pretrain", "a=@data/wikki")}, "speaks of data 'wikki'.*has wiki"),
        ({"data": {"a/b": "gs://bucket/x"}}, "data 'a/b'"),
        ({"secrets": {"HF_TOKEN": "hunter2"}}, "projects/PROJECT/secrets/NAME"),
        ({"secrets": {"A-B": "projects/p/secrets/s/versions/1"}}, "name of a variable"),
        ({"max_hours": 0}, "max_hours"),
        ({"incarnation": -1}, "incarnation -1"),
        ({"coordinator_port": 80}, "1024 to 65535"),
    ],
)
def test_orders_that_cannot_be(fields, words):
    with pytest.raises(ConfigError, match=words):
        order(**fields)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a_b", "1a", "a" * 41, "a\n", "a b", "ä"])
def test_run_ids_that_cannot_be(text):
    with pytest.raises(ConfigError, match="1 to 40"):
        names.run_id(text)


def test_objects_of_a_run():
    folder = names.RunFolder(names.run_url("gs://bucket/", "base"))
    assert folder.checkpoints == "gs://bucket/runs/base/run/checkpoints"
    assert folder.incarnation(2).log(3) == "gs://bucket/runs/base/incarnations/2/host-3.log"
    assert order().folder == folder.incarnation(3)
    assert names.bundle_url("gs://bucket", "ab" * 32).endswith(f"/bundles/{'ab' * 32}.tar.gz")
    assert names.unit_name("base", 3) == "bert-base-3"


def test_every_code_that_we_give_means_something():
    codes = [v for k, v in vars(protocol).items() if k.startswith("EXIT_")]
    assert set(codes) == set(protocol.MEANINGS) >= protocol.NOT_REPEATED
    assert "not one of ours" in protocol.meaning(99)


def test_hosts_need_the_standard_library_alone_and_a_python_of_their_system():
    """Ubuntu 22.04 has Python 3.10; nothing is installed when the agent begins."""
    files = [*(ROOT / "tpu").glob("*.py"), *(ROOT / "tpu/worker").glob("*.py")]
    files += [ROOT / "bert_jax/__init__.py", ROOT / "bert_jax/errors.py"]
    assert len(files) > 15
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 10))
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                first = module.split(".")[0]
                ours = first == "tpu" or module == "bert_jax.errors"
                assert ours or first in sys.stdlib_module_names - {"tomllib"}, f"{file}: {module}"


def test_sizes_and_first_lines():
    for file in [*(ROOT / "tpu").glob("*.py"), *(ROOT / "tpu/worker").glob("*.py")]:
        tree = ast.parse(file.read_text())
        assert ast.get_docstring(tree), file
        assert len(file.read_text().splitlines()) <= 300, file
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{file}: {node.name}"
