"""Objects of a run in the bucket, by `gcloud storage` alone."""

import json
from typing import Any

from tpu.launcher.gcloud import GcloudError, Runner, must

STORAGE = ("gcloud", "storage")


class Bucket:
    """Reads and writes objects; absence is an answer, everything else that fails raises."""

    def __init__(self, runner: Runner):
        self._runner = runner
        self.dry = runner.dry

    def read(self, url: str) -> str | None:
        """An object's text; None when there is none."""
        argv = [*STORAGE, "cat", url]
        answer = self._runner.run(argv)
        if answer.ok:
            return answer.out
        if answer.kind == "absent":
            return None
        raise GcloudError(argv, answer)

    def read_all(self, pattern: str) -> list[dict[str, Any]]:
        """Every JSON object of the objects that match, in the order of their names."""
        return split_json(self.read(pattern) or "")

    def generation(self, url: str) -> int:
        """The generation of an object; 0 when there is none."""
        argv = [*STORAGE, "objects", "describe", url, "--format=value(generation)"]
        answer = self._runner.run(argv)
        if answer.ok:
            return int(answer.out)
        if answer.kind == "absent":
            return 0
        raise GcloudError(argv, answer)

    def write(self, url: str, text: str, generation: int | None = None) -> bool:
        """Writes an object; with a generation only if it has that one still (0: is absent).

        Returns:
          False when it has another generation.
        """
        condition = [] if generation is None else [f"--if-generation-match={generation}"]
        argv = [*STORAGE, "cp", "-", url, *condition, "--quiet"]
        answer = self._runner.run(argv, stdin=text)
        if not answer.ok and answer.kind != "changed":
            raise GcloudError(argv, answer)
        return answer.ok

    def names(self, url: str) -> list[str]:
        """What lies right below a prefix, or the object itself; prefixes end with a slash."""
        argv = [*STORAGE, "ls", url]
        answer = self._runner.run(argv)
        if not answer.ok and answer.kind != "absent":
            raise GcloudError(argv, answer)
        return answer.out.split() if answer.ok else []

    def upload(self, file: str, url: str) -> None:
        """A local file."""
        must(self._runner, [*STORAGE, "cp", file, url, "--quiet"], seconds=1800)

    def remove(self, url: str) -> None:
        """Removes an object; its absence is fine."""
        argv = [*STORAGE, "rm", url, "--quiet"]
        answer = self._runner.run(argv)
        if not answer.ok and answer.kind != "absent":
            raise GcloudError(argv, answer)

    def location(self, bucket: str) -> str:
        """Where a bucket is, in small letters: "us-central1", or "us" for several regions."""
        argv = [*STORAGE, "buckets", "describe", bucket, "--format=value(location)"]
        return must(self._runner, argv).strip().lower()


def split_json(text: str) -> list[dict[str, Any]]:
    """JSON objects that were written one behind the other; a half-written last one is left out."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := len(text) - len(text[at:].lstrip())) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        if isinstance(value, dict):
            found.append(value)
    return found
