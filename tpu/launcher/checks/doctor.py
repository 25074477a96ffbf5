"""Checks everything that can be checked before a slice is rented; read-only.

Each check is one line, with a command that fixes it. Quotas come from the Cloud Quotas API. The
names of quota pools are not documented, so a pool that is not recognized is only a warning.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bert_jax.errors import UserError
from tpu.launcher.checks.check_result import CheckResult, truncate_message, usable_zones
from tpu.launcher.checks.data_checks import data_checks
from tpu.launcher.cloud.bucket import Bucket
from tpu.launcher.cloud.gce import region_of
from tpu.launcher.cloud.gcloud import CommandRunner
from tpu.launcher.cloud.regions import is_same_region
from tpu.launcher.runs.run_context import RunContext

# Generation -> pattern of the names of its quota pools.
QUOTA_POOLS = {
    "v2": r"TPU-?V2",
    "v3": r"TPU-?V3",
    "v4": r"TPU-?V4",
    "v5e": r"TPU-?V5s.*Litepod|TPU-LITE-PODSLICE-V5|TPU-?V5-?e",
    "v5p": r"TPU-?V5-?p",
    "v6e": r"TPU-?V6-?e",
    "tpu7x": r"TPU-?7x|TPUS-PER-TPU-FAMILY",
}
REQUIRED_APIS = {"tpu-api": ("tpu.googleapis.com", "storage.googleapis.com")}
REQUIRED_APIS["gce"] = ("compute.googleapis.com", "storage.googleapis.com")


def run_checks(run: RunContext, zones_given: bool) -> Iterator[CheckResult]:
    """Runs all checks for a new run; `zones_given`: the user has passed --zones."""
    manifest, runner = run.manifest, run.runner
    yield check_account(runner)
    yield from check_apis(run)
    yield check_bucket_region(run.bucket, run.bucket_url, manifest.zones)
    yield from data_checks(run, manifest.zones)
    zones = check_zones(run, zones_given)
    yield from zones
    yield from check_quotas(run, usable_zones(manifest.zones, zones))
    if manifest.backend == "gce":
        yield check_bulk_mode(runner)
    if manifest.service_account:
        yield check_service_account(run)
    for name, secret in manifest.secrets.items():
        yield check_secret(runner, name, secret)


def check_account(runner: CommandRunner) -> CheckResult:
    """Checks that gcloud is logged in."""
    result = runner.run(
        ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"]
    )
    if result.ok and result.stdout.strip():
        return CheckResult("OK", "account", result.stdout.strip())
    return CheckResult("FAIL", "account", "gcloud is not logged in", "gcloud auth login")


def check_apis(run: RunContext) -> Iterator[CheckResult]:
    """Checks that the required APIs are enabled."""
    project = run.manifest.project
    required = list(REQUIRED_APIS[run.manifest.backend])
    required += ["secretmanager.googleapis.com"] if run.manifest.secrets else []
    flags = [f"--project={project}", "--format=value(config.name)"]
    result = run.runner.run(["gcloud", "services", "list", "--enabled", *flags])
    if not result.ok:
        yield CheckResult("WARN", "APIs", f"cannot be listed: {truncate_message(result.stderr)}")
        return
    for api in required:
        if api in result.stdout.split():
            yield CheckResult("OK", "API", api)
        else:
            fix = f"gcloud services enable {api} --project={project}"
            yield CheckResult("FAIL", "API", f"{api} is not enabled in {project}", fix)


def check_bucket_region(bucket: Bucket, url: str, zones: tuple[str, ...]) -> CheckResult:
    """Checks that the bucket exists and is close to all zones."""
    try:
        location = bucket.location(url)
    except UserError as error:
        fix = f"gcloud storage buckets create {url} --location={region_of(zones[0])}"
        return CheckResult("FAIL", "bucket", str(error).splitlines()[0], fix)
    distant_zones = [zone for zone in zones if not is_same_region(location, zone)]
    if distant_zones:
        fix = f"use zones in {location}, or a bucket in {region_of(distant_zones[0])}"
        return CheckResult(
            "FAIL", "bucket", f"{url} is in {location}, zone {distant_zones[0]} is not", fix
        )
    return CheckResult("OK", "bucket", f"{url} is in {location}")


def check_zones(run: RunContext, zones_given: bool) -> list[CheckResult]:
    """Checks that all zones offer the slice; skips zones without it that the user has not named."""
    checks = [check_zone(run, zone) for zone in run.manifest.zones]
    if zones_given or all(check.level == "FAIL" for check in checks):
        return checks
    return [
        replace(check, level="WARN", found=f"{check.found}; it is not used", excluded_zone=zone)
        if check.level == "FAIL"
        else check
        for zone, check in zip(run.manifest.zones, checks, strict=True)
    ]


def check_zone(run: RunContext, zone: str) -> CheckResult:
    """Checks that a zone offers the slice."""
    slice_type, project = run.manifest.slice_type, f"--project={run.manifest.project}"
    if run.manifest.backend == "tpu-api":
        required = slice_type.accelerator_type or ""
        argv = ["gcloud", "compute", "tpus", "accelerator-types", "list", f"--zone={zone}"]
        argv += [project, "--format=value(type)"]
    else:
        required = slice_type.generation.machine_type or ""
        argv = ["gcloud", "compute", "machine-types", "list", f"--zones={zone}", project]
        argv += [f"--filter=name={required}", "--format=value(name)"]
    result = run.runner.run(argv)
    if not result.ok:
        problem_text = f"{zone} cannot be read: {truncate_message(result.stderr)}"
        # The restart loop must be able to read every zone, so only a network error is a warning.
        transient = result.error_kind == "network"
        return CheckResult(
            "WARN" if transient else "FAIL", "zone", problem_text, "other zones: --zones"
        )
    if required in {name.rsplit("/", 1)[-1] for name in result.stdout.split()}:
        return CheckResult("OK", "zone", f"{zone} has {required}")
    return CheckResult("FAIL", "zone", f"{zone} does not offer {required}", "other zones: --zones")


def check_quotas(run: RunContext, zones: tuple[str, ...]) -> Iterator[CheckResult]:
    """Checks that each zone has enough quota for this generation and capacity."""
    manifest = run.manifest
    slice_type = manifest.slice_type
    service = "tpu" if manifest.backend == "tpu-api" else "compute"
    argv = ["gcloud", "beta", "quotas", "info", "list", f"--service={service}.googleapis.com"]
    result = run.runner.run([*argv, f"--project={manifest.project}", "--format=json"])
    try:
        quota_infos = json.loads(result.stdout) if result.ok else None
    except ValueError:
        quota_infos = None
    if not isinstance(quota_infos, list):
        yield CheckResult("WARN", "quota", f"cannot be read: {truncate_message(result.stderr)}")
        return
    spot = manifest.capacity == "spot"
    pools = [
        quota_info
        for quota_info in quota_infos
        if re.search(
            QUOTA_POOLS[slice_type.generation.name], quota_info.get("quotaId", ""), re.IGNORECASE
        )
        and bool(re.search("preemptible", quota_info.get("quotaId", ""), re.IGNORECASE)) == spot
    ]
    for zone in zones:
        limits = [
            found
            for quota_info in pools
            for found in [_quota_limit(quota_info, zone)]
            if found is not None
        ]
        pool_name = f"{manifest.capacity} {slice_type.generation.name} in {zone}"
        if not limits:
            yield CheckResult("WARN", "quota", f"no pool for {pool_name} is recognized")
        elif max(limits) < slice_type.chips:
            fix = "console: IAM & Admin > Quotas, filter TPU, request more; or use other --zones"
            found = f"{pool_name}: {max(limits)}, and {slice_type.name} needs {slice_type.chips}"
            yield CheckResult("FAIL", "quota", found, fix)
        else:
            yield CheckResult("OK", "quota", f"{pool_name}: {max(limits)}")


def check_bulk_mode(runner: CommandRunner) -> CheckResult:
    """Checks that gcloud is new enough for the flag that makes an instance group a slice."""
    argv = ["gcloud", "compute", "instance-groups", "managed", "create", "--help"]
    result = runner.run(argv)
    if "--target-size-policy-mode" in result.stdout:
        return CheckResult("OK", "gcloud", "supports --target-size-policy-mode")
    return CheckResult("FAIL", "gcloud", "does not support --target-size-policy-mode",
                 "gcloud components update")  # fmt: skip


def check_service_account(run: RunContext) -> CheckResult:
    """Checks that the service account of the hosts exists."""
    name, project = run.manifest.service_account, run.manifest.project
    argv = ["gcloud", "iam", "service-accounts", "describe", str(name), f"--project={project}"]
    result = run.runner.run([*argv, "--format=value(email)"])
    if result.ok:
        return CheckResult("OK", "service account", str(name))
    fix = "gcloud iam service-accounts create bert-tpu; roles are in tpu/README.md"
    return CheckResult("FAIL", "service account", truncate_message(result.stderr), fix)


def check_secret(runner: CommandRunner, variable: str, secret: str) -> CheckResult:
    """Checks that a secret exists, without reading its value."""
    _, project, _, name, _, version = secret.split("/")
    argv = ["gcloud", "secrets", "versions", "describe", version, f"--secret={name}"]
    result = runner.run([*argv, f"--project={project}", "--format=value(state)"])
    if result.ok and result.stdout.strip().lower() == "enabled":
        return CheckResult("OK", "secret", f"{variable} from {secret}")
    fix = f"gcloud secrets create {name} --data-file=- --project={project}"
    found = f"{variable}: {truncate_message(result.stderr) or result.stdout.strip()}"
    return CheckResult("FAIL", "secret", found, fix)


def _quota_limit(quota_info: dict[str, Any], zone: str) -> int | None:
    """Returns a pool's limit for a zone; the most specific entry counts."""
    best: tuple[int, int] | None = None
    for entry in quota_info.get("dimensionsInfos", []):
        dimensions = entry.get("dimensions", {})
        if dimensions.get("zone", zone) != zone:
            continue
        if dimensions.get("region", region_of(zone)) != region_of(zone):
            continue
        if "zone" not in dimensions and "region" not in dimensions:
            locations = entry.get("applicableLocations", [zone])
            if (
                zone not in locations
                and region_of(zone) not in locations
                and "global" not in locations
            ):
                continue
        value = entry.get("details", {}).get("value")
        if value is not None:
            number = int(value)
            rank = (len(dimensions), 2**40 if number < 0 else number)
            best = rank if best is None else max(best, rank)
    return None if best is None else best[1]
