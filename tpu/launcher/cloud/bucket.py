"""Reads and writes objects in a Cloud Storage bucket with `gcloud storage`."""

import json
from typing import Any

from tpu.launcher.cloud.gcloud import CommandRunner, GcloudError, check_output

STORAGE = ("gcloud", "storage")


class Bucket:
    """Reads and writes objects; an absent object is a normal result, other failures raise."""

    def __init__(self, runner: CommandRunner):
        self._runner = runner
        self.dry = runner.dry

    def read(self, url: str) -> str | None:
        """Returns the text of an object, or None if it does not exist."""
        argv = [*STORAGE, "cat", url]
        result = self._runner.run(argv)
        if result.ok:
            return result.stdout
        if result.error_kind == "absent":
            return None
        raise GcloudError(argv, result)

    def read_all(self, pattern: str) -> list[dict[str, Any]]:
        """Returns the JSON objects of all matching files, in the order of their names."""
        return parse_concatenated_json(self.read(pattern) or "")

    def generation(self, url: str) -> int:
        """Returns the generation number of an object; 0 if it does not exist."""
        argv = [*STORAGE, "objects", "describe", url, "--format=value(generation)"]
        result = self._runner.run(argv)
        if result.ok:
            return int(result.stdout)
        if result.error_kind == "absent":
            return 0
        raise GcloudError(argv, result)

    def write(self, url: str, text: str, generation: int | None = None) -> bool:
        """Writes an object, optionally only if its generation has not changed.

        Args:
          generation: the expected generation; 0 if the object must not exist yet.

        Returns:
          False if the object has another generation; nothing was written then.
        """
        condition = [] if generation is None else [f"--if-generation-match={generation}"]
        argv = [*STORAGE, "cp", "-", url, *condition, "--quiet"]
        result = self._runner.run(argv, stdin=text)
        if not result.ok and result.error_kind != "changed":
            raise GcloudError(argv, result)
        return result.ok

    def list_names(self, url: str) -> list[str]:
        """Lists the names directly below a prefix that ends with a slash, or the object itself."""
        argv = [*STORAGE, "ls", url]
        result = self._runner.run(argv)
        if not result.ok and result.error_kind != "absent":
            raise GcloudError(argv, result)
        return result.stdout.split() if result.ok else []

    def upload(self, file: str, url: str) -> None:
        """Uploads a local file."""
        check_output(self._runner, [*STORAGE, "cp", file, url, "--quiet"], timeout=1800)

    def remove(self, url: str) -> None:
        """Removes an object; does nothing if it does not exist."""
        argv = [*STORAGE, "rm", url, "--quiet"]
        result = self._runner.run(argv)
        if not result.ok and result.error_kind != "absent":
            raise GcloudError(argv, result)

    def location(self, bucket: str) -> str:
        """Returns the location of a bucket in lower case: "us-central1", "us" ..."""
        argv = [*STORAGE, "buckets", "describe", bucket, "--format=value(location)"]
        return check_output(self._runner, argv).strip().lower()


def parse_concatenated_json(text: str) -> list[dict[str, Any]]:
    """Parses JSON objects that follow each other; ignores a last one that is incomplete."""
    decoder, found, position = json.JSONDecoder(), [], 0
    while (position := len(text) - len(text[position:].lstrip())) < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError:
            break
        if isinstance(value, dict):
            found.append(value)
    return found
