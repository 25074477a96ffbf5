"""Reads from $FAKE_CLOUD/script.json which failures to simulate; without the file there are none.

{"buckets": {"b": "US-CENTRAL1"},   locations; others are in "US-CENTRAL1" and are created when
                                    written; null: there is no such bucket
 "deny_storage": [["write", "gs://b/x"]],   403 for "read" or "write" below a prefix
 "fail": [{"match": "queued-resources create .*us-east5", "times": 2, "code": 1,
           "text": "There is no more capacity in the zone ..."}],
                                    commands that fail, by a regex over their words; times:
                                    how often (default: always)
 "slices": {"bert-x-*-1": {...}, "*": {...}},   by name and number of the request for that name
                                    (1, 2, ...), with wildcards, the first that fits:
     "ready_after": 5               seconds until its hosts can be used (default 0)
     "queue": "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED": where a queued resource stays
     "error": "Quota ..."           why it is FAILED
     "health": "UNHEALTHY_TENSORFLOW"
     "hosts": 3                     how many hosts have an address
     "preempt_after": 20            seconds from ready to the preemption
     "preempt_when": "gs://b/runs/x/run/checkpoints/5"   or when this object or folder exists
     "notice": true                 notify the hosts "notice_seconds" (3) before
     "delete_seconds": 1            how long a deletion takes (default 0)
 "ssh_drop": [{"match": "start.sh", "times": 11, "host": 1, "ran": true}],
                                    the connection breaks (255) after the command ran, or
                                    before it did; gcloud then runs it again, ten times
 "project": "test-project", "secrets": {"projects/p/secrets/s": "value"}}
"""

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

from tests.helpers.tpu.fake_gcloud.parsing import CloudError
from tests.helpers.tpu.fake_gcloud.state import State


class Script:
    """Holds the script for one call."""

    def __init__(self, root: Path, state: State):
        file = root / "script.json"
        self.data: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        self._state = state

    def bucket_location(self, bucket: str) -> str | None:
        """Returns the location of a bucket; None if it does not exist."""
        return self.data.get("buckets", {}).get(bucket, "US-CENTRAL1")

    def deny_storage(self, way: str, url: str) -> None:
        """Raises a permission error if the script has one."""
        for denied, prefix in self.data.get("deny_storage", []):
            if denied == way and url.startswith(prefix):
                right = {"read": "get", "write": "create"}[way]
                raise CloudError(
                    f"HTTPError 403: user@example.com does not have storage.objects.{right} access "
                    "to the Google Cloud Storage object. Permission "
                    f"'storage.objects.{right}' denied on resource (or it may not exist)."
                )

    def fail(self, words: list[str]) -> None:
        """Raises the error that the script has for this command."""
        line = " ".join(words)
        for number, row in enumerate(self.data.get("fail", [])):
            if re.search(row["match"], line) and self._state.spend(f"fail {number}", row):
                raise CloudError(row["text"], row.get("code", 1))

    def drops(self, line: str, host: int) -> dict[str, Any] | None:
        """Returns the entry that breaks this connection, if there is one."""
        for number, row in enumerate(self.data.get("ssh_drop", [])):
            fits = row.get("host", host) == host and re.search(row["match"], line)
            if fits and self._state.spend(f"drop {number}", row):
                return row
        return None

    def slice(self, name: str) -> dict[str, Any]:
        """Returns the entry for the slice of that name."""
        slices = self.data.get("slices", {}).items()
        return next((row for key, row in slices if fnmatch.fnmatchcase(name, key)), {})
