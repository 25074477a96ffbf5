"""Runs all checks and writes what they found as one JSON file and one page.

The JSON file is an object:

    status      "pass", or "fail" if a check failed
    date        UTC
    seconds     of all checks
    devices     as `parallel/devices.hardware_info`
    versions    of Python and of the packages
    system      operating system; variables that change what XLA compiles
    checks      name, status, description, unit, value, limit, detail, seconds, numbers of each
"""

import dataclasses
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from bert_jax.apps.verify.checks import (
    STATUSES,
    Check,
    Context,
    Result,
    Skipped,
    Target,
    run_check,
)
from bert_jax.apps.verify.kernels import dropout_checks, kernel_checks
from bert_jax.apps.verify.sharded_steps import sharding_checks
from bert_jax.apps.verify.speed import speed_checks
from bert_jax.apps.verify.training import remove_checkpoints, training_checks
from bert_jax.parallel.devices import hardware_info
from bert_jax.report.html import card, escape, html_page, key_value_table, section, table
from bert_jax.report.output_folder import write_results
from bert_jax.runs.run_folder import package_versions
from bert_jax.train.compilation_cache import persistent_compilation_cache

_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "JAX_DEFAULT_MATMUL_PRECISION")


def all_checks() -> list[Check]:
    """Returns the checks in the order in which they run."""
    return [
        *kernel_checks(),
        *dropout_checks(),
        *training_checks(),
        *sharding_checks(),
        *speed_checks(),
    ]


def verify(
    output: Path,
    *,
    checkpoint_dir: str | None = None,
    updates: int = 30,
    on_result: Callable[[Result], None] = lambda result: None,
) -> dict[str, Any]:
    """Runs all checks on the devices of this machine, or of all processes.

    Args:
      output: the folder of verify.json and verify.html, written by process 0.
      checkpoint_dir: a folder that all processes can write, possibly gs://; several processes
        skip what needs checkpoints without it.
      updates: the updates of the short training, an even number.
      on_result: called with each result.

    Returns:
      The content of verify.json.

    Raises:
      UserError: a file cannot be written.
    """
    start, results = time.monotonic(), list[Result]()
    with tempfile.TemporaryDirectory(prefix="bert-jax-verify-") as folder:
        context = Context(
            target=Target.of_this_machine(),
            folder=Path(folder),
            checkpoint_dir=checkpoint_dir,
            updates=updates,
        )
        remove_checkpoints(context)
        with persistent_compilation_cache(context.folder):  # the two trainings share programs
            for check in all_checks():
                results.append(run_check(check, context))
                on_result(results[-1])
    failed = any(result.status == "fail" for result in results)
    report = {
        "status": "fail" if failed else "pass",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "seconds": time.monotonic() - start,
        "devices": hardware_info(),
        "versions": package_versions(),
        "system": {
            "system": platform.platform(),
            **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
        },
        "checks": [dataclasses.asdict(result) for result in results],
    }
    if jax.process_index() == 0:
        write_results(output, "verify", report, make_page(report))
    return report


def make_page(report: dict[str, Any]) -> str:
    """Returns the page of a report: its status, one row for each check, devices and versions."""
    rows = (
        (
            check["name"],
            check["status"],
            "" if check["value"] is None else f"{check['value']:.3g} {check['unit']}",
            "" if check["limit"] is None else f"{check['limit']:g}",
            f"{check['description']}. {check['detail']}".strip(" ."),
            f"{check['seconds']:.1f}",
        )
        for check in sorted(report["checks"], key=lambda check: -STATUSES.index(check["status"]))
    )
    header = ("check", "result", "measured", "at most", "what", "seconds")
    status = "open" if report["status"] == "fail" else ""
    devices = report["devices"]
    title = (
        f"Verification on {devices['devices']} x {devices['device_kind']}, {devices['host_cpu']}"
    )
    body = [
        f'<h1>{escape(title)}</h1><p class="status {status}">{escape(summarize(report))}</p>',
        section("Checks", table(header, rows, numeric=False)),
        card(key_value_table(devices | report["system"], ("name", "value")), title="Devices"),
        card(key_value_table(report["versions"], ("package", "version")), title="Versions"),
    ]
    return html_page(f"bert_jax: {title}", "".join(body))


def summarize(report: dict[str, Any]) -> str:
    """Returns the status with the number of checks of each status and the names of failed ones."""
    counts = [
        f"{sum(check['status'] == status for check in report['checks'])} {status}"
        for status in STATUSES
    ]
    failed = [check["name"] for check in report["checks"] if check["status"] == "fail"]
    names = f"; failed: {', '.join(failed)}" if failed else ""
    return f"{report['status']}: {', '.join(counts)}{names}; {report['seconds']:.0f} s"


def format_result(result: Result) -> str:
    """Formats a result as one line."""
    limit = "" if result.limit is None else f" (at most {result.limit:g})"
    measured = "" if result.value is None else f"{result.value:.3g} {result.unit}{limit}"
    text = "; ".join(filter(None, (measured, result.detail)))
    return f"{result.status:<8} {result.name:<42} {result.seconds:5.1f} s  {text}"


def list_checks(target: Target) -> list[str]:
    """Returns a line for each check: what it would do on a target, or why it would be skipped."""
    lines = []
    for check in all_checks():
        try:
            description, limit = check.describe(target), check.limit(target)
            bound = "no limit" if limit is None else f"at most {limit:g}"
            text = f"{description}; {check.unit}, {bound}"
        except Skipped as skipped:
            text = f"skipped: {skipped}"
        lines.append(f"{check.name:<42} {text}")
    return lines
