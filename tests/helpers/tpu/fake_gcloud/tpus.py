"""Fakes `gcloud compute tpus`: queued resources and nodes; time and script set their states."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.helpers.tpu.fake_gcloud import hosts
from tests.helpers.tpu.fake_gcloud.parsing import CloudError, Parsed
from tests.helpers.tpu.fake_gcloud.script import Script
from tests.helpers.tpu.fake_gcloud.state import State

ZONE = {"--zone": "value"}
CREATE = {
    **ZONE, "--node-id": "value", "--accelerator-type": "value", "--runtime-version": "value",
    "--valid-until-duration": "value", "--labels": "value", "--scopes": "value",
    "--service-account": "value", "--spot": "switch", "--reserved": "switch",
    "--internal-ips": "switch", "--async": "switch",
}  # fmt: skip
DELETE = {**ZONE, "--force": "switch", "--async": "switch"}
SSH = {
    **ZONE, "--worker": "value", "--command": "value", "--internal-ip": "switch",
    "--tunnel-through-iap": "switch",
}  # fmt: skip
STUCK = ("WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED")


class Tpus:
    """Fakes queued resources and their nodes."""

    def __init__(self, root: Path, state: State, script: Script):
        self._root, self._state, self._script = root, state, script

    def create(self, given: Parsed) -> None:
        """Creates a queued resource."""
        (name,), zone = given.positional, given.value("--zone")
        kind = given.value("--accelerator-type")
        given.value("--runtime-version")
        with self._state.changing() as data:
            if f"{zone}/{name}" in data["queue"]:
                raise CloudError(
                    f"ALREADY_EXISTS: Resource 'projects/test-project/locations/{zone}/"
                    f"queuedResources/{name}' already exists"
                )
            number = data["counts"].get(f"created {name}", 0) + 1
            data["counts"][f"created {name}"] = number
            data["queue"][f"{zone}/{name}"] = {
                "name": name,
                "script": f"{name}-{number}",
                "zone": zone,
                "type": kind,
                "node": given.value("--node-id"),
                "labels": given.labels(),
                "created": time.time(),
            }
        self._advance()

    def delete_request(self, given: Parsed) -> None:
        """Deletes a queued resource; with --force also its node."""
        (name,), zone = given.positional, given.value("--zone")
        self._advance()
        with self._state.changing() as data:
            row = self._find(data["queue"], zone, name, "queuedResources")
            if f"{zone}/{row['node']}" in data["nodes"] and not given.has("--force"):
                raise CloudError("FAILED_PRECONDITION: the queued resource still has nodes")
            row["deleted"] = row.get("deleted", time.time())
        self._advance()

    def describe_request(self, given: Parsed) -> None:
        """Prints one queued resource as JSON."""
        self._advance()
        with self._state.changing() as data:
            row = self._find(
                data["queue"], given.value("--zone"), given.positional[0], "queuedResources"
            )
        print(json.dumps(self._request(row)))

    def describe_node(self, given: Parsed) -> None:
        """Prints one node as JSON."""
        self._advance()
        with self._state.changing() as data:
            row = self._find(data["nodes"], given.value("--zone"), given.positional[0], "nodes")
        print(json.dumps(self._node(row)))

    def ssh(self, given: Parsed) -> int:
        """Runs a command on one or all hosts; returns the code of the first host that failed."""
        self._advance()
        with self._state.changing() as data:
            row = self._find(data["nodes"], given.value("--zone"), given.positional[0], "nodes")
        if row["state"] != "READY":
            raise CloudError(f"This TPU has terminal state {row['state']}, so it cannot be used.")
        worker = given.value("--worker", "0")
        numbers = range(row["hosts"]) if worker == "all" else [int(worker)]
        command, node = given.value("--command"), row["name"]
        with ThreadPoolExecutor(len(numbers)) as pool:
            jobs = [
                pool.submit(hosts.run, self._root, self._script, node, number, command)
                for number in numbers
            ]
        return next((code for job in jobs if (code := job.result())), 0)

    def _advance(self) -> None:
        """Applies the changes that the time and the script cause."""
        now = time.time()
        taken: list[str] = []
        with self._state.changing() as data:
            for key, row in list(data["queue"].items()):
                script = self._script.slice(row["script"])
                node_key = f"{row['zone']}/{row['node']}"
                if "deleted" in row:
                    if now - row["deleted"] >= script.get("delete_seconds", 0):
                        data["queue"].pop(key)
                        node = data["nodes"].pop(node_key, None)
                        taken += [row["node"]] if node else []
                    continue
                row.setdefault("state", "ACCEPTED")
                if row["state"] == "SUSPENDED":
                    continue
                node = data["nodes"].get(node_key)
                if script.get("queue") in STUCK:
                    row["state"] = script["queue"]
                elif node is None and "given" not in row:
                    count = max(1, _chips(row["type"]) // 4)
                    row |= {"state": "PROVISIONING", "given": now}
                    data["nodes"][node_key] = node = {**row, "name": row["node"], "hosts": count}
                    hosts.prepare(self._root, row["node"], count)
                if node is not None and self._ripen(row, node, script, now):
                    taken.append(row["node"])
                    row["state"] = "SUSPENDED"
                    data["nodes"].pop(node_key)
        for name in taken:
            hosts.kill(self._root, name)

    def _ripen(self, row: dict[str, Any], node: dict[str, Any], script: dict, now: float) -> bool:
        """Returns the node's current state, and whether it is to be preempted."""
        ready = row["given"] + script.get("ready_after", 0)
        node["state"] = "READY" if now >= ready else "CREATING"
        node["health"] = script.get("health", "HEALTHY")
        row["state"] = "ACTIVE" if now >= ready else "PROVISIONING"
        when = script.get("preempt_when")
        there = when and (self._root / "gcs" / when.removeprefix("gs://")).exists()
        after = script.get("preempt_after")
        due = bool(there) or (after is not None and now >= ready + after)
        if due and script.get("notice"):
            # Hosts are notified first; the API shows the preemption only afterwards.
            if "noticed" not in row:
                row["noticed"] = now
                hosts.notify(self._root, row["node"], node["hosts"])
            due = now >= row["noticed"] + float(script.get("notice_seconds", 3))
        return due

    def _find(self, rows: dict[str, Any], zone: str, name: str, what: str) -> dict[str, Any]:
        if f"{zone}/{name}" not in rows:
            raise CloudError(
                f"NOT_FOUND: Resource 'projects/test-project/locations/{zone}/{what}/{name}' "
                "was not found"
            )
        return rows[f"{zone}/{name}"]

    def _request(self, row: dict[str, Any]) -> dict[str, Any]:
        place = f"projects/test-project/locations/{row['zone']}"
        state = "DELETING" if "deleted" in row else row["state"]
        spec = {"nodeId": row["node"], "node": {"labels": row["labels"]}}
        error = self._script.slice(row["script"]).get("error")
        details = {"failedData": {"error": {"code": 8, "message": error}}} if error else {}
        return {
            "name": f"{place}/queuedResources/{row['name']}",
            "state": {"state": state, **details},
            "tpu": {"nodeSpec": [spec]},
        }

    def _node(self, row: dict[str, Any]) -> dict[str, Any]:
        count = self._script.slice(row["script"]).get("hosts", row["hosts"])
        ends = [{"ipAddress": hosts.address(i), "port": 8470} for i in range(count)]
        return {
            "name": f"projects/test-project/locations/{row['zone']}/nodes/{row['name']}",
            "state": row["state"],
            "health": row["health"],
            "labels": row["labels"],
            "acceleratorType": row["type"],
            "networkEndpoints": ends if row["state"] == "READY" else [],
        }


def _chips(kind: str) -> int:
    """Returns the number of chips: 16 for v6e-16, and for v4-32, which counts cores."""
    name, number = kind.split("-")
    return int(number) // (1 if name in ("v5litepod", "v6e") else 2)
