"""Rents slices from Compute Engine as managed instance groups (v5p, v6e, tpu7x).

A group with a workload policy is one slice. The commands follow
docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice as of 2026-07.
`--target-size-policy-mode` needs a newer SDK than 528; `doctor` checks for it.
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

COMPUTE = ("gcloud", "compute")
INSTANCE_GROUPS = (*COMPUTE, "instance-groups", "managed")
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
PROVISIONING_MODEL = {"spot": "SPOT", "on-demand": "STANDARD", "reserved": "RESERVATION_BOUND"}
# Suffixes of the workload policy and the instance template that belong to a group.
POLICY_SUFFIX, TEMPLATE_SUFFIX = "-wp", "-it"
TERMINATED_STATES = {"STOPPING", "SUSPENDING", "STOPPED", "SUSPENDED", "TERMINATED", "PENDING_STOP"}


class ComputeEngine:
    """Builds commands for instance groups in bulk mode, which create all hosts or none."""

    name = "gce"

    def __init__(self, spec: SliceSpec):
        self._spec = spec

    def create_commands(self, attempt: int, zone: str) -> list[Argv]:
        """Returns commands that create the policy, the template and a group, then resize it."""
        spec, region = self._spec, region_of(zone)
        name = spec.slice_name(attempt)
        project = f"--project={spec.project}"
        regional = f"projects/{spec.project}/regions/{region}"
        group = [*INSTANCE_GROUPS, "create", name, project, f"--zone={zone}", "--size=0"]
        group += [f"--base-instance-name={name}"]  # by default gcloud shortens a long group name
        group += [f"--template={regional}/instanceTemplates/{name}{TEMPLATE_SUFFIX}"]
        group += ["--target-size-policy-mode=bulk", "--default-action-on-vm-failure=do-nothing"]
        group += [f"--workload-policy={regional}/resourcePolicies/{name}{POLICY_SUFFIX}", "--quiet"]
        policy = [*COMPUTE, "resource-policies", "create", "workload-policy"]
        policy += [f"{name}{POLICY_SUFFIX}"]
        policy += [project, f"--region={region}", "--type=HIGH_THROUGHPUT"]
        policy += [f"--accelerator-topology={spec.slice.topology}", "--quiet"]
        resize = [*INSTANCE_GROUPS, "resize", name, project, f"--zone={zone}"]
        resize += [f"--size={spec.slice.hosts}", "--quiet"]
        return [policy, self._template_command(name, region), group, resize]

    def delete_commands(self, attempt: int, zone: str, resources: frozenset[str]) -> list[Argv]:
        """Returns commands that delete the group, the template and the policy."""
        name, region = self._spec.slice_name(attempt), f"--region={region_of(zone)}"
        flags = [f"--project={self._spec.project}", "--quiet"]
        template, policy = f"{name}{TEMPLATE_SUFFIX}", f"{name}{POLICY_SUFFIX}"
        return [
            [*INSTANCE_GROUPS, "delete", name, f"--zone={zone}", *flags],
            [*COMPUTE, "instance-templates", "delete", template, region, *flags],
            [*COMPUTE, "resource-policies", "delete", policy, region, *flags],
        ]

    def list_commands(self, zone: str) -> dict[str, Argv]:
        """Returns commands that list groups and instances with the prefix of this run's names."""
        words = [f"--project={self._spec.project}", f"--zones={zone}"]
        words += [f"--filter=name~^{self._spec.name_prefix}-[0-9]+", "--format=json"]
        return {
            "groups": [*INSTANCE_GROUPS, "list", *words],
            "instances": [*COMPUTE, "instances", "list", *words],
        }

    def parse_slices(
        self, zone: str, listings: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> list[LiveSlice]:
        """Returns one slice per group, and one per set of instances whose group is gone."""
        groups = {
            attempt: each
            for each in listings["groups"]
            if (attempt := self._spec.attempt_of(str(each.get("name")))) is not None
        }
        instances: dict[int, list[Mapping[str, Any]]] = {}
        for each in listings["instances"]:
            # Compute Engine names an instance after its group, with a dash and four letters.
            attempt = self._spec.attempt_of(str(each.get("name")).rpartition("-")[0])
            if attempt is not None and each.get("labels", {}).get(RUN_LABEL) == self._spec.run_id:
                instances.setdefault(attempt, []).append(each)
        return [
            self._to_live_slice(attempt, zone, groups.get(attempt), instances.get(attempt, []))
            for attempt in sorted(groups | instances)
        ]

    def ssh_commands(
        self, live: LiveSlice, remote_command: RemoteCommand, host: int | None = None
    ) -> list[Argv]:
        """Returns one ssh command per host."""
        ssh_flags = ["--tunnel-through-iap"] if self._spec.iap else []
        ssh_flags += ["--internal-ip"] if self._spec.internal_ips and not self._spec.iap else []
        location_flags = [f"--project={self._spec.project}", f"--zone={live.zone}", *ssh_flags]
        return [
            [*COMPUTE, "ssh", machine, *location_flags, f"--command={remote_command(i)}", "--quiet"]
            for i, machine in enumerate(live.ssh_targets)
            if host in (None, i)
        ]

    def _template_command(self, name: str, region: str) -> Argv:
        spec = self._spec
        words = [*COMPUTE, "instance-templates", "create", f"{name}{TEMPLATE_SUFFIX}"]
        words += [f"--project={spec.project}", f"--instance-template-region={region}"]
        words += [f"--machine-type={spec.slice.generation.machine_type}"]
        words += [f"--provisioning-model={PROVISIONING_MODEL[spec.capacity]}"]
        if spec.capacity == "spot":
            words.append("--instance-termination-action=DELETE")
        words += ["--maintenance-policy=TERMINATE", f"--image-project={IMAGE_PROJECT}"]
        words += [f"--image-family={spec.slice.generation.image_family}"]
        words += [
            "--boot-disk-size=200GB",
            f"--scopes={OAUTH_SCOPE}",
            f"--labels={RUN_LABEL}={spec.run_id}",
        ]
        if spec.service_account:
            words.append(f"--service-account={spec.service_account}")
        if spec.internal_ips:
            words.append("--no-address")
        return [*words, "--quiet"]

    def _to_live_slice(
        self,
        attempt: int,
        zone: str,
        group: Mapping[str, Any] | None,
        instances: Sequence[Mapping[str, Any]],
    ) -> LiveSlice:
        hosts = sorted(instances, key=lambda each: str(each.get("name")))
        states = [str(each.get("status")) for each in hosts]
        running = states.count("RUNNING")
        words = [f"group of {running} of {self._spec.slice.hosts} running"] if group else []
        words += sorted(set(states) - {"RUNNING"})
        topologies = (group or {}).get("status", {}).get("appliedAcceleratorTopologies", [])
        topology_active = all(each.get("state") == "ACTIVE" for each in topologies)
        status = self._status(group, states, running, topology_active)
        return LiveSlice(
            attempt=attempt,
            zone=zone,
            status=status,
            detail=", ".join(words) or "instances without a group",
            addresses=tuple(
                str(each["networkInterfaces"][0]["networkIP"]) for each in hosts
            ) if status == "ready" else (),
            ssh_targets=tuple(resource_basename(each.get("name")) for each in hosts),
            resources=frozenset(["group"] if group else []) | frozenset(["node"] if hosts else []),
        )  # fmt: skip

    def _status(
        self,
        group: Mapping[str, Any] | None,
        states: list[str],
        running: int,
        topology_active: bool,
    ) -> SliceStatus:
        num_hosts = self._spec.slice.hosts
        if group is None:
            return "deleting" if set(states) <= TERMINATED_STATES else "terminated"
        if not states:
            return "waiting"
        if TERMINATED_STATES & set(states):
            return "terminated"
        if running == num_hosts == len(states):
            return "ready" if topology_active else "starting"
        return "starting"


def region_of(zone: str) -> str:
    """Returns the region of a zone: us-central1-b -> us-central1."""
    return zone.rpartition("-")[0]
