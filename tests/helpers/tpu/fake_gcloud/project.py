"""Fakes what belongs to a project: its name and its secrets."""

from tests.helpers.tpu.fake_gcloud.parsing import CloudError, Parsed
from tests.helpers.tpu.fake_gcloud.script import Script


class Project:
    """Fakes the project of the script."""

    def __init__(self, script: Script):
        self._script = script

    def config(self, given: Parsed) -> None:
        """Runs `config get-value project`."""
        print(self._script.data.get("project", "test-project"))

    def secret_value(self, given: Parsed) -> None:
        """Prints a secret's value."""
        name = f"projects/{given.value('--project')}/secrets/{given.value('--secret')}"
        secrets = self._script.data.get("secrets", {})
        if name not in secrets:
            raise CloudError(f"NOT_FOUND: Secret [{name}] was not found")
        print(secrets[name], end="")
