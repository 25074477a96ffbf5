"""Rents slices through the Cloud TPU API (v2 to v6e): a queued resource requests one TPU node.

Uses only flags of `gcloud compute tpus queued-resources` and `tpu-vm` that need no alpha or beta
release, checked with Google Cloud SDK 528. The exception is `--iap`, which needs alpha.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tpu.launcher.cloud.backend import (
    OAUTH_SCOPE,
    RUN_LABEL,
    Argv,
    LiveSlice,
    RemoteCommand,
    SliceSpec,
    SliceStatus,
    resource_basename,
)

TPUS = ("gcloud", "compute", "tpus")
# State of a queued resource -> slice status. ACTIVE is missing: its node's state decides.
QUEUED_RESOURCE_STATUS: dict[str, SliceStatus] = {
    "CREATING": "waiting",
    "ACCEPTED": "waiting",
    "WAITING_FOR_RESOURCES": "waiting",
    "PROVISIONING": "starting",
    "SUSPENDING": "terminated",
    "SUSPENDED": "terminated",
    "FAILED": "terminated",
    "DELETING": "deleting",
}
NODE_STATUS: dict[str, SliceStatus] = {
    "CREATING": "starting",
    "STARTING": "starting",
    "RESTARTING": "degraded",
    "REIMAGING": "degraded",
    "REPAIRING": "degraded",
    "STOPPING": "terminated",
    "STOPPED": "terminated",
    "PREEMPTED": "terminated",
    "TERMINATED": "terminated",
    "HIDING": "degraded",
    "HIDDEN": "degraded",
    "UNHIDING": "degraded",
    "DELETING": "deleting",
}


class TpuApi:
    """Builds commands for queued resources, each with one node of the same name."""

    name = "tpu-api"

    def __init__(self, spec: SliceSpec):
        self._spec = spec

    def create_commands(self, attempt: int, zone: str) -> list[Argv]:
        """Returns the command that creates a queued resource; it expires after `wait_hours`."""
        spec, generation = self._spec, self._spec.slice.generation
        name = spec.slice_name(attempt)
        words = [*TPUS, "queued-resources", "create", name, f"--node-id={name}"]
        words += [f"--project={spec.project}", f"--zone={zone}"]
        words += [f"--accelerator-type={spec.slice.accelerator_type}"]
        words += [f"--runtime-version={generation.runtime_version}"]
        words += {"spot": ["--spot"], "reserved": ["--reserved"], "on-demand": []}[spec.capacity]
        words += [f"--valid-until-duration={max(1, round(spec.wait_hours * 3600))}s"]
        words += [f"--labels={RUN_LABEL}={spec.run_id}", f"--scopes={OAUTH_SCOPE}"]
        if spec.service_account:
            words.append(f"--service-account={spec.service_account}")
        if spec.internal_ips:
            words.append("--internal-ips")
        return [[*words, "--async", "--quiet"]]

    def delete_commands(self, attempt: int, zone: str, resources: frozenset[str]) -> list[Argv]:
        """Returns the command that deletes the queued resource with its node, or a lone node."""
        location_flags = [f"--project={self._spec.project}", f"--zone={zone}"]
        name = self._spec.slice_name(attempt)
        if resources == frozenset({"node"}):
            return [[*TPUS, "tpu-vm", "delete", name, *location_flags, "--async", "--quiet"]]
        delete = [*TPUS, "queued-resources", "delete", name, *location_flags]
        return [[*delete, "--force", "--async", "--quiet"]]

    def list_commands(self, zone: str) -> dict[str, Argv]:
        """Returns commands that list a zone's queued resources and nodes, of all runs."""
        location_flags = [f"--project={self._spec.project}", f"--zone={zone}", "--format=json"]
        return {
            "queue": [*TPUS, "queued-resources", "list", *location_flags],
            "nodes": [*TPUS, "tpu-vm", "list", *location_flags],
        }

    def parse_slices(
        self, zone: str, listings: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> list[LiveSlice]:
        """Returns one slice per queued resource or node with this run's name and label."""
        queue = {
            attempt: each
            for each in listings["queue"]
            if (attempt := self._spec.attempt_of(resource_basename(each.get("name")))) is not None
        }
        nodes = {
            attempt: each
            for each in listings["nodes"]
            if (attempt := self._spec.attempt_of(resource_basename(each.get("name")))) is not None
            and each.get("labels", {}).get(RUN_LABEL) == self._spec.run_id
        }
        return [
            self._to_live_slice(attempt, zone, queue.get(attempt), nodes.get(attempt))
            for attempt in sorted(queue | nodes)
        ]

    def ssh_commands(
        self, live: LiveSlice, remote_command: RemoteCommand, host: int | None = None
    ) -> list[Argv]:
        """Returns one ssh command: gcloud itself connects to all workers, or to one."""
        (node,) = live.ssh_targets
        ssh_flags = ["--tunnel-through-iap"] if self._spec.iap else []
        ssh_flags += ["--internal-ip"] if self._spec.internal_ips and not self._spec.iap else []
        words = [*TPUS, "tpu-vm", "ssh", node, f"--project={self._spec.project}"]
        if self._spec.iap:
            words.insert(1, "alpha")
        words += [f"--zone={live.zone}", f"--worker={'all' if host is None else host}"]
        command = remote_command("auto" if host is None else host)
        return [[*words, *ssh_flags, f"--command={command}", "--quiet"]]

    def _to_live_slice(
        self,
        attempt: int,
        zone: str,
        queued: Mapping[str, Any] | None,
        node: Mapping[str, Any] | None,
    ) -> LiveSlice:
        queued_state = (queued or {}).get("state", {})
        state = str(queued_state.get("state", "ABSENT"))
        error = str(queued_state.get("failedData", {}).get("error", {}).get("message", ""))
        node_state = str((node or {}).get("state", "ABSENT"))
        health = str((node or {}).get("health", "HEALTHY"))
        endpoints = [end.get("ipAddress") for end in (node or {}).get("networkEndpoints", [])]
        words = [f"queued resource {state}"] if queued else []
        words += [" ".join(error.split())] if error else []
        words += [f"node {node_state}"] if node else []
        words += [f"health {health}"] if node and health.startswith("UNHEALTHY") else []
        resources = {"queued-resource"} if queued else set()
        status = self._status(state, node_state, health, len([e for e in endpoints if e]))
        return LiveSlice(
            attempt=attempt,
            zone=zone,
            status=status,
            detail=", ".join(words),
            addresses=tuple(endpoints) if status == "ready" else (),
            ssh_targets=(self._spec.slice_name(attempt),),
            resources=frozenset(resources | ({"node"} if node else set())),
        )

    def _status(self, queue: str, node: str, health: str, addresses: int) -> SliceStatus:
        """Returns the status of a slice: the worse of its queued resource's and its node's."""
        if "DELETING" in (queue, node):
            return "deleting"
        if (queued_status := QUEUED_RESOURCE_STATUS.get(queue)) == "terminated":
            return "terminated"
        if node == "ABSENT":
            # An ACTIVE queued resource had a node; if the node is gone, it was preempted.
            return "terminated" if queue == "ACTIVE" else queued_status or "degraded"
        if node != "READY":
            return NODE_STATUS.get(node, "degraded")
        if health.startswith("UNHEALTHY"):
            return "degraded"
        return "ready" if addresses == self._spec.slice.hosts else "starting"
