"""What a dry run takes for an answer: a cloud where nothing is there yet, and all goes well.

It looks at the words of the commands only, and remembers which have been given: a slice is ready
as soon as it was asked for, a run is done as soon as its trainers were started.
"""

import json
from collections.abc import Sequence

from bert_jax.hardware.tpu_slices import Slice
from tpu import names
from tpu.launcher.backend import LABEL
from tpu.launcher.gce import region_of
from tpu.launcher.gcloud import Answer

YES, NO = Answer(0, "", ""), Answer(1, "", "NOT_FOUND")


class World:
    """Answers to commands about one run.

    Args:
      there: its first slice is ready from the beginning, as for verbs that need one.
    """

    def __init__(self, kind: Slice, run_url: str, zone: str, there: bool):
        self._kind, self._run_url, self._zone = kind, run_url, zone
        self._there, self._started = there, False
        self._generations: dict[str, str] = {}

    def answer(self, argv: Sequence[str]) -> Answer:
        """What gcloud would say."""
        line = " ".join(argv)
        if argv[:2] == ["gcloud", "storage"]:
            return self._storage(list(argv))
        if " ssh " in line:
            self._started |= "agent.py start" in line
        elif " create " in line and "--help" not in line:
            self._there = True
        elif " delete " in line:
            self._there = False
        elif " list " in line and "--format=json" in line:
            rows = self._rows(argv) if self._there and f"={self._zone}" in line else []
            return Answer(0, json.dumps(rows), "")
        return YES

    def _storage(self, argv: list[str]) -> Answer:
        verb, url = argv[2], argv[-1] if argv[2] != "objects" else argv[4]
        if verb == "buckets":
            return Answer(0, region_of(self._zone), "")
        if verb == "ls" and url == f"{self._run_url}/":
            return Answer(0, f"{url}DONE.json\n", "") if self._started else YES
        if verb == "objects":
            return Answer(0, self._generations.get(url, "0"), "")
        if verb == "cp":
            self._generations[argv[4]] = "1"
            return YES
        return NO if verb in ("cat", "ls") else YES

    def _rows(self, argv: Sequence[str]) -> list[dict]:
        name = f"{names.slice_prefix(self._run_url)}-0"
        labels = {LABEL: self._run_url.rsplit("/", 1)[1]}
        addresses = [f"10.0.0.{2 + i}" for i in range(self._kind.hosts)]
        if "queued-resources" in argv:
            return [{"name": name, "state": {"state": "ACTIVE"}}]
        if "tpu-vm" in argv:
            ends = [{"ipAddress": each} for each in addresses]
            return [{"name": name, "labels": labels, "state": "READY", "networkEndpoints": ends}]
        if "instance-groups" in argv:
            return [{"name": name}]
        return [
            {
                "name": f"{name}-{letters}",
                "labels": labels,
                "status": "RUNNING",
                "networkInterfaces": [{"networkIP": address}],
            }
            for letters, address in zip(("aaaa", "bbbb", "cccc", "dddd"), addresses, strict=False)
        ]
