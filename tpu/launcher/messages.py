"""What gcloud's errors mean, and what to do about each; tpu/README.md has the same list.

The first row that matches counts. `kind` is what the launcher's rules go by.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "absent", "exists", "changed", "stockout", "quota", "permission", "auth", "api", "flag",
    "offer", "ssh", "network", "other",
]  # fmt: skip


@dataclass(frozen=True)
class Known:
    """An error that is recognised by its text."""

    kind: Kind
    pattern: str
    advice: str


CATALOGUE = (
    Known("changed", r"HTTPError 412|pre-?conditions? you specified did not hold",
          "someone else wrote the same object first; look with `tpu/pod status`"),
    Known("auth", r"You do not currently have an active account|Reauthentication (required|failed)"
          r"|There was a problem refreshing your current auth tokens",
          "log in: gcloud auth login"),
    Known("api", r"SERVICE_DISABLED|has not been used in project .* before or it is disabled",
          "switch the API on: gcloud services enable tpu.googleapis.com compute.googleapis.com"),
    Known("quota", r"RESOURCE_EXHAUSTED.*[Qq]uota|Quota .* (exhausted|exceeded)|QUOTA_EXCEEDED"
          r"|[Qq]uota limit .* has been exceeded",
          "ask for quota in the console (IAM & Admin > Quotas, filter: TPU), or use a zone or a "
          "slice for which you have it; `tpu/pod doctor` shows what you have"),
    Known("stockout", r"There is no more capacity in the zone|ZONE_RESOURCE_POOL_EXHAUSTED"
          r"|Insufficient reserved capacity|does not have enough resources available",
          "the zone is sold out, whatever your quota: give more zones (--zones), wait, or take "
          "another generation"),
    Known("offer", r"not found in zone|is not available in zone|Accelerator type .* (is not|not "
          r"found)|user agent is not allowed to use the machine type",
          "the zone does not offer this slice; `tpu/pod doctor` shows which zones do"),
    Known("permission", r"PERMISSION_DENIED|HTTPError 403|does not have .* access|"
          r"Required '.*' permission|does not have permission",
          "your account or the service account lacks a role; the table is in tpu/README.md under "
          "Permissions"),
    Known("exists", r"ALREADY_EXISTS|already exists", "it is there already, which is fine"),
    Known("absent", r"NOT_FOUND|was not found|not found: 404|HTTPError 404|matched no objects"
          r"|Did not find existing container",
          "it is not there; look at the name, the zone and the project"),
    Known("flag", r"unrecognized arguments|Invalid choice|argument --[a-z-]+: ",
          "this gcloud does not know the flag: gcloud components update"),
    Known("ssh", r"exited with return code \[255\]|\[/usr/bin/ssh\]|Connection (refused|timed out)"
          r"|port 22|4003: 'failed to connect to backend'",
          "ssh does not get through: allow tcp:22 in the firewall, or use --iap; what runs on the "
          "hosts is not touched by this"),
    Known("network", r"Unable to find the server|Temporary failure in name resolution|timed out"
          r"|Network is unreachable|HTTPError 5\d\d|UNAVAILABLE|INTERNAL|Connection reset"
          r"|too many requests|HTTPError 429",
          "the network or Google's side had a bad moment; the same command again is safe"),
)  # fmt: skip
_OTHER = Known("other", "", "the message above is gcloud's own; the same command again is safe")


def recognise(text: str) -> Known:
    """The first row of the catalogue that the text matches."""
    for row in CATALOGUE:
        if re.search(row.pattern, text, re.DOTALL):
            return row
    return _OTHER
