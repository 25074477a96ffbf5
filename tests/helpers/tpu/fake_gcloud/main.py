"""Runs the fake gcloud: records the command, finds its handler, prints errors like gcloud."""

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.helpers.tpu.fake_gcloud import storage, tpus
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
    buckets, project = storage.Storage(root, script), Project(script)
    slices = tpus.Tpus(root, State(root), script)

    def bound(handler: Callable[[storage.Storage, Parsed], None]) -> Callable[[Parsed], None]:
        return lambda given: handler(buckets, given)

    storage_commands = {
        f"storage {name}": (bound(handler), flags)
        for name, (handler, flags) in storage.COMMANDS.items()
    }
    return {
        **storage_commands,
        "compute tpus queued-resources create": (slices.create, tpus.CREATE),
        "compute tpus queued-resources delete": (slices.delete_request, tpus.DELETE),
        "compute tpus queued-resources describe": (slices.describe_request, tpus.ZONE),
        "compute tpus tpu-vm describe": (slices.describe_node, tpus.ZONE),
        "compute tpus tpu-vm ssh": (slices.ssh, tpus.SSH),
        "config get-value": (project.config, {}),
        "secrets versions access": (project.secret_value, {"--secret": "value"}),
    }


def record(root: Path, words: list[str]) -> None:
    """Appends the words to argv.jsonl."""
    with (root / "argv.jsonl").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(json.dumps(words) + "\n")
