"""Checks the folders of --data: do they exist, in the right region, with the expected files?"""

import re
from collections.abc import Iterator

from tpu.launcher.checks.check_result import CheckResult, truncate_message
from tpu.launcher.cloud.gcloud import GcloudError
from tpu.launcher.cloud.regions import is_same_region
from tpu.launcher.runs.run_context import RunContext


def data_checks(run: RunContext, zones: tuple[str, ...]) -> Iterator[CheckResult]:
    """Checks each folder's content, and its region if it is in another bucket than the run."""
    for name, url in run.manifest.data.items():
        yield _check_folder(run, name, url)
        if not url.startswith(f"{run.bucket_url}/"):
            yield _check_region(run, name, url, zones)


def _check_folder(run: RunContext, name: str, url: str) -> CheckResult:
    check_name = f"--data {name}"
    upload_fix = (
        f"gcloud storage rsync -r FOLDER {url}; or pass another URL: --data {name}=gs://..."
    )
    try:
        listed = run.bucket.list_names(f"{url}/")
    except GcloudError as error:
        found = f"{url} cannot be listed: {truncate_message(error.message)}"
        if error.error_kind != "permission":
            return CheckResult("FAIL", check_name, found, error.advice)
        fix = "roles/storage.objectViewer on its bucket, for you and the hosts' service account"
        return CheckResult("FAIL", check_name, found, fix)
    if not listed:
        return CheckResult("FAIL", check_name, f"there is nothing at {url}", upload_fix)
    existing = {each.removeprefix(f"{url}/").rstrip("/") for each in listed}
    # For @data/NAME/train/x only `train` is checked: the listing has one level.
    reference_pattern = re.compile(rf"@data/{re.escape(name)}/([A-Za-z0-9._-]+)(?=/|$)")
    referenced = {
        found
        for argument in run.manifest.arguments
        for found in reference_pattern.findall(argument)
    }
    if missing := sorted(referenced - existing):
        found = f"{url} has no {missing[0]}, which @data/{name}/{missing[0]} refers to"
        return CheckResult("FAIL", check_name, found, upload_fix)
    return CheckResult("OK", check_name, url)


def _check_region(run: RunContext, name: str, url: str, zones: tuple[str, ...]) -> CheckResult:
    check_name, bucket = f"--data {name}", "/".join(url.split("/")[:3])
    try:
        location = run.bucket.location(bucket)
    except GcloudError as error:
        return CheckResult(
            "WARN",
            check_name,
            f"{bucket} has no readable location: {truncate_message(error.message)}",
        )
    distant_zones = [zone for zone in zones if not is_same_region(location, zone)]
    if distant_zones:
        fix = f"gcloud storage rsync -r {url} {run.bucket_url}/data/{name} and pass that URL"
        return CheckResult(
            "FAIL", check_name, f"{bucket} is in {location}, zone {distant_zones[0]} is not", fix
        )
    return CheckResult("OK", check_name, f"{bucket} is in {location}")
