"""What the launcher and the hosts of a slice say to each other, and what exit codes mean.

Each dataclass is one JSON object of a run's folder; `names.py` says which, `strict_json.py` reads
them. Standard library only, from Python 3.10 on (what the hosts' systems have).
"""

from dataclasses import dataclass, field
from typing import Literal

from bert_jax.errors import ConfigError
from tpu import names

VERSION = 1
HEARTBEAT_SECONDS = 30
RENDEZVOUS_SECONDS = 60
"""A host whose report is not there after that long is named."""
COORDINATOR_PORT = 8476

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_USAGE_BSD = 64
EXIT_HUNG = 70
EXIT_SAVED = 75
EXIT_PREFLIGHT = 76
EXIT_CONFIG = 78
EXIT_ABORTED = 134
EXIT_KILLED = 137
EXIT_TERMINATED = 143

MEANINGS = {
    EXIT_DONE: "done",
    EXIT_FAILED: "the trainer failed",
    EXIT_USAGE: "the trainer's command or configuration is wrong",
    EXIT_USAGE_BSD: "the agent's command is wrong",
    EXIT_HUNG: "a step, save or evaluation hung; run again to go on from the newest checkpoint",
    EXIT_SAVED: "saved after a request to stop; run again to go on",
    EXIT_PREFLIGHT: "a host is not fit to train, or absent",
    EXIT_CONFIG: "what the order asks for cannot be had (code, data, secrets, permissions)",
    EXIT_ABORTED: "aborted: the coordinator or another host went away",
    EXIT_KILLED: "killed by SIGKILL, as by the system when memory runs out",
    EXIT_TERMINATED: "ended by SIGTERM before anything had to be saved",
}
NOT_REPEATED = frozenset({EXIT_USAGE, EXIT_USAGE_BSD, EXIT_CONFIG})
"""The same command would end in the same way."""

POD_VERBS = ("pretrain", "finetune")
"""Verbs of bert-jax that train on several hosts together."""


@dataclass(frozen=True, kw_only=True)
class SliceShape:
    """As much of a slice as a host has to know; see bert_jax/hardware/tpu_slices.json."""

    name: str
    hosts: int
    devices: int
    chips: int

    def __post_init__(self) -> None:
        if min(self.hosts, self.devices, self.chips) < 1 or self.chips % self.hosts:
            raise ConfigError(
                f"slice {self.name}: {self.hosts} hosts, {self.chips} chips, {self.devices} "
                "devices; expected as many chips on each host"
            )

    @property
    def chips_per_host(self) -> int:
        """Each host has as many."""
        return self.chips // self.hosts


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the hosts of one life of a slice have to do.

    Attributes:
      bundle: sha256 of the code.
      run_url: gs://BUCKET/runs/RUN_ID.
      mode: "pod", one run on all chips; "lanes", `bert-jax glue` with one process on each chip.
      arguments: of `bert-jax`, without --run, --checkpoints, --output, --lanes; may say
        @data/NAME and @code anywhere.
      data: name -> gs:// folder that is copied to each host.
      secrets: environment variable -> its name in Secret Manager.
      max_hours: the unit is stopped after so long, however it goes.
      hosts: internal addresses in the order of the worker numbers.
      requires: package -> version that each host must have ("jax", "libtpu", ...).
    """

    version: int = VERSION
    run_id: str
    incarnation: int
    slice: SliceShape
    bundle: str
    run_url: str
    mode: Literal["pod", "lanes"]
    arguments: tuple[str, ...]
    data: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    max_hours: float
    hosts: tuple[str, ...]
    coordinator_port: int = COORDINATOR_PORT
    requires: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ConfigError(
                f"the order has version {self.version}, this code reads {VERSION}: launch again "
                "with the launcher of the same bundle"
            )
        names.run_id(self.run_id)
        names.sha(self.bundle)
        if names.url(self.run_url) != self.run_url or not self.run_url.endswith(
            f"/runs/{self.run_id}"
        ):
            raise ConfigError(f"run_url {self.run_url!r}: expected gs://.../runs/{self.run_id}")
        if self.incarnation < 0:
            raise ConfigError(f"incarnation {self.incarnation}: expected 0 or more")
        if self.max_hours <= 0:
            raise ConfigError(f"max_hours {self.max_hours}: expected more than 0")
        if not 1024 <= self.coordinator_port <= 65535:
            raise ConfigError(f"coordinator_port {self.coordinator_port}: expected 1024 to 65535")
        self._check_hosts()
        self._check_names()

    def _check_hosts(self) -> None:
        if len(self.hosts) != self.slice.hosts or len(set(self.hosts)) != len(self.hosts):
            raise ConfigError(
                f"hosts has {list(self.hosts)}: {self.slice.name} has {self.slice.hosts} hosts, "
                "each with an address of its own"
            )
        for address in self.hosts:
            if not names.ADDRESS.fullmatch(address):
                raise ConfigError(f"hosts has {address!r}, which is no address")

    def _check_names(self) -> None:
        if not self.arguments:
            raise ConfigError("arguments is empty: expected those of bert-jax, its verb first")
        verbs = POD_VERBS if self.mode == "pod" else ("glue",)
        if self.arguments[0] not in verbs:
            raise ConfigError(
                f"mode {self.mode} runs bert-jax {' or '.join(verbs)}, not {self.arguments[0]!r}"
            )
        for key, place in self.data.items():
            names.name(key, "data")
            names.url(place)
        for argument in self.arguments:
            for used in names.DATA_TOKEN.findall(argument):
                # A path may go on behind the name: @data/wiki/train.
                if used not in self.data:
                    raise ConfigError(
                        f"argument {argument!r} speaks of data {used!r}; the order has "
                        f"{', '.join(self.data) or 'none'}"
                    )
        for variable, secret in self.secrets.items():
            if not names.VARIABLE.fullmatch(variable):
                raise ConfigError(f"secret {variable!r}: expected the name of a variable")
            if not names.SECRET.fullmatch(secret):
                raise ConfigError(
                    f"secret {variable} is {secret!r}: expected "
                    "projects/PROJECT/secrets/NAME/versions/latest"
                )

    @property
    def folder(self) -> names.IncarnationFolder:
        """Where reports of this life go."""
        return names.RunFolder(self.run_url).incarnation(self.incarnation)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is not as it should be.

    Attributes:
      check: its name, as "chips".
      fix: what to do about it.
      anywhere: another slice would have it too, as data that is not there.
    """

    check: str
    found: str
    expected: str
    fix: str
    anywhere: bool = False

    def __str__(self) -> str:
        return f"{self.check}: found {self.found}; expected {self.expected}; {self.fix}"


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What a host found when it looked itself over.

    Attributes:
      ok: nothing stands against training; `warnings` may be there all the same.
      address: of the host, as the others reach it.
      versions: package -> installed version.
      time: seconds since 1970.
    """

    host: int
    ok: bool
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    address: str
    versions: dict[str, str]
    time: float


Phase = Literal["fetching", "waiting", "training", "collecting", "saving", "ended"]


@dataclass(frozen=True, kw_only=True)
class State:
    """A host's heartbeat.

    Attributes:
      phase: fetching code, data and the run so far; waiting for the other hosts; training;
        collecting what all lanes have found; saving because it was asked to stop; ended.
      pid: of the trainer, if it runs.
      line: the last one of the log.
      step: of the newest complete checkpoint, told by host 0; on lanes how many cells are
        finished, as far as the host knows; None if there is none.
      rss_bytes: memory of the trainer and its children.
      disk_free_bytes: where the run folder lies.
      time: seconds since 1970.
    """

    host: int
    phase: Phase
    pid: int | None
    line: str
    step: int | None
    rss_bytes: int
    disk_free_bytes: int
    time: float


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a host's trainer ended; `meaning` is a sentence."""

    host: int
    code: int
    meaning: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Done:
    """The run is complete."""

    run_id: str
    incarnation: int
    time: float


def meaning(code: int) -> str:
    """What an exit code says."""
    return MEANINGS.get(code, f"ended with code {code}, which is not one of ours")
