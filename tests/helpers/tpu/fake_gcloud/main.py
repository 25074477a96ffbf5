"""Runs the fake gcloud: records the command, finds its handler, prints errors like gcloud."""

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.helpers.tpu.fake_gcloud import groups, storage, tpus
from tests.helpers.tpu.fake_gcloud.parsing import CloudError, Parsed, parse
from tests.helpers.tpu.fake_gcloud.project import Project
from tests.helpers.tpu.fake_gcloud.script import Script
from tests.helpers.tpu.fake_gcloud.state import State

Command = tuple[Callable[[Parsed], int | None], dict[str, str]]


def main(words: list[str]) -> int:
    """Runs one command and returns its exit code."""
    root = Path(os.environ["FAKE_CLOUD"]).resolve()
    root.mkdir(parents=True, exist_ok=True)
    record(root, words)
    if words[:1] == ["--version"]:
        print("Google Cloud SDK 574.0.0")
        return 0
    words = words[1:] if words[:1] in (["alpha"], ["beta"]) else words
    script = Script(root, State(root))
    table = commands(root, script)
    for length in range(min(5, len(words)), 0, -1):
        name = " ".join(words[:length])
        if name in table:
            handler, flags = table[name]
            try:
                given = parse(words[length:], flags)
                script.fail(words)
                return handler(given) or 0
            except CloudError as error:
                print(f"ERROR: (gcloud.{name.replace(' ', '.')}) {error}", file=sys.stderr)
                return error.code
    print(f"ERROR: (gcloud) Invalid choice: '{' '.join(words)}'.", file=sys.stderr)
    return 2


def commands(root: Path, script: Script) -> dict[str, Command]:
    """Returns every command by its name."""
    state = State(root)
    buckets, slices = storage.Storage(root, script), tpus.Tpus(root, state, script)
    machines, project = groups.Groups(root, state, script), Project(script)

    def bound(handler: Callable[[storage.Storage, Parsed], None]) -> Callable[[Parsed], None]:
        return lambda given: handler(buckets, given)

    storage_commands = {
        f"storage {name}": (bound(handler), flags)
        for name, (handler, flags) in storage.COMMANDS.items()
    }
    managed = "compute instance-groups managed"
    return {
        **storage_commands,
        "compute tpus queued-resources create": (slices.create, tpus.CREATE),
        "compute tpus queued-resources delete": (slices.delete_request, tpus.DELETE),
        "compute tpus queued-resources list": (slices.list_requests, tpus.ZONE),
        "compute tpus queued-resources describe": (slices.describe_request, tpus.ZONE),
        "compute tpus tpu-vm delete": (slices.delete_node, tpus.DELETE),
        "compute tpus tpu-vm list": (slices.list_nodes, tpus.ZONE),
        "compute tpus tpu-vm describe": (slices.describe_node, tpus.ZONE),
        "compute tpus tpu-vm ssh": (slices.ssh, tpus.SSH),
        "compute tpus accelerator-types list": (slices.types, tpus.ZONE),
        "compute resource-policies create workload-policy": (
            machines.create_policy, groups.POLICY),
        "compute resource-policies delete": (machines.delete_policy, groups.REGION),
        "compute instance-templates create": (machines.create_template, groups.TEMPLATE),
        "compute instance-templates delete": (machines.delete_template, groups.REGION),
        f"{managed} create": (machines.create, groups.GROUP),
        f"{managed} resize": (machines.resize, groups.RESIZE),
        f"{managed} delete": (machines.delete, groups.ZONE),
        f"{managed} list": (machines.list_groups, groups.LIST),
        "compute instances list": (machines.list_instances, groups.LIST),
        "compute machine-types list": (machines.machine_types, groups.LIST),
        "compute ssh": (machines.ssh, groups.SSH),
        "auth list": (project.accounts, {"--filter": "value"}),
        "auth login": (project.login, {}),
        "config get-value": (project.config, {}),
        "config set": (project.set_config, {}),
        "services list": (project.services, {"--enabled": "switch"}),
        "quotas info list": (project.quotas, {"--service": "value"}),
        "iam service-accounts describe": (project.account, {}),
        "secrets versions describe": (project.secret_state, {"--secret": "value"}),
        "secrets versions access": (project.secret_value, {"--secret": "value"}),
    }  # fmt: skip


def record(root: Path, words: list[str]) -> None:
    """Appends the words to argv.jsonl."""
    with (root / "argv.jsonl").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(json.dumps(words) + "\n")
