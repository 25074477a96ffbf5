"""The folders of --data before they are paid for: are they there, near, and as they are used?"""

import re
from collections.abc import Iterator

from tpu.launcher.check import Check, short
from tpu.launcher.context import Run
from tpu.launcher.gcloud import GcloudError
from tpu.launcher.regions import fits


def data_checks(run: Run, zones: tuple[str, ...]) -> Iterator[Check]:
    """One or two for each folder: what lies in it, and where its bucket is if it is another one."""
    for name, url in run.manifest.data.items():
        yield _folder(run, name, url)
        if not url.startswith(f"{run.bucket_url}/"):
            yield _region(run, name, url, zones)


def _folder(run: Run, name: str, url: str) -> Check:
    what = f"--data {name}"
    copy = f"gcloud storage rsync -r FOLDER {url}; or name another place: --data {name}=gs://..."
    try:
        listed = run.bucket.names(f"{url}/")
    except GcloudError as error:
        found = f"{url} cannot be listed: {short(error.said)}"
        if error.kind != "permission":
            return Check("FAIL", what, found, error.advice)
        fix = "roles/storage.objectViewer on its bucket, for you and the hosts' service account"
        return Check("FAIL", what, found, fix)
    if not listed:
        return Check("FAIL", what, f"there is nothing at {url}", copy)
    there = {each.removeprefix(f"{url}/").rstrip("/") for each in listed}
    # Of @data/NAME/train/x the arguments need train to be there; what lies below is not listed.
    used = re.compile(rf"@data/{re.escape(name)}/([A-Za-z0-9._-]+)(?=/|$)")
    wanted = {found for word in run.manifest.arguments for found in used.findall(word)}
    if missing := sorted(wanted - there):
        found = f"{url} has no {missing[0]}, which @data/{name}/{missing[0]} stands for"
        return Check("FAIL", what, found, copy)
    return Check("OK", what, url)


def _region(run: Run, name: str, url: str, zones: tuple[str, ...]) -> Check:
    what, bucket = f"--data {name}", "/".join(url.split("/")[:3])
    try:
        location = run.bucket.location(bucket)
    except GcloudError as error:
        return Check("WARN", what, f"{bucket} does not say where it is: {short(error.said)}")
    far = [zone for zone in zones if not fits(location, zone)]
    if far:
        fix = f"gcloud storage rsync -r {url} {run.bucket_url}/data/{name}, and name that"
        return Check("FAIL", what, f"{bucket} is in {location}, {far[0]} is not", fix)
    return Check("OK", what, f"{bucket} is in {location}")
