"""The Cloud TPU API: a queued resource asks for a node, the node is the slice (v2 to v6e).

Flags are those of `gcloud compute tpus queued-resources` and `tpu-vm` that need no alpha or beta,
checked against Google Cloud SDK 528; `--iap` alone needs alpha.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tpu.launcher.backend import LABEL, SCOPE, Argv, LiveSlice, Remote, Site, Status, last

TPUS = ("gcloud", "compute", "tpus")
# State of a queued resource -> ours; ACTIVE is told by its node.
QUEUE: dict[str, Status] = {
    "CREATING": "waiting",
    "ACCEPTED": "waiting",
    "WAITING_FOR_RESOURCES": "waiting",
    "PROVISIONING": "starting",
    "SUSPENDING": "dead",
    "SUSPENDED": "dead",
    "FAILED": "dead",
    "DELETING": "deleting",
}
NODE: dict[str, Status] = {
    "CREATING": "starting",
    "STARTING": "starting",
    "RESTARTING": "unwell",
    "REIMAGING": "unwell",
    "REPAIRING": "unwell",
    "STOPPING": "dead",
    "STOPPED": "dead",
    "PREEMPTED": "dead",
    "TERMINATED": "dead",
    "HIDING": "unwell",
    "HIDDEN": "unwell",
    "UNHIDING": "unwell",
    "DELETING": "deleting",
}


class TpuApi:
    """Queued resources, each with one node of the same name."""

    name = "tpu-api"

    def __init__(self, site: Site):
        self._site = site

    def create(self, incarnation: int, zone: str) -> list[Argv]:
        """One queued resource, which gives up by itself after the longest wait."""
        site, generation = self._site, self._site.slice.generation
        name = site.name(incarnation)
        words = [*TPUS, "queued-resources", "create", name, f"--node-id={name}"]
        words += [f"--project={site.project}", f"--zone={zone}"]
        words += [f"--accelerator-type={site.slice.accelerator_type}"]
        words += [f"--runtime-version={generation.runtime_version}"]
        words += {"spot": ["--spot"], "reserved": ["--reserved"], "on-demand": []}[site.capacity]
        words += [f"--valid-until-duration={max(1, round(site.wait_hours * 3600))}s"]
        words += [f"--labels={LABEL}={site.run_id}", f"--scopes={SCOPE}"]
        if site.service_account:
            words.append(f"--service-account={site.service_account}")
        if site.internal_ips:
            words.append("--internal-ips")
        return [[*words, "--async", "--quiet"]]

    def delete(self, incarnation: int, zone: str, parts: frozenset[str]) -> list[Argv]:
        """The queued resource with --force takes its node along; a node alone goes alone."""
        where = [f"--project={self._site.project}", f"--zone={zone}", "--async", "--quiet"]
        name = self._site.name(incarnation)
        if parts == {"node"}:
            return [[*TPUS, "tpu-vm", "delete", name, *where]]
        return [[*TPUS, "queued-resources", "delete", name, *where[:2], "--force", *where[2:]]]

    def questions(self, zone: str) -> dict[str, Argv]:
        """All queued resources and nodes of the zone: a name is compared here, not there."""
        where = [f"--project={self._site.project}", f"--zone={zone}", "--format=json"]
        return {
            "queue": [*TPUS, "queued-resources", "list", *where],
            "nodes": [*TPUS, "tpu-vm", "list", *where],
        }

    def read(
        self, zone: str, answers: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> list[LiveSlice]:
        """One slice for each queued resource or node that has a name and a label of ours."""
        queue = {
            number: each
            for each in answers["queue"]
            if (number := self._site.incarnation(last(each.get("name")))) is not None
        }
        nodes = {
            number: each
            for each in answers["nodes"]
            if (number := self._site.incarnation(last(each.get("name")))) is not None
            and each.get("labels", {}).get(LABEL) == self._site.run_id
        }
        return [
            self._slice(number, zone, queue.get(number), nodes.get(number))
            for number in sorted(queue | nodes)
        ]

    def ssh(self, live: LiveSlice, remote: Remote, host: int | None = None) -> list[Argv]:
        """One command for all hosts, where gcloud goes to all of them; or for one."""
        (node,) = live.machines
        tunnel = ["--tunnel-through-iap"] if self._site.iap else []
        inside = ["--internal-ip"] if self._site.internal_ips and not self._site.iap else []
        words = [*TPUS, "tpu-vm", "ssh", node, f"--project={self._site.project}"]
        if self._site.iap:
            words.insert(1, "alpha")
        words += [f"--zone={live.zone}", f"--worker={'all' if host is None else host}"]
        command = remote("auto" if host is None else host)
        return [[*words, *tunnel, *inside, f"--command={command}", "--quiet"]]

    def _slice(
        self,
        number: int,
        zone: str,
        queued: Mapping[str, Any] | None,
        node: Mapping[str, Any] | None,
    ) -> LiveSlice:
        told = (queued or {}).get("state", {})
        state = str(told.get("state", "ABSENT"))
        error = str(told.get("failedData", {}).get("error", {}).get("message", ""))
        node_state = str((node or {}).get("state", "ABSENT"))
        health = str((node or {}).get("health", "HEALTHY"))
        ends = [end.get("ipAddress") for end in (node or {}).get("networkEndpoints", [])]
        words = [f"queued resource {state}"] if queued else []
        words += [" ".join(error.split())] if error else []
        words += [f"node {node_state}"] if node else []
        words += [f"health {health}"] if node and health.startswith("UNHEALTHY") else []
        parts = {"queued-resource"} if queued else set()
        status = self._status(state, node_state, health, len([e for e in ends if e]))
        return LiveSlice(
            incarnation=number,
            zone=zone,
            status=status,
            detail=", ".join(words),
            addresses=tuple(ends) if status == "ready" else (),
            machines=(self._site.name(number),),
            parts=frozenset(parts | ({"node"} if node else set())),
        )

    def _status(self, queue: str, node: str, health: str, addresses: int) -> Status:
        """Of the two, the one with the worse news."""
        if "DELETING" in (queue, node):
            return "deleting"
        if (found := QUEUE.get(queue)) == "dead":
            return found
        if node == "ABSENT":
            # An ACTIVE queued resource whose node has gone was taken away.
            return "dead" if queue == "ACTIVE" else QUEUE.get(queue, "unwell")
        if node != "READY":
            return NODE.get(node, "unwell")
        if health.startswith("UNHEALTHY"):
            return "unwell"
        return "ready" if addresses == self._site.slice.hosts else "starting"
