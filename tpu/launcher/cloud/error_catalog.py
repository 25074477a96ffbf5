"""Recognizes gcloud's error messages and says what to do; tpu/README.md has the same list.

The first pattern that matches counts. The launcher's rules depend on `kind`.
"""

import re
from dataclasses import dataclass
from typing import Literal

from tpu.launcher import TPUCTL

ErrorKind = Literal[
    "absent", "exists", "changed", "stockout", "quota", "permission", "auth", "api", "flag",
    "offer", "ssh", "network", "other",
]  # fmt: skip


@dataclass(frozen=True)
class ErrorPattern:
    """Recognizes one kind of error by a regular expression on its message."""

    kind: ErrorKind
    pattern: str
    advice: str


ERROR_CATALOG = (
    ErrorPattern(
        "changed",
        r"HTTPError 412|pre-?conditions? you specified did not hold",
        f"another process wrote the same object first; look with `{TPUCTL} status`",
    ),
    ErrorPattern(
        "auth",
        r"You do not currently have an active account|Reauthentication (required|failed)"
        r"|There was a problem refreshing your current auth tokens",
        "log in: gcloud auth login",
    ),
    ErrorPattern(
        "api",
        r"SERVICE_DISABLED|has not been used in project .* before or it is disabled",
        "enable the API: gcloud services enable tpu.googleapis.com compute.googleapis.com",
    ),
    ErrorPattern(
        "quota",
        r"RESOURCE_EXHAUSTED.*[Qq]uota|Quota .* (exhausted|exceeded)|QUOTA_EXCEEDED"
        r"|[Qq]uota limit .* has been exceeded",
        "request quota in the console (IAM & Admin > Quotas, filter: TPU), or use a zone or a "
        f"slice for which you have quota; `{TPUCTL} doctor` shows what you have",
    ),
    ErrorPattern(
        "stockout",
        r"There is no more capacity in the zone|ZONE_RESOURCE_POOL_EXHAUSTED"
        r"|Insufficient reserved capacity|does not have enough resources available",
        "the zone has no free capacity, whatever your quota: pass more zones (--zones), wait, or "
        "use another generation",
    ),
    ErrorPattern(
        "offer",
        r"not found in zone|is not available in zone|Accelerator type .* (is not|not "
        r"found)|user agent is not allowed to use the machine type",
        f"the zone does not offer this slice; `{TPUCTL} doctor` shows which zones do",
    ),
    ErrorPattern(
        "permission",
        r"PERMISSION_DENIED|HTTPError 403|does not have .* access|"
        r"Required '.*' permission|does not have permission",
        "your account or the service account lacks a role; see the table in tpu/README.md under "
        "Permissions",
    ),
    ErrorPattern("exists", r"ALREADY_EXISTS|already exists", "it already exists; nothing to do"),
    ErrorPattern(
        "absent",
        r"NOT_FOUND|was not found|not found: 404|HTTPError 404|matched no objects"
        r"|Did not find existing container",
        "it does not exist; check the name, the zone and the project",
    ),
    ErrorPattern(
        "flag",
        r"unrecognized arguments|Invalid choice|argument --[a-z-]+: ",
        "this gcloud is too old for the flag: gcloud components update",
    ),
    ErrorPattern(
        "ssh",
        r"exited with return code \[255\]|\[/usr/bin/ssh\]|Connection (refused|timed out)"
        r"|port 22|4003: 'failed to connect to backend'",
        "ssh cannot connect: allow tcp:22 in the firewall, or use --iap; processes on the hosts "
        "keep running",
    ),
    ErrorPattern(
        "network",
        r"Unable to find the server|Temporary failure in name resolution|timed out"
        r"|Network is unreachable|HTTPError 5\d\d|UNAVAILABLE|INTERNAL|Connection reset"
        r"|too many requests|HTTPError 429",
        "a temporary problem of the network or of Google Cloud; it is safe to run the same "
        "command again",
    ),
)
_UNKNOWN_ERROR = ErrorPattern(
    "other", "", "see gcloud's message above; it is safe to run the same command again"
)


def classify_error(text: str) -> ErrorPattern:
    """Returns the first pattern of the catalog that matches the text."""
    for entry in ERROR_CATALOG:
        if re.search(entry.pattern, text, re.DOTALL):
            return entry
    return _UNKNOWN_ERROR
