"""Rents the slice of a run: a queued resource of the Cloud TPU API, which requests one TPU node.

Uses only flags of `gcloud compute tpus` that need no alpha or beta release, checked with Google
Cloud SDK 528; the exception is `--iap`, which needs alpha. A run has one slice name, so it never
has two slices in its zone: creating a second one fails.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from tpu.gcloud import Gcloud
from tpu.job import Job, Rental

SliceState = Literal["absent", "waiting", "starting", "ready", "lost", "deleting"]

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_QUEUED_STATES: dict[str, SliceState] = {
    "CREATING": "waiting",
    "ACCEPTED": "waiting",
    "WAITING_FOR_RESOURCES": "waiting",
    "PROVISIONING": "starting",
    "DELETING": "deleting",
    "SUSPENDING": "lost",
    # After a spot preemption the request is SUSPENDED, still holds quota and blocks its name
    # until it is deleted with --force.
    "SUSPENDED": "lost",
    "FAILED": "lost",
}
"""The state of a queued resource other than ACTIVE, whose node decides."""
_NODE_STATES: dict[str, SliceState] = {
    "DELETING": "deleting",
    "STOPPING": "lost",
    "STOPPED": "lost",
    "PREEMPTED": "lost",
    "TERMINATED": "lost",
}
"""The state of a node other than READY; all others, such as REPAIRING, may become ready again."""


@dataclass(frozen=True, kw_only=True)
class SliceStatus:
    """Describes the slice of a run.

    Attributes:
      detail: the states and the error in Google's words.
      addresses: the hosts' internal addresses in the order of their numbers, once it is ready.
    """

    state: SliceState
    detail: str
    addresses: tuple[str, ...] = ()


class QueuedResource:
    """Creates, observes and deletes the slice of a run, and runs commands on its hosts."""

    def __init__(self, gcloud: Gcloud, job: Job, rental: Rental):
        self._gcloud, self._job, self._rental = gcloud, job, rental
        self._location = (f"--project={rental.project}", f"--zone={rental.zone}")

    def create(self) -> None:
        """Requests the slice; the request expires after `wait_hours`.

        Raises:
          GcloudError: it was refused.
        """
        rental, slice_type, name = self._rental, self._job.slice_type, self._job.slice_name
        flags = [
            f"--node-id={name}",
            *self._location,
            # Not --type, which in the released gcloud knows v2 to v4 only.
            f"--accelerator-type={slice_type.accelerator_type}",
            # The flag of `queued-resources`; `tpu-vm create` calls it --version.
            f"--runtime-version={slice_type.generation.runtime_version}",
            f"--valid-until-duration={max(1, round(rental.wait_hours * 3600))}s",
            f"--labels=bert-run={self._job.run_id}",
            f"--scopes={_SCOPE}",
        ]
        flags += {"spot": ["--spot"], "reserved": ["--reserved"], "on-demand": []}[rental.capacity]
        if rental.service_account:
            flags.append(f"--service-account={rental.service_account}")
        if rental.internal_ips:
            flags.append("--internal-ips")
        words = ("queued-resources", "create", name, *flags, "--async", "--quiet")
        self._gcloud.run("compute", "tpus", *words)

    def delete(self) -> None:
        """Requests the deletion of the slice, if there is one.

        Raises:
          GcloudError: it was refused.
        """
        # Without --force, a request whose node exists cannot be deleted.
        words = ("delete", self._job.slice_name, *self._location, "--force", "--async", "--quiet")
        self._gcloud.find("compute", "tpus", "queued-resources", *words)

    def status(self) -> SliceStatus:
        """Returns the state of the slice.

        Raises:
          GcloudError: it cannot be read.
        """
        queued = self._describe("queued-resources")
        if queued is None:
            return SliceStatus(state="absent", detail="no queued resource")
        queued_state = queued.get("state", {})
        name = str(queued_state.get("state", "CREATING"))
        error = queued_state.get("failedData", {}).get("error", {}).get("message", "")
        detail = f"queued resource {name}" + (f", {' '.join(error.split())}" if error else "")
        if name != "ACTIVE":
            return SliceStatus(state=_QUEUED_STATES.get(name, "starting"), detail=detail)
        node = self._describe("tpu-vm")
        if node is None:  # the node of an ACTIVE queued resource was preempted
            return SliceStatus(state="lost", detail=f"{detail}, no node")
        return self._node_status(node, detail)

    def _node_status(self, node: dict[str, Any], detail: str) -> SliceStatus:
        name, health = str(node.get("state")), str(node.get("health", "HEALTHY"))
        detail = f"{detail}, node {name}"
        if name != "READY":
            return SliceStatus(state=_NODE_STATES.get(name, "starting"), detail=detail)
        # `gcloud ... ssh` does not check the health, and commands on such a node may hang.
        if health.startswith("UNHEALTHY"):
            return SliceStatus(state="starting", detail=f"{detail}, health {health}")
        endpoints = [str(end.get("ipAddress", "")) for end in node.get("networkEndpoints", [])]
        if len(endpoints) != self._job.slice_type.hosts or not all(endpoints):
            return SliceStatus(state="starting", detail=f"{detail}, without all addresses")
        return SliceStatus(state="ready", detail=detail, addresses=tuple(endpoints))

    def ssh(self, command: str, *, timeout: float = 600) -> None:
        """Runs a command on all hosts. If a connection breaks, gcloud runs it there again.

        Raises:
          GcloudError: it failed on a host.
        """
        rental = self._rental
        # Only "all": with a list of workers, gcloud returns 0 even if the command fails on some.
        words = ["compute", "tpus", "tpu-vm", "ssh", self._job.slice_name, *self._location]
        words += ["--worker=all", f"--command={command}", "--quiet"]
        if rental.iap:
            words = ["alpha", *words, "--tunnel-through-iap"]
        elif rental.internal_ips:
            words.append("--internal-ip")
        self._gcloud.run(*words, timeout=timeout)

    def _describe(self, kind: str) -> dict[str, Any] | None:
        words = (kind, "describe", self._job.slice_name, *self._location, "--format=json")
        found = self._gcloud.find("compute", "tpus", *words)
        return None if not found else json.loads(found)
