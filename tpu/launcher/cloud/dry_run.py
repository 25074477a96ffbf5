"""Simulates the results of gcloud commands for a dry run in which everything succeeds.

It only looks at the command lines and remembers what was run before: a slice is ready as soon as
its creation was requested, and a run is done as soon as its trainers were started.
"""

import json
from collections.abc import Sequence
from typing import Any

from bert_jax.parallel.tpu_slices import Slice
from tpu import bucket_layout
from tpu.launcher.cloud.backend import RUN_LABEL
from tpu.launcher.cloud.gce import region_of
from tpu.launcher.cloud.gcloud import CommandResult

SUCCESS, NOT_FOUND = CommandResult(0, "", ""), CommandResult(1, "", "NOT_FOUND")


class DryRunCloud:
    """Returns results for the commands of one run.

    Args:
      slice_exists: its first slice is ready from the start, for commands that need a slice.
    """

    def __init__(self, slice_type: Slice, run_url: str, zone: str, slice_exists: bool):
        self._slice_type, self._run_url, self._zone = slice_type, run_url, zone
        self._slice_exists, self._started = slice_exists, False
        self._generations: dict[str, str] = {}

    def respond(self, argv: Sequence[str]) -> CommandResult:
        """Returns the simulated result of a command."""
        line = " ".join(argv)
        if argv[:2] == ["gcloud", "storage"]:
            return self._respond_storage(list(argv))
        if " ssh " in line:
            self._started |= "agent.py start" in line
        elif " create " in line and "--help" not in line:
            self._slice_exists = True
        elif " delete " in line:
            self._slice_exists = False
        elif " list " in line and "--format=json" in line:
            resources = (
                self._list_resources(argv)
                if self._slice_exists and f"={self._zone}" in line
                else []
            )
            return CommandResult(0, json.dumps(resources), "")
        return SUCCESS

    def _respond_storage(self, argv: list[str]) -> CommandResult:
        verb, url = argv[2], argv[-1] if argv[2] != "objects" else argv[4]
        if verb == "buckets":
            return CommandResult(0, region_of(self._zone), "")
        if verb == "ls" and url == f"{self._run_url}/":
            return CommandResult(0, f"{url}DONE.json\n", "") if self._started else SUCCESS
        if verb == "objects":
            return CommandResult(0, self._generations.get(url, "0"), "")
        if verb == "cp":
            self._generations[argv[4]] = "1"
            return SUCCESS
        return NOT_FOUND if verb in ("cat", "ls") else SUCCESS

    def _list_resources(self, argv: Sequence[str]) -> list[dict[str, Any]]:
        name = f"{bucket_layout.slice_name_prefix(self._run_url)}-0"
        labels = {RUN_LABEL: self._run_url.rsplit("/", 1)[1]}
        addresses = [f"10.0.0.{2 + i}" for i in range(self._slice_type.hosts)]
        if "queued-resources" in argv:
            return [{"name": name, "state": {"state": "ACTIVE"}}]
        if "tpu-vm" in argv:
            endpoints = [{"ipAddress": each} for each in addresses]
            return [
                {"name": name, "labels": labels, "state": "READY", "networkEndpoints": endpoints}
            ]
        if "instance-groups" in argv:
            return [{"name": name}]
        return [
            {
                "name": f"{name}-{suffix}",
                "labels": labels,
                "status": "RUNNING",
                "networkInterfaces": [{"networkIP": address}],
            }
            for suffix, address in zip(("aaaa", "bbbb", "cccc", "dddd"), addresses, strict=False)
        ]
