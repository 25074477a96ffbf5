"""Compute Engine: a managed instance group with a workload policy is the slice (v5p, v6e, tpu7x).

The recipe is that of docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice, as
of 2026-07. `--target-size-policy-mode` needs a newer SDK than 528, which `doctor` checks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tpu.launcher.backend import LABEL, SCOPE, Argv, LiveSlice, Remote, Site, Status, last

COMPUTE = ("gcloud", "compute")
GROUPS = (*COMPUTE, "instance-groups", "managed")
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
PROVISIONING = {"spot": "SPOT", "on-demand": "STANDARD", "reserved": "RESERVATION_BOUND"}
# Names of what stands round a group.
POLICY, TEMPLATE = "-wp", "-it"
GONE = {"STOPPING", "SUSPENDING", "STOPPED", "SUSPENDED", "TERMINATED", "PENDING_STOP"}


class ComputeEngine:
    """Groups of instances in bulk mode: all hosts at once, or none."""

    name = "gce"

    def __init__(self, site: Site):
        self._site = site

    def create(self, incarnation: int, zone: str) -> list[Argv]:
        """Policy, template, an empty group, and then all hosts at once."""
        site, region = self._site, region_of(zone)
        name = site.name(incarnation)
        project = f"--project={site.project}"
        regional = f"projects/{site.project}/regions/{region}"
        group = [*GROUPS, "create", name, project, f"--zone={zone}", "--size=0"]
        group += [f"--base-instance-name={name}"]  # or a long one would be cut off
        group += [f"--template={regional}/instanceTemplates/{name}{TEMPLATE}"]
        group += ["--target-size-policy-mode=bulk", "--default-action-on-vm-failure=do-nothing"]
        group += [f"--workload-policy={regional}/resourcePolicies/{name}{POLICY}", "--quiet"]
        policy = [*COMPUTE, "resource-policies", "create", "workload-policy", f"{name}{POLICY}"]
        policy += [project, f"--region={region}", "--type=HIGH_THROUGHPUT"]
        policy += [f"--accelerator-topology={site.slice.topology}", "--quiet"]
        resize = [*GROUPS, "resize", name, project, f"--zone={zone}"]
        resize += [f"--size={site.slice.hosts}", "--quiet"]
        return [policy, self._template(name, region), group, resize]

    def delete(self, incarnation: int, zone: str, parts: frozenset[str]) -> list[Argv]:
        """Group, template, policy, whichever of them may exist."""
        name, region = self._site.name(incarnation), region_of(zone)
        end = [f"--project={self._site.project}", "--quiet"]
        regional = f"--region={region}"
        return [
            [*GROUPS, "delete", name, f"--zone={zone}", *end],
            [*COMPUTE, "instance-templates", "delete", f"{name}{TEMPLATE}", regional, *end],
            [*COMPUTE, "resource-policies", "delete", f"{name}{POLICY}", regional, *end],
        ]

    def questions(self, zone: str) -> dict[str, Argv]:
        """Groups and instances whose names begin as ours; the rest is compared here."""
        words = [f"--project={self._site.project}", f"--zones={zone}"]
        words += [f"--filter=name~^{self._site.prefix}-[0-9]+", "--format=json"]
        return {
            "groups": [*GROUPS, "list", *words],
            "instances": [*COMPUTE, "instances", "list", *words],
        }

    def read(
        self, zone: str, answers: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> list[LiveSlice]:
        """One slice for each group, and for each set of instances that has lost its group."""
        groups = {
            number: each
            for each in answers["groups"]
            if (number := self._site.incarnation(str(each.get("name")))) is not None
        }
        instances: dict[int, list[Mapping[str, Any]]] = {}
        for each in answers["instances"]:
            # A group names its instances after itself, with a dash and four letters.
            number = self._site.incarnation(str(each.get("name")).rpartition("-")[0])
            if number is not None and each.get("labels", {}).get(LABEL) == self._site.run_id:
                instances.setdefault(number, []).append(each)
        return [
            self._slice(number, zone, groups.get(number), instances.get(number, []))
            for number in sorted(groups | instances)
        ]

    def ssh(self, live: LiveSlice, remote: Remote, host: int | None = None) -> list[Argv]:
        """A command for each host."""
        way = ["--tunnel-through-iap"] if self._site.iap else []
        way += ["--internal-ip"] if self._site.internal_ips and not self._site.iap else []
        where = [f"--project={self._site.project}", f"--zone={live.zone}", *way]
        return [
            [*COMPUTE, "ssh", machine, *where, f"--command={remote(i)}", "--quiet"]
            for i, machine in enumerate(live.machines)
            if host in (None, i)
        ]

    def _template(self, name: str, region: str) -> Argv:
        site = self._site
        words = [*COMPUTE, "instance-templates", "create", f"{name}{TEMPLATE}"]
        words += [f"--project={site.project}", f"--instance-template-region={region}"]
        words += [f"--machine-type={site.slice.generation.machine_type}"]
        words += [f"--provisioning-model={PROVISIONING[site.capacity]}"]
        if site.capacity == "spot":
            words.append("--instance-termination-action=DELETE")
        words += ["--maintenance-policy=TERMINATE", f"--image-project={IMAGE_PROJECT}"]
        words += [f"--image-family={site.slice.generation.image_family}"]
        words += ["--boot-disk-size=200GB", f"--scopes={SCOPE}", f"--labels={LABEL}={site.run_id}"]
        if site.service_account:
            words.append(f"--service-account={site.service_account}")
        if site.internal_ips:
            words.append("--no-address")
        return [*words, "--quiet"]

    def _slice(
        self,
        number: int,
        zone: str,
        group: Mapping[str, Any] | None,
        instances: Sequence[Mapping[str, Any]],
    ) -> LiveSlice:
        hosts = sorted(instances, key=lambda each: str(each.get("name")))
        states = [str(each.get("status")) for each in hosts]
        running = states.count("RUNNING")
        words = [f"group of {running} of {self._site.slice.hosts} running"] if group else []
        words += sorted(set(states) - {"RUNNING"})
        topologies = (group or {}).get("status", {}).get("appliedAcceleratorTopologies", [])
        linked = all(each.get("state") == "ACTIVE" for each in topologies)
        status = self._status(group, states, running, linked)
        return LiveSlice(
            incarnation=number,
            zone=zone,
            status=status,
            detail=", ".join(words) or "instances without a group",
            addresses=tuple(
                str(each["networkInterfaces"][0]["networkIP"]) for each in hosts
            ) if status == "ready" else (),
            machines=tuple(last(each.get("name")) for each in hosts),
            parts=frozenset(["group"] if group else []) | frozenset(["node"] if hosts else []),
        )  # fmt: skip

    def _status(
        self, group: Mapping[str, Any] | None, states: list[str], running: int, linked: bool
    ) -> Status:
        wanted = self._site.slice.hosts
        if group is None:
            return "deleting" if set(states) <= GONE else "dead"
        if not states:
            return "waiting"
        if GONE & set(states):
            return "dead"
        if running == wanted == len(states):
            return "ready" if linked else "starting"
        return "starting"


def region_of(zone: str) -> str:
    """us-central1-b -> us-central1."""
    return zone.rpartition("-")[0]
