"""Everything that can be known before paying: one line each, with the command that mends it.

Reads only. Quotas are read from the Cloud Quotas API; which pool a slice draws on is told by the
pools' names, so a pool that is not recognised is a warning and no failure.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from bert_jax.errors import UserError
from tpu.launcher.bucket import Bucket
from tpu.launcher.check import Check, short, usable
from tpu.launcher.context import Run
from tpu.launcher.data import data_checks
from tpu.launcher.gce import region_of
from tpu.launcher.gcloud import Runner
from tpu.launcher.regions import fits

# Generation -> how its pools are called; the first group of API "tpu-api", the second "gce".
POOLS = {
    "v2": r"TPU-?V2",
    "v3": r"TPU-?V3",
    "v4": r"TPU-?V4",
    "v5e": r"TPU-?V5s.*Litepod|TPU-LITE-PODSLICE-V5|TPU-?V5-?e",
    "v5p": r"TPU-?V5-?p",
    "v6e": r"TPU-?V6-?e",
    "tpu7x": r"TPU-?7x|TPUS-PER-TPU-FAMILY",
}
APIS = {"tpu-api": ("tpu.googleapis.com", "storage.googleapis.com")}
APIS["gce"] = ("compute.googleapis.com", "storage.googleapis.com")


def examine(run: Run, named: bool) -> Iterator[Check]:
    """All checks of a run that is about to begin; `named`: its zones were, by the user."""
    manifest, runner = run.manifest, run.runner
    yield account(runner)
    yield from apis(run)
    yield bucket_region(run.bucket, run.bucket_url, manifest.zones)
    yield from data_checks(run, manifest.zones)
    zones = offers(run, named)
    yield from zones
    yield from quotas(run, usable(manifest.zones, zones))
    if manifest.backend == "gce":
        yield bulk_mode(runner)
    if manifest.service_account:
        yield service_account(run)
    for name, secret in manifest.secrets.items():
        yield secret_there(runner, name, secret)


def account(runner: Runner) -> Check:
    """Someone is logged in."""
    answer = runner.run(
        ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"]
    )
    if answer.ok and answer.out.strip():
        return Check("OK", "account", answer.out.strip())
    return Check("FAIL", "account", "nobody is logged in", "gcloud auth login")


def apis(run: Run) -> Iterator[Check]:
    """The APIs that will be spoken to are switched on."""
    project = run.manifest.project
    wanted = list(APIS[run.manifest.backend])
    wanted += ["secretmanager.googleapis.com"] if run.manifest.secrets else []
    words = [f"--project={project}", "--format=value(config.name)"]
    answer = run.runner.run(["gcloud", "services", "list", "--enabled", *words])
    if not answer.ok:
        yield Check("WARN", "APIs", f"cannot be listed: {short(answer.err)}")
        return
    for api in wanted:
        if api in answer.out.split():
            yield Check("OK", "API", api)
        else:
            fix = f"gcloud services enable {api} --project={project}"
            yield Check("FAIL", "API", f"{api} is switched off in {project}", fix)


def bucket_region(bucket: Bucket, url: str, zones: tuple[str, ...]) -> Check:
    """The bucket is there, and near all zones."""
    try:
        location = bucket.location(url)
    except UserError as error:
        fix = f"gcloud storage buckets create {url} --location={region_of(zones[0])}"
        return Check("FAIL", "bucket", str(error).splitlines()[0], fix)
    far = [zone for zone in zones if not fits(location, zone)]
    if far:
        fix = f"take zones in {location}, or a bucket in {region_of(far[0])}"
        return Check("FAIL", "bucket", f"{url} is in {location}, {far[0]} is not", fix)
    return Check("OK", "bucket", f"{url} is in {location}")


def offers(run: Run, named: bool) -> list[Check]:
    """All zones have such slices; one that nobody named is left out if it has not, but others."""
    checks = [offered(run, zone) for zone in run.manifest.zones]
    if named or all(check.level == "FAIL" for check in checks):
        return checks
    return [
        replace(check, level="WARN", found=f"{check.found}; it is left out", leaves_out=zone)
        if check.level == "FAIL"
        else check
        for zone, check in zip(run.manifest.zones, checks, strict=True)
    ]


def offered(run: Run, zone: str) -> Check:
    """The zone has such slices at all."""
    kind, project = run.manifest.kind, f"--project={run.manifest.project}"
    if run.manifest.backend == "tpu-api":
        wanted = kind.accelerator_type or ""
        argv = ["gcloud", "compute", "tpus", "accelerator-types", "list", f"--zone={zone}"]
        argv += [project, "--format=value(type)"]
    else:
        wanted = kind.generation.machine_type or ""
        argv = ["gcloud", "compute", "machine-types", "list", f"--zones={zone}", project]
        argv += [f"--filter=name={wanted}", "--format=value(name)"]
    answer = run.runner.run(argv)
    if not answer.ok:
        found = f"{zone} cannot be asked: {short(answer.err)}"
        # What cannot be asked now could not be looked at later.
        passing = answer.kind == "network"
        return Check("WARN" if passing else "FAIL", "zone", found, "other zones: --zones")
    if wanted in {name.rsplit("/", 1)[-1] for name in answer.out.split()}:
        return Check("OK", "zone", f"{zone} has {wanted}")
    return Check("FAIL", "zone", f"{zone} does not offer {wanted}", "other zones: --zones")


def quotas(run: Run, zones: tuple[str, ...]) -> Iterator[Check]:
    """Each zone's pool of this generation and capacity is large enough."""
    manifest = run.manifest
    kind = manifest.kind
    service = "tpu" if manifest.backend == "tpu-api" else "compute"
    argv = ["gcloud", "beta", "quotas", "info", "list", f"--service={service}.googleapis.com"]
    answer = run.runner.run([*argv, f"--project={manifest.project}", "--format=json"])
    try:
        rows = json.loads(answer.out) if answer.ok else None
    except ValueError:
        rows = None
    if not isinstance(rows, list):
        yield Check("WARN", "quota", f"cannot be read: {short(answer.err)}")
        return
    spot = manifest.capacity == "spot"
    pools = [
        row
        for row in rows
        if re.search(POOLS[kind.generation.name], row.get("quotaId", ""), re.IGNORECASE)
        and bool(re.search("preemptible", row.get("quotaId", ""), re.IGNORECASE)) == spot
    ]
    for zone in zones:
        limits = [found for row in pools for found in [_limit(row, zone)] if found is not None]
        what = f"{manifest.capacity} {kind.generation.name} in {zone}"
        if not limits:
            yield Check("WARN", "quota", f"no pool for {what} is recognised")
        elif max(limits) < kind.chips:
            fix = "console: IAM & Admin > Quotas, filter TPU, ask for more; or other --zones"
            found = f"{what}: {max(limits)}, and {kind.name} needs {kind.chips}"
            yield Check("FAIL", "quota", found, fix)
        else:
            yield Check("OK", "quota", f"{what}: {max(limits)}")


def bulk_mode(runner: Runner) -> Check:
    """gcloud knows the flag that makes a group a slice."""
    argv = ["gcloud", "compute", "instance-groups", "managed", "create", "--help"]
    answer = runner.run(argv)
    if "--target-size-policy-mode" in answer.out:
        return Check("OK", "gcloud", "knows --target-size-policy-mode")
    return Check("FAIL", "gcloud", "does not know --target-size-policy-mode",
                 "gcloud components update")  # fmt: skip


def service_account(run: Run) -> Check:
    """The hosts' account exists."""
    name, project = run.manifest.service_account, run.manifest.project
    argv = ["gcloud", "iam", "service-accounts", "describe", str(name), f"--project={project}"]
    answer = run.runner.run([*argv, "--format=value(email)"])
    if answer.ok:
        return Check("OK", "service account", str(name))
    fix = "gcloud iam service-accounts create bert-tpu; roles are in tpu/README.md"
    return Check("FAIL", "service account", short(answer.err), fix)


def secret_there(runner: Runner, variable: str, secret: str) -> Check:
    """A secret exists; its value is not asked for."""
    _, project, _, name, _, version = secret.split("/")
    argv = ["gcloud", "secrets", "versions", "describe", version, f"--secret={name}"]
    answer = runner.run([*argv, f"--project={project}", "--format=value(state)"])
    if answer.ok and answer.out.strip().lower() == "enabled":
        return Check("OK", "secret", f"{variable} from {secret}")
    fix = f"gcloud secrets create {name} --data-file=- --project={project}"
    found = f"{variable}: {short(answer.err) or answer.out.strip()}"
    return Check("FAIL", "secret", found, fix)


def _limit(row: dict, zone: str) -> int | None:
    """The limit that a pool has for a zone; the most particular entry counts."""
    best: tuple[int, int] | None = None
    for entry in row.get("dimensionsInfos", []):
        dimensions = entry.get("dimensions", {})
        if dimensions.get("zone", zone) != zone:
            continue
        if dimensions.get("region", region_of(zone)) != region_of(zone):
            continue
        if "zone" not in dimensions and "region" not in dimensions:
            places = entry.get("applicableLocations", [zone])
            if zone not in places and region_of(zone) not in places and "global" not in places:
                continue
        value = entry.get("details", {}).get("value")
        if value is not None:
            number = int(value)
            rank = (len(dimensions), 2**40 if number < 0 else number)
            best = rank if best is None else max(best, rank)
    return None if best is None else best[1]
