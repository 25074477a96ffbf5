"""Describes what runs on a slice (`Job`) and how the slice is rented (`Rental`).

Everything about a run is in one folder of the bucket:

    gs://BUCKET/code/<sha>.tar.gz      the code of the hosts, shared by all runs
    gs://BUCKET/runs/RUN_ID/
        job.json                       the job and the rental, for the launcher's other commands
        history.json                   what the restart loop remembers
        run/                           the run folder, with run/checkpoints
        attempts/<n>/host-<i>.log      of the n-th slice of the run
        attempts/<n>/host-<i>.exit-75  the host's trainer has exited with code 75
        STOP                           the user has ended the run; nothing is restarted

Uses only the standard library and runs on Python 3.10, which TPU VM images ship.
"""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import Slice, find_slice
from tpu import TPUCTL

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SAVED = 75
EXIT_NOT_READY = 76
EXIT_CONFIG = 78
EXIT_TERMINATED = 143

EXIT_CODES = {
    EXIT_DONE: "done",
    EXIT_FAILED: "the trainer failed",
    2: "the trainer's command line or configuration is wrong",
    70: "a step, save or evaluation hung",
    EXIT_SAVED: "saved after a request to stop",
    EXIT_NOT_READY: "the host could not be prepared",
    EXIT_CONFIG: "data, a secret or a permission is missing",
    # JAX aborts a process (SIGABRT) when the heartbeat of another one fails; Python cannot catch
    # it.
    134: "aborted, because another host disconnected",
    137: "killed, for example because the host had no memory left",
    EXIT_TERMINATED: "stopped before there was anything to save",
}
"""The exit codes of `bert-jax`, of the shell, and of tpu/worker.py."""

DATA_REFERENCE = re.compile(r"@data/([A-Za-z0-9._-]+)((?:/[A-Za-z0-9._-]+)*)")
"""Matches @data/NAME/FOLDER anywhere in an argument; hosts replace it with the local copy."""

Capacity = Literal["spot", "on-demand", "reserved"]
CAPACITIES: tuple[Capacity, ...] = ("spot", "on-demand", "reserved")

_VERBS = ("pretrain", "finetune", "glue", "verify")
_FLAGS_OF_HOSTS = ("--run", "--checkpoints", "--output", "--num-shards", "--shard")
_RUN_ID = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_URL = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._=@+-]+)*")
_SECRET = re.compile(r"projects/[a-z0-9:.-]+/secrets/[A-Za-z0-9_-]+(/versions/[a-z0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describes one run on a slice.

    Attributes:
      bucket: gs://NAME.
      run_id: names the run in the bucket, and the slice.
      slice: a name in bert_jax's table of slices.
      arguments: a verb of `bert-jax` and its arguments, without the flags that hosts add. They may
        contain @data/NAME (a copy of a data folder) and @code/FILE (a file of the repository).
      data: name -> gs:// folder that is copied to each host.
      secrets: environment variable -> name of a secret in Secret Manager, never its value.
    """

    bucket: str
    run_id: str
    slice: str
    arguments: tuple[str, ...]
    data: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find_slice(self.slice)
        check_url(self.bucket, "--bucket")
        if "/" in self.bucket.removeprefix("gs://"):
            raise ConfigError(f"--bucket {self.bucket}: expected gs://NAME, without a folder")
        if not _RUN_ID.fullmatch(self.run_id):
            raise ConfigError(
                f"--run-id {self.run_id!r}: expected 1 to 40 characters of a-z, 0-9 and -, "
                "starting with a letter and not ending with -"
            )
        self._check_data()
        self._check_arguments()
        self._check_secrets()

    def _check_data(self) -> None:
        for name, url in self.data.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(f"--data {name!r}: expected a name of letters, digits, . - and _")
            check_url(url, f"--data {name}")

    def _check_arguments(self) -> None:
        if not self.arguments or self.arguments[0] not in _VERBS:
            found = f"found {self.arguments[0]!r}" if self.arguments else "found nothing"
            raise ConfigError(
                f"the job after -- must start with one of {', '.join(_VERBS)}; {found}. Example: "
                f"{TPUCTL} launch ... -- pretrain configs/pretrain/bert.py --arg corpus=@data/wiki"
            )
        for argument in self.arguments:
            if argument.split("=", 1)[0] in _FLAGS_OF_HOSTS:
                raise ConfigError(f"{argument.split('=', 1)[0]} is set by the hosts; omit it")
            for name, _ in DATA_REFERENCE.findall(argument):
                if name not in self.data:
                    raise ConfigError(
                        f"argument {argument!r} uses data {name!r}, which is not defined; defined: "
                        f"{', '.join(self.data) or 'none'} (add --data {name}=gs://...)"
                    )

    def _check_secrets(self) -> None:
        # These messages do not repeat the value, which could be the secret itself.
        for variable, secret in self.secrets.items():
            if not _VARIABLE.fullmatch(variable):
                raise ConfigError("--env-secret: the part before = is not a variable name")
            if not _SECRET.fullmatch(secret):
                raise ConfigError(
                    f"--env-secret {variable}=...: expected {variable}=projects/PROJECT/secrets/"
                    "NAME, the name of a secret and not the secret itself"
                )
        if self.secrets and self.is_sharded:
            raise ConfigError("--env-secret: `bert-jax glue` reads no secrets; omit it")

    @property
    def is_sharded(self) -> bool:
        """Returns whether each chip runs a process of its own, and not all chips one training."""
        return self.arguments[0] == "glue"

    @property
    def slice_type(self) -> Slice:
        """Returns the row of the table of slices."""
        return find_slice(self.slice)

    @property
    def url(self) -> str:
        """Returns the URL of the run's folder in the bucket."""
        return f"{self.bucket}/runs/{self.run_id}"

    def attempt_url(self, attempt: int | str) -> str:
        """Returns the URL of the folder of one attempt."""
        return f"{self.url}/attempts/{attempt}"

    @property
    def slice_name(self) -> str:
        """Returns the name of the queued resource and of its node.

        The hash tells apart equal run ids in different buckets of one project.
        """
        return f"bert-{self.run_id}-{hashlib.sha256(self.url.encode()).hexdigest()[:8]}"

    def flags(self) -> list[str]:
        """Returns the arguments of `tpuctl work`, which describe the job to a host."""
        words = ["--bucket", self.bucket, "--run-id", self.run_id, "--slice", self.slice]
        for name, url in self.data.items():
            words += ["--data", f"{name}={url}"]
        for variable, secret in self.secrets.items():
            words += ["--env-secret", f"{variable}={secret}"]
        return [*words, "--", *self.arguments]


@dataclass(frozen=True, kw_only=True)
class Rental:
    """Describes how the slice of a run is rented.

    Attributes:
      code: sha256 of the code that the hosts run.
      max_hours, max_usd: limits on all slices of the run together; the lower one counts.
      wait_hours: the longest time in the queue.
      iap: ssh goes through Identity-Aware Proxy.
    """

    code: str
    project: str
    zone: str
    capacity: Capacity = "spot"
    max_hours: float = 12.0
    max_usd: float | None = None
    wait_hours: float = 24.0
    service_account: str | None = None
    internal_ips: bool = False
    iap: bool = False

    def usd_per_hour(self, slice_type: Slice) -> float | None:
        """Returns the list price of the slice; the on-demand price if there is no spot price."""
        spot = slice_type.usd_per_hour(spot=True) if self.capacity == "spot" else None
        return slice_type.usd_per_hour(spot=False) if spot is None else spot

    def hours(self, slice_type: Slice) -> float:
        """Returns the limit in hours.

        Raises:
          ConfigError: --max-usd is set, but no price is known.
        """
        if self.max_usd is None:
            return self.max_hours
        price = self.usd_per_hour(slice_type)
        if price is None:
            raise ConfigError(
                f"--max-usd: no price of {slice_type.name} is published; use --max-hours"
            )
        return min(self.max_hours, self.max_usd / price)


def check_url(url: str, name: str) -> None:
    """Raises a ConfigError unless this is the URL of a bucket or of a folder in one."""
    if not _URL.fullmatch(url) or re.search(r"/\.\.?/", f"{url}/"):
        raise ConfigError(f"{name}: {url!r} is not a bucket URL; expected gs://BUCKET/FOLDER")


def to_json(job: Job, rental: Rental) -> str:
    """Returns the text of job.json."""
    return json.dumps({"job": dataclasses.asdict(job), "rental": dataclasses.asdict(rental)})


def from_json(text: str) -> tuple[Job, Rental]:
    """Reads job.json.

    Raises:
      ConfigError: it is not what `to_json` writes.
    """
    try:
        fields: dict[str, dict[str, Any]] = json.loads(text)
        job: dict[str, Any] = {**fields["job"], "arguments": tuple(fields["job"]["arguments"])}
        return Job(**job), Rental(**fields["rental"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"job.json cannot be read ({type(error).__name__}: {error}); it was written by another "
            "version of this code: launch the run again with another --run-id"
        ) from None
