"""Fakes `gcloud compute`: policies, templates, managed instance groups, instances, ssh."""

import json
import time
from pathlib import Path
from typing import Any

from tests.helpers.tpu.fake_gcloud import hosts
from tests.helpers.tpu.fake_gcloud.parsing import CloudError, Parsed
from tests.helpers.tpu.fake_gcloud.script import Script
from tests.helpers.tpu.fake_gcloud.state import State

ZONE, REGION = {"--zone": "value"}, {"--region": "value"}
POLICY = {**REGION, "--type": "value", "--accelerator-topology": "value"}
TEMPLATE = {
    "--instance-template-region": "value", "--machine-type": "value", "--labels": "value",
    "--provisioning-model": "value", "--instance-termination-action": "value",
    "--maintenance-policy": "value", "--image-project": "value", "--image-family": "value",
    "--boot-disk-size": "value", "--scopes": "value", "--service-account": "value",
    "--no-address": "switch",
}  # fmt: skip
GROUP = {
    **ZONE, "--size": "value", "--base-instance-name": "value", "--template": "value",
    "--target-size-policy-mode": "value",
    "--default-action-on-vm-failure": "value", "--workload-policy": "value", "--help": "switch",
}  # fmt: skip
RESIZE = {**ZONE, "--size": "value"}
LIST = {"--zones": "value", "--filter": "value"}
SSH = {**ZONE, "--command": "value", "--tunnel-through-iap": "switch", "--internal-ip": "switch"}
LETTERS = ("0a1b", "2c3d", "4e5f", "6g7h")


class Groups:
    """Fakes managed instance groups in bulk mode."""

    def __init__(self, root: Path, state: State, script: Script):
        self._root, self._state, self._script = root, state, script

    def create_policy(self, given: Parsed) -> None:
        """Creates a workload policy."""
        self._add("policies", given.value("--region"), given.positional[0], {})

    def create_template(self, given: Parsed) -> None:
        """Creates an instance template."""
        region = given.value("--instance-template-region")
        row = {"labels": given.labels(), "machine": given.value("--machine-type")}
        self._add("templates", region, given.positional[0], row)

    def create(self, given: Parsed) -> None:
        """Creates an empty group."""
        if given.has("--help"):
            print("--target-size-policy-mode=TARGET_SIZE_POLICY_MODE")
            return
        template = given.value("--template").split("/")
        with self._state.changing() as data:
            if f"{template[-3]}/{template[-1]}" not in data["templates"]:
                raise CloudError(f"The resource '{given.value('--template')}' was not found")
            labels = data["templates"][f"{template[-3]}/{template[-1]}"]["labels"]
        row = {"labels": labels, "size": int(given.value("--size"))}
        self._add("groups", given.value("--zone"), given.positional[0], row)

    def resize(self, given: Parsed) -> None:
        """Requests all instances at once."""
        with self._state.changing() as data:
            row = self._find(data["groups"], given.value("--zone"), given.positional[0])
            row |= {"size": int(given.value("--size")), "asked": time.time()}
        hosts.prepare(self._root, given.positional[0], row["size"])

    def delete(self, given: Parsed) -> None:
        """Deletes a group and its instances."""
        self._remove("groups", given.value("--zone"), given.positional[0])
        hosts.kill(self._root, given.positional[0])

    def delete_template(self, given: Parsed) -> None:
        """Deletes a template."""
        self._remove("templates", given.value("--region"), given.positional[0])

    def delete_policy(self, given: Parsed) -> None:
        """Deletes a policy."""
        self._remove("policies", given.value("--region"), given.positional[0])

    def list_groups(self, given: Parsed) -> None:
        """Prints the groups of a zone as JSON."""
        rows = self._rows(given.value("--zones"))
        print(json.dumps([{"name": row["name"], "status": {}} for row, _ in rows]))

    def list_instances(self, given: Parsed) -> None:
        """Prints the instances of a zone as JSON."""
        found = []
        for row, states in self._rows(given.value("--zones")):
            for number, state in enumerate(states):
                found.append(
                    {
                        "name": f"{row['name']}-{LETTERS[number]}",
                        "status": state,
                        "labels": row["labels"],
                        "networkInterfaces": [{"networkIP": hosts.address(number)}],
                    }
                )
        print(json.dumps(found))

    def machine_types(self, given: Parsed) -> None:
        """Prints the requested machine types, unless the script has others."""
        wanted = given.value("--filter").removeprefix("name=")
        types = self._script.data.get("types", {}).get(given.value("--zones"), [wanted])
        print(*(name for name in types if name == wanted), sep="\n")

    def ssh(self, given: Parsed) -> int:
        """Runs a command on one instance."""
        group, _, letters = given.positional[0].rpartition("-")
        rows = {row["name"]: states for row, states in self._rows(given.value("--zone"))}
        if group not in rows or letters not in LETTERS[: len(rows[group])]:
            raise CloudError(f"The resource 'instances/{given.positional[0]}' was not found")
        number = LETTERS.index(letters)
        return hosts.run(self._root, self._script, group, number, given.value("--command"))

    def _rows(self, zone: str) -> list[tuple[dict[str, Any], list[str]]]:
        """Returns the groups of a zone with the current states of their instances."""
        found, now, taken = [], time.time(), []
        with self._state.changing() as data:
            for row in data["groups"].values():
                if row["place"] != zone:
                    continue
                script = self._script.slice(row["name"])
                states: list[str] = []
                if "asked" in row and script.get("queue") != "WAITING_FOR_RESOURCES":
                    ready = row["asked"] + script.get("ready_after", 0)
                    states = ["RUNNING" if now >= ready else "STAGING"] * row["size"]
                    when = script.get("preempt_when")
                    gone = when and (self._root / "gcs" / when.removeprefix("gs://")).exists()
                    after = script.get("preempt_after")
                    if row.get("gone") or gone or (after is not None and now >= ready + after):
                        taken += [] if row.get("gone") else [row["name"]]
                        row["gone"] = True
                        states = []
                found.append((dict(row), states))
        for name in taken:
            hosts.kill(self._root, name)
        return found

    def _add(self, kind: str, place: str, name: str, row: dict[str, Any]) -> None:
        with self._state.changing() as data:
            if f"{place}/{name}" in data[kind]:
                raise CloudError(f"The resource '{kind}/{name}' already exists")
            data[kind][f"{place}/{name}"] = {"name": name, "place": place, **row}

    def _find(self, rows: dict[str, Any], place: str, name: str) -> dict[str, Any]:
        if f"{place}/{name}" not in rows:
            raise CloudError(f"Could not fetch resource:\n - The resource '{name}' was not found")
        return rows[f"{place}/{name}"]

    def _remove(self, kind: str, place: str, name: str) -> None:
        with self._state.changing() as data:
            self._find(data[kind], place, name)
            data[kind].pop(f"{place}/{name}")
