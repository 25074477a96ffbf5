"""Tests the imports and sizes of tpu/launcher, and the error catalog.

Covers tpu/launcher/cloud/error_catalog.py.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tpu.cloud import ROOT
from tpu.launcher.cloud.error_catalog import ERROR_CATALOG, classify_error

FILES = sorted((ROOT / "tpu/launcher").rglob("*.py"))
# Parts of bert_jax that import the standard library only.
ALLOWED = (
    "tpu",
    "bert_jax.errors",
    "bert_jax.parallel.tpu_slices",
    "bert_jax.io.log_handler",
    "bert_jax.io.parent_process",
    "bert_jax.config.recipes",
)
README = (ROOT / "tpu/README.md").read_text()


def imported(file: Path) -> set[str]:
    """Returns the full names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_launcher_uses_only_the_standard_library(file: Path):
    for name in imported(file):
        light = name.split(".")[0] in sys.stdlib_module_names
        assert light or name.startswith(ALLOWED), f"{file.name} imports {name}"


def test_launcher_loads_no_third_party_package():
    """Also checks what the modules of bert_jax import that the launcher uses."""
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES]
    code = f"""
import importlib, sys
before = set(sys.modules)
for module in {[name for name in modules if not name.endswith("__main__")]!r}:
    importlib.import_module(module)
print(*{{name.split(".")[0] for name in set(sys.modules) - before}})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert {"tpu", "bert_jax"} <= loaded <= {"tpu", "bert_jax", *sys.stdlib_module_names}, done


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_launcher_files_and_functions_are_small(file: Path):
    text = file.read_text()
    assert len(text.splitlines()) <= 300 and ast.get_docstring(ast.parse(text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= 60, f"{file.name}: {node.name} has {lines} lines"


def test_slice_names_appear_only_in_the_table():
    """Tests that slice names appear nowhere else, except in the examples of help and messages."""
    for file in FILES:
        if file.name not in ("cli.py", "options.py", "flag_values.py"):
            assert "v6e-16" not in file.read_text(), file.name


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('There is no more capacity in the zone "us-central1-b"; you can try', "stockout"),
        ("Insufficient reserved capacity. Contact customer support", "stockout"),
        ("code: ZONE_RESOURCE_POOL_EXHAUSTED", "stockout"),
        ("Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted.", "quota"),
        ("RESOURCE_EXHAUSTED: Quota limit 'TPUV6E' has been exceeded. Limit: 0", "quota"),
        ("HTTPError 412: At least one of the pre-conditions you specified did not hold.",
         "changed"),
        ("NOT_FOUND: Resource 'x' was not found", "absent"),
        ("gs://b not found: 404.", "absent"),
        ("ALREADY_EXISTS: Resource already exists", "exists"),
        ("PERMISSION_DENIED: Permission 'tpu.nodes.create' denied", "permission"),
        ("HTTPError 403: sa@p does not have storage.objects.get access", "permission"),
        ("You do not currently have an active account selected", "auth"),
        ("Cloud TPU API has not been used in project 1 before or it is disabled", "api"),
        ("unrecognized arguments: --target-size-policy-mode", "flag"),
        ("This user agent is not allowed to use the machine type [ct5lp-hightpu-1t]", "offer"),
        ("[/usr/bin/ssh] exited with return code [255].", "ssh"),
        ("UNAVAILABLE: The service is currently unavailable.", "network"),
        ("timed out after 120 s", "network"),
        ("something new", "other"),
    ],
)  # fmt: skip
def test_error_patterns_recognize_messages(text: str, kind: str):
    assert classify_error(f"ERROR: (gcloud.compute.tpus.x) {text}").kind == kind


def test_every_error_pattern_has_advice():
    assert all(row.advice for row in ERROR_CATALOG)
    for words in (
        "There is no more capacity in the zone",
        "PERMISSION_DENIED",
        "return code [255]",
    ):
        assert words in README
