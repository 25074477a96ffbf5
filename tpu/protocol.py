"""Defines the JSON objects that the launcher and the hosts exchange, and the exit codes.

Each dataclass is one object in a run's folder: `bucket_layout.py` names the objects, and
`strict_json.py` reads and writes them. Uses only the standard library and runs on Python 3.10,
which TPU VM images ship.
"""

from dataclasses import dataclass, field
from typing import Literal

from bert_jax.errors import ConfigError
from tpu import bucket_layout

VERSION = bucket_layout.LAYOUT_VERSION
HEARTBEAT_SECONDS = 30
RENDEZVOUS_SECONDS = 60
"""After this time, a host that has not reported is named in the log."""
COORDINATOR_PORT = 8476

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_AGENT_USAGE = 64
EXIT_HUNG = 70
EXIT_SAVED = 75
EXIT_PREFLIGHT = 76
EXIT_CONFIG = 78
EXIT_ABORTED = 134
EXIT_KILLED = 137
EXIT_TERMINATED = 143

EXIT_CODE_MEANINGS = {
    EXIT_DONE: "done",
    EXIT_FAILED: "the trainer failed",
    EXIT_USAGE: "the trainer's command line or configuration is wrong",
    EXIT_AGENT_USAGE: "the agent's command line is wrong",
    EXIT_HUNG: "a step, save or evaluation hung; run again to resume from the newest checkpoint",
    EXIT_SAVED: "saved after a request to stop; run again to resume",
    EXIT_PREFLIGHT: "a host is missing or failed its preflight checks",
    EXIT_CONFIG: "something the job needs is not available (code, data, secrets, permissions)",
    EXIT_ABORTED: "aborted: the coordinator or another host disconnected",
    EXIT_KILLED: "killed by SIGKILL, for example when the host runs out of memory",
    EXIT_TERMINATED: "terminated by SIGTERM before there was anything to save",
}
FATAL_EXIT_CODES = frozenset({EXIT_USAGE, EXIT_AGENT_USAGE, EXIT_CONFIG})
"""Exit codes after which the same command would fail in the same way."""

POD_VERBS = ("pretrain", "finetune")
"""Verbs of bert-jax that train one model on all hosts together."""


@dataclass(frozen=True, kw_only=True)
class SliceShape:
    """Holds the sizes of a slice that a host needs; see bert_jax/parallel/tpu_slices.json."""

    name: str
    hosts: int
    devices: int
    chips: int

    def __post_init__(self) -> None:
        if min(self.hosts, self.devices, self.chips) < 1 or self.chips % self.hosts:
            raise ConfigError(
                f"slice {self.name}: {self.hosts} hosts, {self.chips} chips, {self.devices} "
                "devices; expected the same number of chips on each host"
            )

    @property
    def chips_per_host(self) -> int:
        """Returns the number of chips of each host."""
        return self.chips // self.hosts


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Tells the hosts of one attempt what to run.

    Attributes:
      bundle: sha256 of the code.
      run_url: gs://BUCKET/runs/RUN_ID.
      mode: "pod": one training run on all chips; "shards": `bert-jax glue` with one process per
        chip, each with its share of the jobs.
      arguments: arguments of `bert-jax`, without the flags that the hosts add (--run,
        --checkpoints, --output, --num-shards, --shard). They may contain @data/NAME and @code.
      data: name -> gs:// folder that is copied to each host.
      secrets: environment variable -> resource name in Secret Manager.
      max_hours: systemd stops the unit after this time, whatever state the trainer is in.
      host_addresses: internal IP addresses in the order of the host numbers.
      required_versions: package -> version that each host must have ("jax", "libtpu", ...).
    """

    version: int = VERSION
    run_id: str
    attempt: int
    slice: SliceShape
    bundle: str
    run_url: str
    mode: Literal["pod", "shards"]
    arguments: tuple[str, ...]
    data: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    max_hours: float
    host_addresses: tuple[str, ...]
    coordinator_port: int = COORDINATOR_PORT
    required_versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ConfigError(
                f"the job spec has version {self.version}, this code reads version {VERSION}: "
                "launch again with the launcher from the same bundle"
            )
        bucket_layout.validate_run_id(self.run_id)
        bucket_layout.validate_sha(self.bundle)
        if bucket_layout.validate_url(self.run_url) != self.run_url or not self.run_url.endswith(
            f"/runs/{self.run_id}"
        ):
            raise ConfigError(f"run_url {self.run_url!r}: expected gs://.../runs/{self.run_id}")
        if self.attempt < 0:
            raise ConfigError(f"attempt {self.attempt}: expected 0 or more")
        if self.max_hours <= 0:
            raise ConfigError(f"max_hours {self.max_hours}: expected more than 0")
        if not 1024 <= self.coordinator_port <= 65535:
            raise ConfigError(f"coordinator_port {self.coordinator_port}: expected 1024 to 65535")
        self._check_hosts()
        self._check_names()

    def _check_hosts(self) -> None:
        addresses = self.host_addresses
        if len(addresses) != self.slice.hosts or len(set(addresses)) != len(addresses):
            raise ConfigError(
                f"host_addresses has {len(addresses)} addresses, {len(set(addresses))} of them "
                f"different ({', '.join(addresses)}); expected {self.slice.hosts} different ones, "
                f"one for each host of {self.slice.name}; delete the slice and launch again"
            )
        for address in addresses:
            if not bucket_layout.ADDRESS_PATTERN.fullmatch(address):
                raise ConfigError(f"host_addresses contains {address!r}, expected IP addresses")

    def _check_names(self) -> None:
        if not self.arguments:
            raise ConfigError("arguments is empty: expected a verb of bert-jax and its arguments")
        verbs = POD_VERBS if self.mode == "pod" else ("glue",)
        if self.arguments[0] not in verbs:
            raise ConfigError(
                f"mode {self.mode} runs bert-jax {' or '.join(verbs)}, not {self.arguments[0]!r}"
            )
        for key, url in self.data.items():
            bucket_layout.validate_name(key, "data")
            bucket_layout.validate_url(url)
        for argument in self.arguments:
            for data_name in bucket_layout.DATA_REFERENCE_PATTERN.findall(argument):
                # The name may be followed by a path: @data/wiki/train.
                if data_name not in self.data:
                    raise ConfigError(
                        f"argument {argument!r} uses data {data_name!r}, which is not defined; "
                        f"defined data: {', '.join(self.data) or 'none'} (add --data "
                        f"{data_name}=gs://...)"
                    )
        for variable, secret in self.secrets.items():
            if not bucket_layout.ENV_VARIABLE_PATTERN.fullmatch(variable):
                raise ConfigError(f"secret {variable!r}: expected an environment variable name")
            if not bucket_layout.SECRET_PATTERN.fullmatch(secret):
                raise ConfigError(
                    f"secret {variable} is {secret!r}: expected "
                    "projects/PROJECT/secrets/NAME/versions/latest"
                )

    @property
    def attempt_folder(self) -> bucket_layout.AttemptFolder:
        """Returns the bucket folder of this attempt's reports."""
        return bucket_layout.RunFolder(self.run_url).attempt(self.attempt)


@dataclass(frozen=True, kw_only=True)
class PreflightProblem:
    """Describes one failed preflight check.

    Attributes:
      check: name of the check, such as "chips".
      fix: what the user can do about it.
      slice_independent: the check would fail on another slice, too, for example missing data.
    """

    check: str
    found: str
    expected: str
    fix: str
    slice_independent: bool = False

    def __str__(self) -> str:
        return f"{self.check}: found {self.found}; expected {self.expected}; {self.fix}"


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """Holds the results of the preflight checks of one host.

    Attributes:
      ok: no check failed; `warnings` may still be present.
      address: the address under which the other hosts reach this one.
      versions: package -> installed version.
      time: seconds since 1970.
    """

    host: int
    ok: bool
    problems: tuple[PreflightProblem, ...]
    warnings: tuple[PreflightProblem, ...]
    address: str
    versions: dict[str, str]
    time: float


HostPhase = Literal["fetching", "waiting", "training", "collecting", "saving", "ended"]


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Reports periodically what a host is doing.

    Attributes:
      phase: fetching (code, data and the run so far), waiting (for the other hosts), training,
        collecting (the results of all shards), saving (after a request to stop), ended.
      pid: process id of the trainer, if it is running.
      last_log_line: the last line of the host's log.
      step: step of the newest complete checkpoint, reported by host 0; in shards mode the number
        of finished jobs that this host has seen; None if there is none.
      rss_bytes: resident memory of the trainer and its child processes.
      disk_free_bytes: free bytes on the disk that holds the run folder.
      time: seconds since 1970.
    """

    host: int
    phase: HostPhase
    pid: int | None
    last_log_line: str
    step: int | None
    rss_bytes: int
    disk_free_bytes: int
    time: float


@dataclass(frozen=True, kw_only=True)
class ExitReport:
    """Reports how a host's trainer exited; `meaning` is the exit code in words."""

    host: int
    code: int
    meaning: str
    time: float


@dataclass(frozen=True, kw_only=True)
class DoneMarker:
    """Marks the run as complete."""

    run_id: str
    attempt: int
    time: float


def describe_exit_code(code: int) -> str:
    """Returns the meaning of an exit code in words."""
    return EXIT_CODE_MEANINGS.get(code, f"exited with the unknown code {code}")
