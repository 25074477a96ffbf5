"""Names in the bucket and on the hosts: which are possible, and what each object is called.

    gs://BUCKET/bundles/<sha>.tar.gz     code, named by the sha256 of the tar
    gs://BUCKET/runs/RUN_ID/             all that there is to know about a run:
        manifest.json                    what is run, and how it is rented
        LEASE                            who looks after the run
        run/                             the run folder, mirrored from host 0
        run/checkpoints/                 written by the trainer itself
        incarnations/<n>/                one life of a slice, n = 0, 1, ...
            order.json                   `protocol.Order`: all that a host needs to know
            host-<i>.preflight.json      `protocol.Preflight`
            host-<i>.state.json          `protocol.State`, every HEARTBEAT_SECONDS
            host-<i>.exit.json           `protocol.Exit`, when the trainer has ended
            host-<i>.log                 what the host said, every HEARTBEAT_SECONDS and at the end
        DONE.json                        `protocol.Done`: the run is complete

Standard library only, from Python 3.10 on (what the hosts' systems have).
"""

import hashlib
import re
from dataclasses import dataclass

from bert_jax.errors import ConfigError

# Short enough for names of machines and labels with a suffix, and plain in every shell.
_RUN_ID = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_SHA = re.compile(r"[0-9a-f]{64}")
_URL = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._=@+-]+)*")
SECRET = re.compile(r"projects/[a-z0-9:.-]+/secrets/[A-Za-z0-9_-]+/versions/(latest|[0-9]+)")
ADDRESS = re.compile(r"[A-Za-z0-9.:-]+")
DATA_TOKEN = re.compile(r"@data/([A-Za-z0-9._-]+)")
"""Somewhere in an argument: the folder on the host of the data of that name."""


def run_id(text: str) -> str:
    """`text`, if it can be a run's name.

    Raises:
      ConfigError: it cannot.
    """
    if not _RUN_ID.fullmatch(text):
        raise ConfigError(
            f"run id {text!r}: expected 1 to 40 of a-z, 0-9 and -, a letter first and no - last"
        )
    return text


def name(text: str, what: str) -> str:
    """`text`, if it is a plain name: letters, digits, dot, dash, underscore.

    Raises:
      ConfigError: it is not; `what` says what was to be named.
    """
    if not _NAME.fullmatch(text) or text.startswith("."):
        raise ConfigError(
            f"{what} {text!r}: expected up to 63 letters, digits, dots, dashes and underscores"
        )
    return text


def sha(text: str) -> str:
    """`text`, if it is a bundle's name.

    Raises:
      ConfigError: it is not.
    """
    if not _SHA.fullmatch(text):
        raise ConfigError(f"bundle {text!r}: expected a sha256 of 64 hexadecimal digits")
    return text


def url(text: str) -> str:
    """A place in a bucket, without a slash at its end.

    Raises:
      ConfigError: it is none.
    """
    plain = text.rstrip("/")
    if not _URL.fullmatch(plain) or "/../" in f"{plain}/" or "/./" in f"{plain}/":
        raise ConfigError(f"{text!r} is no place in a bucket; expected gs://BUCKET/FOLDER")
    return plain


def bundle_url(bucket: str, bundle: str) -> str:
    """Where the code of that sha lies; `bucket` as gs://NAME."""
    return f"{url(bucket)}/bundles/{sha(bundle)}.tar.gz"


def run_url(bucket: str, run: str) -> str:
    """The folder of a run."""
    return f"{url(bucket)}/runs/{run_id(run)}"


def unit_name(run: str, incarnation: int) -> str:
    """The systemd unit of one life of a run: a second start of the same name is refused."""
    return f"bert-{run_id(run)}-{incarnation}"


def slice_prefix(run: str) -> str:
    """How the cloud's names of a run's slices begin: the same id in another bucket has another.

    The number of the life follows, and on Compute Engine a suffix for each machine: 63 letters
    are allowed in all.
    """
    digest = hashlib.sha256(run.encode()).hexdigest()
    return f"bert-{run.rsplit('/', 1)[1]}-{digest[:8]}"


@dataclass(frozen=True)
class RunFolder:
    """The objects of a run, by name."""

    url: str

    @property
    def manifest(self) -> str:
        """What is run."""
        return f"{self.url}/manifest.json"

    @property
    def lease(self) -> str:
        """Who looks after the run."""
        return f"{self.url}/LEASE"

    @property
    def done(self) -> str:
        """There when the run is complete."""
        return f"{self.url}/DONE.json"

    @property
    def run(self) -> str:
        """The mirrored run folder."""
        return f"{self.url}/run"

    @property
    def checkpoints(self) -> str:
        """Written by the trainer itself."""
        return f"{self.run}/checkpoints"

    def incarnation(self, number: int) -> "IncarnationFolder":
        """One life of a slice."""
        return IncarnationFolder(f"{self.url}/incarnations/{number}")


@dataclass(frozen=True)
class IncarnationFolder:
    """The objects of one life of a slice, by name."""

    url: str

    @property
    def order(self) -> str:
        """What the hosts have to do."""
        return f"{self.url}/order.json"

    def preflight(self, host: int) -> str:
        """What a host found when it looked itself over."""
        return f"{self.url}/host-{host}.preflight.json"

    def state(self, host: int) -> str:
        """A host's heartbeat."""
        return f"{self.url}/host-{host}.state.json"

    def exit(self, host: int) -> str:
        """How a host's trainer ended."""
        return f"{self.url}/host-{host}.exit.json"

    def log(self, host: int) -> str:
        """What a host said."""
        return f"{self.url}/host-{host}.log"
