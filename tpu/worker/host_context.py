"""Identifies one host in one attempt of a run: its number, its job spec and its folders.

$HOME/bert_jax/<sha>/            the code; .venv in it is the trainer's Python environment
               data/<name>-<id>/ a copy of each data folder
               runs/<run id>/    working directory of the trainer. Paths that a run saves are
                                 relative to it, so they are the same on every host and attempt:
                   run/          the run folder
                   data/<name>   a link to the copy of the data
                   configs, bundle   links to the code
                   compiled/     compiled programs, in shards mode
                   <n>.log, <n>.exit.json   of attempt n
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import ConfigError
from tpu import bucket_layout, protocol, strict_json
from tpu.worker import metadata_server, storage
from tpu.worker.settings import Settings

CODE_ROOT = Path(__file__).resolve().parents[2]
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class HostContext:
    """Names the folders and files of a run on this machine.

    Attributes:
      run_url: URL of the run in the bucket.
    """

    run_url: str
    attempt: int

    @property
    def run_id(self) -> str:
        """Returns the last part of the run URL."""
        return self.run_url.rsplit("/", 1)[1]

    @property
    def root(self) -> Path:
        """Returns the folder of everything that this project keeps on the machine."""
        return Path.home() / "bert_jax"

    @property
    def workdir(self) -> Path:
        """Returns the working directory of the trainer."""
        return self.root / "runs" / self.run_id

    @property
    def run_folder(self) -> Path:
        """Returns the run folder."""
        return self.workdir / "run"

    @property
    def compilation_cache(self) -> Path:
        """Returns the folder of compiled programs in shards mode; other runs use the run folder."""
        return self.workdir / "compiled"

    @property
    def log_file(self) -> Path:
        """Returns the log file of this attempt."""
        return self.workdir / f"{self.attempt}.log"

    @property
    def exit_file(self) -> Path:
        """Returns the file of this attempt's exit report."""
        return self.workdir / f"{self.attempt}.exit.json"

    @property
    def unit_name(self) -> str:
        """Returns the name of the systemd unit."""
        return bucket_layout.unit_name(self.run_id, self.attempt)

    @property
    def attempt_folder(self) -> bucket_layout.AttemptFolder:
        """Returns the bucket folder of this attempt's reports."""
        return bucket_layout.RunFolder(self.run_url).attempt(self.attempt)


def parse_context(run_url: str, attempt: str) -> HostContext:
    """Parses the arguments of the agent that name the run and the attempt.

    Raises:
      ConfigError: one of them is invalid.
    """
    found = re.fullmatch(r"(.+)/runs/([^/]+)", bucket_layout.validate_url(run_url))
    if not found:
        raise ConfigError(f"{run_url!r}: expected gs://BUCKET/runs/RUN_ID")
    bucket_layout.validate_run_id(found[2])
    if not attempt.isdecimal():
        raise ConfigError(f"attempt {attempt!r}: expected 0, 1, ...")
    return HostContext(run_url=bucket_layout.validate_url(run_url), attempt=int(attempt))


def read_job_spec(context: HostContext) -> protocol.JobSpec:
    """Reads the job spec of this attempt.

    Raises:
      ConfigError: there is none, or it belongs to another run or attempt.
      StorageError: it cannot be read.
    """
    url = context.attempt_folder.job_spec
    text = storage.read(url)
    if text is None:
        raise ConfigError(f"{url} does not exist: launch the run again")
    job_spec = strict_json.from_text(protocol.JobSpec, text, url)
    if (job_spec.run_url, job_spec.attempt) != (context.run_url, context.attempt):
        raise ConfigError(f"{url} is for {job_spec.run_url}, attempt {job_spec.attempt}")
    return job_spec


def resolve_host_number(host_argument: str, job_spec: protocol.JobSpec, settings: Settings) -> int:
    """Returns the number of this host; "auto" looks it up on the metadata server.

    Raises:
      ConfigError: the slice has no such host, or the number cannot be found out.
    """
    if host_argument != AUTO:
        if not host_argument.isdecimal() or int(host_argument) >= job_spec.slice.hosts:
            raise ConfigError(
                f"host {host_argument!r}: expected 0 to {job_spec.slice.hosts - 1}, or auto"
            )
        return int(host_argument)
    worker_number = metadata_server.get(settings.metadata, metadata_server.WORKER_NUMBER)
    if worker_number and worker_number.isdecimal() and int(worker_number) < job_spec.slice.hosts:
        return int(worker_number)
    address = metadata_server.get(settings.metadata, metadata_server.INTERNAL_IP)
    if address in job_spec.host_addresses:
        return job_spec.host_addresses.index(address)
    raise ConfigError(
        f"cannot find out this host's number: the metadata server at {settings.metadata} returned "
        f"worker {worker_number!r} and address {address!r}; the job spec has the addresses "
        f"{', '.join(job_spec.host_addresses)}"
    )


def trainer_python(settings: Settings) -> Path:
    """Returns the Python interpreter of the trainer."""
    venv_python = CODE_ROOT / ".venv" / "bin" / "python"
    return settings.python or (venv_python if venv_python.exists() else Path(sys.executable))
