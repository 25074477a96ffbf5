"""Defines the objects of a run in the bucket and validates the names that end up in URLs.

    gs://BUCKET/bundles/<sha>.tar.gz     code, named by the sha256 of the uncompressed tar file
    gs://BUCKET/runs/RUN_ID/             everything about one run:
        manifest.json                    `RunManifest`: the job and the slices to create for it
        LEASE                            which launcher manages the run
        STOP                             exists after `stop` or `down`: no new slice is created
        restart_loop.json                `LoopState`: the saved state of the restart loop
        run/                             the run folder, copied from host 0
        run/checkpoints/                 written by the trainer itself
        attempts/<n>/                    one slice of the run, n = 0, 1, ...
            job.json                     `protocol.JobSpec`: everything a host needs to start
            host-<i>.preflight.json      `protocol.PreflightReport`
            host-<i>.heartbeat.json      `protocol.Heartbeat`, every HEARTBEAT_SECONDS
            host-<i>.exit.json           `protocol.ExitReport`, when the trainer has exited
            host-<i>.log                 the host's log, every HEARTBEAT_SECONDS and at the end
        DONE.json                        `protocol.DoneMarker`: the run is complete

A run of layout version 1, which was launched before these names existed, has other names for four:

    restart_loop.json           babysit.json
    attempts/<n>/               incarnations/<n>/
    job.json                    order.json
    host-<i>.heartbeat.json     host-<i>.state.json

Uses only the standard library and runs on Python 3.10, which TPU VM images ship.
"""

import hashlib
import re
from dataclasses import dataclass

from bert_jax.errors import ConfigError

LAYOUT_VERSION = 2

# Short enough to be part of machine names and labels, and without characters that a shell expands.
_RUN_ID_PATTERN = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ENV_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_SHA_PATTERN = re.compile(r"[0-9a-f]{64}")
_URL_PATTERN = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._=@+-]+)*")
SECRET_PATTERN = re.compile(
    r"projects/[a-z0-9:.-]+/secrets/[A-Za-z0-9_-]+/versions/(latest|[0-9]+)"
)
ADDRESS_PATTERN = re.compile(r"[A-Za-z0-9.:-]+")
DATA_REFERENCE_PATTERN = re.compile(r"@data/([A-Za-z0-9._-]+)")
"""Matches @data/NAME anywhere in an argument; hosts replace it with the local data folder."""


def validate_run_id(text: str) -> str:
    """Returns `text` if it is a valid run id.

    Raises:
      ConfigError: it is not.
    """
    if not _RUN_ID_PATTERN.fullmatch(text):
        raise ConfigError(
            f"run id {text!r}: expected 1 to 40 characters of a-z, 0-9 and -, starting with a "
            "letter and not ending with -"
        )
    return text


def validate_name(text: str, kind: str) -> str:
    """Returns `text` if it is a plain name of letters, digits, dots, dashes and underscores.

    Raises:
      ConfigError: it is not; `kind` tells what the name is for.
    """
    if not _NAME_PATTERN.fullmatch(text) or text.startswith("."):
        raise ConfigError(
            f"{kind} {text!r}: expected up to 63 letters, digits, dots, dashes and underscores"
        )
    return text


def validate_sha(text: str) -> str:
    """Returns `text` if it is the sha256 of a bundle.

    Raises:
      ConfigError: it is not.
    """
    if not _SHA_PATTERN.fullmatch(text):
        raise ConfigError(f"bundle {text!r}: expected a sha256 of 64 hexadecimal digits")
    return text


def validate_url(text: str) -> str:
    """Returns a gs:// URL without trailing slashes.

    Raises:
      ConfigError: `text` is not the URL of a bucket or of a folder in one.
    """
    stripped = text.rstrip("/")
    if not _URL_PATTERN.fullmatch(stripped) or re.search(r"/\.\.?/", f"{stripped}/"):
        raise ConfigError(f"{text!r} is not a bucket URL; expected gs://BUCKET/FOLDER")
    return stripped


def bundle_url(bucket: str, bundle: str) -> str:
    """Returns the URL of the code bundle with that sha256; `bucket` is gs://NAME."""
    return f"{validate_url(bucket)}/bundles/{validate_sha(bundle)}.tar.gz"


def run_url(bucket: str, run: str) -> str:
    """Returns the URL of a run's folder."""
    return f"{validate_url(bucket)}/runs/{validate_run_id(run)}"


def unit_name(run: str, attempt: int) -> str:
    """Returns the systemd unit name of an attempt; systemd refuses to start a name twice."""
    return f"bert-{validate_run_id(run)}-{attempt}"


def slice_name_prefix(run_folder_url: str) -> str:
    """Returns the prefix of the names of a run's slices.

    It contains a hash of the URL, so that equal run ids in two buckets of a project differ. The
    attempt number follows, and on Compute Engine a suffix per machine; the limit is 63 characters.
    """
    digest = hashlib.sha256(run_folder_url.encode()).hexdigest()
    return f"bert-{run_folder_url.rsplit('/', 1)[1]}-{digest[:8]}"


@dataclass(frozen=True)
class RunFolder:
    """Names the objects of a run.

    Attributes:
      layout_version: 1 for a run with the old names that the module docstring lists, else 2.
    """

    url: str
    layout_version: int = LAYOUT_VERSION

    @property
    def manifest(self) -> str:
        """Returns the URL of the run manifest."""
        return f"{self.url}/manifest.json"

    @property
    def lease(self) -> str:
        """Returns the URL of the lease, which names the launcher that manages the run."""
        return f"{self.url}/LEASE"

    @property
    def loop_state(self) -> str:
        """Returns the URL of the saved state of the restart loop."""
        return f"{self.url}/{'babysit' if self.layout_version == 1 else 'restart_loop'}.json"

    @property
    def done_marker(self) -> str:
        """Returns the URL of the object that exists once the run is complete."""
        return f"{self.url}/DONE.json"

    @property
    def run(self) -> str:
        """Returns the URL of the copy of the run folder."""
        return f"{self.url}/run"

    @property
    def checkpoints(self) -> str:
        """Returns the URL of the checkpoints, which the trainer writes directly."""
        return f"{self.run}/checkpoints"

    @property
    def attempts(self) -> str:
        """Returns the URL of the folder that holds one folder per attempt."""
        return f"{self.url}/{'incarnations' if self.layout_version == 1 else 'attempts'}"

    def attempt(self, number: int) -> "AttemptFolder":
        """Returns the folder of one attempt."""
        return AttemptFolder(f"{self.attempts}/{number}", self.layout_version)


@dataclass(frozen=True)
class AttemptFolder:
    """Names the objects of one attempt, that is, of one slice of a run."""

    url: str
    layout_version: int = LAYOUT_VERSION

    @property
    def job_spec(self) -> str:
        """Returns the URL of the job spec, which tells the hosts what to run."""
        return f"{self.url}/{'order' if self.layout_version == 1 else 'job'}.json"

    def preflight_report(self, host: int) -> str:
        """Returns the URL of a host's preflight report."""
        return f"{self.url}/host-{host}.preflight.json"

    def heartbeat(self, host: int) -> str:
        """Returns the URL of a host's heartbeat."""
        return f"{self.url}/host-{host}.heartbeat.json"

    def exit_report(self, host: int) -> str:
        """Returns the URL of the report of how a host's trainer exited."""
        return f"{self.url}/host-{host}.exit.json"

    def log(self, host: int) -> str:
        """Returns the URL of a host's log."""
        return f"{self.url}/host-{host}.log"
