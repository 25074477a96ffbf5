"""Fakes what belongs to a project: login, APIs, quotas, service accounts, secrets."""

import json

from tests.helpers.tpu.fake_gcloud.parsing import CloudError, Parsed
from tests.helpers.tpu.fake_gcloud.script import Script

APIS = [f"{name}.googleapis.com" for name in ("tpu", "compute", "storage", "secretmanager")]
PLENTY = [
    {"quotaId": f"{name}PerProjectPerZoneForTPUAPI",
     "dimensionsInfos": [{"dimensions": {}, "details": {"value": "64"}}]}
    for kind in ("TPUV2", "TPUV3", "TPUV4", "TPUV5sLitepod", "TPUV5p", "TPUV6E")
    for name in (kind, f"{kind}Preemptible")
]  # fmt: skip
PLENTY += [
    {"quotaId": name, "dimensionsInfos": [{"dimensions": {}, "details": {"value": "64"}}]}
    for name in ("PREEMPTIBLE-TPU-V6E-per-project-region", "TPU-V5P-per-project-region",
                 "PREEMPTIBLE-TPU-V5P-per-project-region", "TPUS-PER-TPU-FAMILY-per-project-region")
]  # fmt: skip


class Project:
    """Fakes the project of the script."""

    def __init__(self, script: Script):
        self._script = script

    def accounts(self, given: Parsed) -> None:
        """Prints the account that is logged in."""
        account = self._script.data.get("account", "user@example.com")
        print(account or "", end="\n" if account else "")

    def config(self, given: Parsed) -> None:
        """Runs `config get-value project`."""
        print(self._script.data.get("project", "test-project"))

    def set_config(self, given: Parsed) -> None:
        """Runs `config set project NAME`, which changes nothing: the script sets the project."""
        print(f"Updated property [core/{given.positional[0]}].")

    def login(self, given: Parsed) -> None:
        """Runs `auth login`, which does nothing."""
        print("You are now logged in.")

    def services(self, given: Parsed) -> None:
        """Prints the APIs that are enabled."""
        print(*self._script.data.get("apis", APIS), sep="\n")

    def quotas(self, given: Parsed) -> None:
        """Prints the quotas of an API as JSON."""
        print(json.dumps(self._script.data.get("quotas", {}).get(given.value("--service"), PLENTY)))

    def account(self, given: Parsed) -> None:
        """Prints a service account."""
        (email,) = given.positional
        if email in self._script.data.get("missing_accounts", []):
            raise CloudError(f"NOT_FOUND: Unknown service account {email} was not found")
        print(email)

    def secret_state(self, given: Parsed) -> None:
        """Prints the state of a secret."""
        self._secret(given)
        print("enabled")

    def secret_value(self, given: Parsed) -> None:
        """Prints a secret's value."""
        print(self._secret(given), end="")

    def _secret(self, given: Parsed) -> str:
        name = f"projects/{given.value('--project')}/secrets/{given.value('--secret')}"
        secrets = self._script.data.get("secrets", {})
        if name not in secrets:
            raise CloudError(f"NOT_FOUND: Secret [{name}] was not found")
        return secrets[name]
