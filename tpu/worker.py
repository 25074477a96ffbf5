"""Runs a job on one host of a slice: prepares the host, trains, and copies results to the bucket.

Started by tpu/host/start.sh on a slice of the launcher, or by a SkyPilot task (tpu/sky/). SIGTERM,
from either or because of a preemption notice, is forwarded to the trainers, which save and exit.

    $HOME/bert_jax/runs/RUN_ID/     working directory of the trainer. Paths that a run saves are
                                    relative to it, so they are the same on every host and attempt:
        run/                        the run folder
        data/NAME                   copies of the data folders
        code, configs               links to the code

Uses only the standard library and runs on Python 3.10, which TPU VM images ship.
"""

import contextlib
import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from bert_jax.errors import UserError
from tpu.gcloud import Gcloud, GcloudError, redact
from tpu.job import (
    DATA_REFERENCE,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NOT_READY,
    EXIT_SAVED,
    EXIT_TERMINATED,
    Job,
)

ROOT = Path(__file__).resolve().parents[1]
_METADATA = "http://metadata.google.internal"
_COORDINATOR_PORT = 8476
_COPY_SECONDS = 3600
_CHECKPOINTS = r"(.*/)?checkpoints/.*"
_TEMPORARY = (
    r"(.*/)?lock$|.*\.tmp$|(.*/)?\.[^/]*\.partial(/.*)?$|(.*/)?[^/]*\.orbax-checkpoint-tmp.*"
)
# Present only when everything else in their folder is, so they are copied last.
_LAST_FILES = r"(.*/)?(finished|checksums)\.json$"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """Identifies this host: its number, all hosts' addresses, and the attempt of the run."""

    number: int
    addresses: tuple[str, ...]
    attempt: str


def find_host(environment: Mapping[str, str]) -> Host:
    """Returns this host, from the variables of SkyPilot or of the launcher.

    Raises:
      UserError: they are not set, or the metadata server does not know the number of this host.
    """
    if "SKYPILOT_NODE_RANK" in environment:
        addresses = environment["SKYPILOT_NODE_IPS"]
        # The id of a managed job stays the same when the job is restarted on other machines.
        task = f"{environment.get('SKYPILOT_TASK_ID', '')} {addresses}"
        attempt = f"sky-{hashlib.sha256(task.encode()).hexdigest()[:12]}"
        number = environment["SKYPILOT_NODE_RANK"]
        return Host(number=int(number), addresses=tuple(addresses.split()), attempt=attempt)
    if "BERT_TPU_HOSTS" not in environment:
        raise UserError(
            "this machine is not a host of a slice: BERT_TPU_HOSTS (set by tpu/tpuctl launch) and "
            "SKYPILOT_NODE_RANK (set by SkyPilot) are both missing"
        )
    addresses = environment["BERT_TPU_HOSTS"].split(",")
    found = "0" if len(addresses) == 1 else _metadata("attributes/agent-worker-number")
    if found is None or not found.isdecimal() or int(found) >= len(addresses):
        raise UserError(
            f"the metadata server returned the worker number {found!r}, expected 0 to "
            f"{len(addresses) - 1}"
        )
    attempt = environment.get("BERT_TPU_ATTEMPT", "1")
    return Host(number=int(found), addresses=tuple(addresses), attempt=attempt)


def work(job: Job) -> int:
    """Runs the job on this host and returns the exit code, which the bucket has, too."""
    host = find_host(os.environ)
    if len(host.addresses) != job.slice_type.hosts:
        raise UserError(
            f"the slice has {len(host.addresses)} hosts, but {job.slice} has "
            f"{job.slice_type.hosts}; set SLICE to the slice that was rented"
        )
    return _Worker(job, host).run()


class _Worker:
    def __init__(self, job: Job, host: Host):
        self._job, self._host, self._gcloud = job, host, Gcloud()
        self._home = Path.home() / "bert_jax" / "runs" / job.run_id
        self._home.mkdir(parents=True, exist_ok=True)
        self._log = _Log(self._home / f"{host.attempt}.log")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stop_requested, self._stopped_pids = False, set[int]()
        self._mirror_seconds = float(os.environ.get("BERT_TPU_MIRROR_SECONDS", "60"))
        self._folder = job.attempt_url(host.attempt)

    def run(self) -> int:
        # Must not log: the signal may have interrupted a log call that holds the lock.
        signal.signal(signal.SIGTERM, lambda signum, frame: self._stop())
        # One host that gets SIGTERM is enough: JAX's preemption service makes all of them save
        # the same step.
        threading.Thread(target=self._watch_for_preemption, daemon=True).start()
        number = self._host.number
        self._log.info(f"host {number} of {self._job.slice}, attempt {self._host.attempt}")
        self._upload_log()  # shows the launcher that this host has started
        with contextlib.suppress(GcloudError):  # of the same attempt, if SkyPilot repeats it
            self._gcloud.find("storage", "rm", f"{self._folder}/host-{number}.exit-*")
        try:
            code = self._prepare_and_train()
        except UserError as error:
            self._log.info(f"error: {error}")
            is_permanent = isinstance(error, GcloudError) and error.kind in ("permission", "absent")
            code = EXIT_CONFIG if is_permanent else EXIT_NOT_READY
        except Exception:  # without an exit code, the slice would be rented until the limit
            self._log.info(f"error: unexpected error in the worker:\n{traceback.format_exc()}")
            code = EXIT_FAILED
        self._log.info(f"exit code {code}")
        self._upload_log()
        self._copy("cp", "-", f"{self._folder}/host-{number}.exit-{code}", stdin=f"{code}\n")
        return code

    def _prepare_and_train(self) -> int:
        self._run_bootstrap()
        self._fetch()
        secrets = {name: self._access_secret(secret) for name, secret in self._job.secrets.items()}
        self._log.secrets = secrets
        if not self._job.is_sharded:
            return self._run_processes([(self._pod_argv(), {**self._pod_variables(), **secrets})])
        shards = range(self._job.slice_type.chips)
        per_host = len(shards) // self._job.slice_type.hosts
        own_shards = shards[self._host.number * per_host :][:per_host]
        code = self._run_processes(
            [
                (self._glue_argv("--num-shards", str(len(shards)), "--shard", str(shard)),
                 _chip_variables(chip, self._home / "compiled"))
                for chip, shard in enumerate(own_shards)
            ]
        )  # fmt: skip
        # Host 0 repeats failed runs when it writes the table.
        if code not in (EXIT_DONE, EXIT_FAILED):
            return code
        return self._write_table() if self._host.number == 0 else EXIT_DONE

    def _run_bootstrap(self) -> None:
        done = subprocess.run(
            [str(ROOT / "tpu/host/bootstrap.sh")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._log.info(done.stdout.decode("utf-8", "replace").strip())
        if done.returncode != 0:
            raise UserError("the Python environment could not be installed; see the lines above")
        python = ROOT / ".venv/bin/python"
        self._python = os.environ.get("BERT_TPU_PYTHON") or str(python)

    def _fetch(self) -> None:
        """Copies the data and the run folder to this host; checkpoints stay in the bucket."""
        for name, target in (("code", ROOT), ("configs", ROOT / "configs")):
            (self._home / name).unlink(missing_ok=True)
            (self._home / name).symlink_to(target)
        for name, url in self._job.data.items():
            local = self._home / "data" / name
            local.mkdir(parents=True, exist_ok=True)
            self._copy("rsync", "--recursive", url, str(local))
        # Files of an earlier attempt on this machine may be outdated.
        shutil.rmtree(self._home / "run", ignore_errors=True)
        self._fetch_run_folder()

    def _fetch_run_folder(self) -> None:
        run_folder = self._home / "run"
        run_folder.mkdir(exist_ok=True)
        words = ("rsync", "--recursive", f"--exclude={_CHECKPOINTS}", f"{self._job.url}/run")
        self._copy(*words, str(run_folder), missing_ok=True)

    def _mirror(self) -> None:
        """Copies new files of the run folder to the bucket, without temporary ones."""
        if not (self._job.is_sharded or self._host.number == 0):
            return
        # In one training on all chips, the trainer writes checkpoints to the bucket itself.
        exclude = _TEMPORARY if self._job.is_sharded else f"{_TEMPORARY}|{_CHECKPOINTS}"
        # Two passes: the files that mark a complete folder are copied when everything else has
        # arrived.
        for pattern in (f"{exclude}|{_LAST_FILES}", exclude):
            words = ("--recursive", f"--exclude={pattern}", str(self._home / "run"))
            self._copy("rsync", *words, f"{self._job.url}/run")

    def _access_secret(self, secret: str) -> str:
        _, project, _, name, *version = secret.split("/")
        words = ("secrets", "versions", "access", version[1] if version else "latest")
        # Not through `Gcloud`, which redacts what looks like a token.
        done = subprocess.run(
            ["gcloud", *words, f"--secret={name}", f"--project={project}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if done.returncode != 0:
            raise GcloudError(["gcloud", *words], done.stderr.decode("utf-8", "replace"))
        return done.stdout.decode().rstrip("\n")

    def _arguments(self) -> list[str]:
        return [
            DATA_REFERENCE.sub(r"data/\1\2", word).replace("@code/", "code/")
            for word in self._job.arguments
        ]

    def _pod_argv(self) -> list[str]:
        checkpoints = f"{self._job.url}/run/checkpoints"
        # BERT_TPU_MOUNT: a folder below which buckets are mounted; the trainer then needs no gcsfs.
        if mount := os.environ.get("BERT_TPU_MOUNT"):
            checkpoints = f"{mount}/{checkpoints.removeprefix('gs://')}"
        output = "--output" if self._job.arguments[0] == "verify" else "--run"
        flags = (output, "run", "--checkpoints", checkpoints)
        return [self._python, "-m", "bert_jax", *self._arguments(), *flags]

    def _pod_variables(self) -> dict[str, str]:
        if len(self._host.addresses) == 1:
            return {}
        port = os.environ.get("BERT_TPU_COORDINATOR_PORT", _COORDINATOR_PORT)
        return {
            "BERT_JAX_COORDINATOR": f"{self._host.addresses[0]}:{port}",
            "BERT_JAX_NUM_PROCESSES": str(len(self._host.addresses)),
            "BERT_JAX_PROCESS_ID": str(self._host.number),
        }

    def _glue_argv(self, *flags: str) -> list[str]:
        return [self._python, "-m", "bert_jax", *self._arguments(), "--output", "run", *flags]

    def _run_processes(self, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> int:
        """Runs processes until all have exited and returns one exit code for them."""
        for argv, _ in commands:
            self._log.info(f"running {' '.join(argv)}")  # the variables have secrets
        readers: list[threading.Thread] = []
        for argv, variables in [] if self._stop_requested else commands:
            process = subprocess.Popen(
                argv,
                cwd=self._home,
                env={**os.environ, **_TRAINER_VARIABLES, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self._processes.append(process)
            assert process.stdout is not None
            readers.append(threading.Thread(target=self._log.copy, args=(process.stdout,)))
            readers[-1].start()
        next_copy = time.monotonic() + self._mirror_seconds
        while any(process.poll() is None for process in self._processes):
            time.sleep(0.2)
            if self._stop_requested:
                self._stop()  # again, for processes that were started meanwhile
            if time.monotonic() >= next_copy:
                self._upload_log()
                with contextlib.suppress(UserError):  # the next one copies what this one has not
                    self._mirror()
                next_copy = time.monotonic() + self._mirror_seconds
        for reader in readers:
            reader.join(timeout=10)  # a process that the trainer has left behind may hold the pipe
        # As a shell does for a process that a signal has ended.
        codes = [code if code >= 0 else 128 - code for code in (p.wait() for p in self._processes)]
        self._processes.clear()
        self._mirror()
        return combine_exit_codes(codes, stop_requested=self._stop_requested)

    def _write_table(self) -> int:
        """Waits for the other hosts, then writes the table of results from all hosts' runs."""
        waiting = set(range(1, len(self._host.addresses)))
        while waiting:
            listed = self._gcloud.find("storage", "ls", f"{self._folder}/") or ""
            for other in sorted(waiting):
                _, found, rest = listed.partition(f"/host-{other}.exit-")
                # The exit code is part of the file's name, so listing the folder is enough.
                code = int(rest.split()[0]) if found else None
                if code == EXIT_DONE:
                    waiting.discard(other)
                elif code is not None:
                    self._log.info(f"host {other} has exited with code {code}")
                    return code
            if self._stop_requested:
                return EXIT_SAVED
            time.sleep(min(5.0, self._mirror_seconds))
        self._fetch_run_folder()
        return self._run_processes(
            [(self._glue_argv(), _chip_variables(0, self._home / "compiled"))]
        )

    def _stop(self) -> None:
        self._stop_requested = True
        for process in self._processes:
            if process.pid not in self._stopped_pids:
                self._stopped_pids.add(process.pid)
                process.terminate()

    def _watch_for_preemption(self) -> None:
        """Sends SIGTERM to this process when the machine is about to be preempted."""
        while not self._stop_requested:
            event = _metadata("maintenance-event") or ""
            # Machines with TPU chips cannot be migrated, so other events do not matter.
            if _metadata("preempted") == "TRUE" or event.startswith("TERMINATE"):
                self._log.info("the machine is about to be preempted")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(2)  # the notice comes about 30 seconds before

    def _upload_log(self) -> None:
        with contextlib.suppress(UserError):
            url = f"{self._folder}/host-{self._host.number}.log"
            self._gcloud.run("storage", "cp", str(self._log.file), url)

    def _copy(self, *words: str, stdin: str = "", missing_ok: bool = False) -> None:
        """Copies to or from the bucket, with three tries if an error may be temporary."""
        for delay in (2.0, 8.0, None):
            try:
                self._gcloud.run("storage", *words, stdin=stdin, timeout=_COPY_SECONDS)
                return
            except GcloudError as error:
                if error.kind == "absent" and missing_ok:
                    return
                if delay is None or error.kind in ("permission", "absent"):
                    raise
                time.sleep(delay)


_TRAINER_VARIABLES = {
    "PYTHONPATH": str(ROOT),
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "EPATH_USE_TF": "0",  # gs:// without TensorFlow
    # Or gcsfs asks another API for the kind of bucket, and waits a minute where it may not.
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}


class _Log:
    """Writes a log file and stdout, without secrets.

    Attributes:
      secrets: variable -> value; replaced by the variable's name.
    """

    def __init__(self, file: Path):
        self.file, self.secrets, self._lock = file, dict[str, str](), threading.Lock()

    def info(self, line: str) -> None:
        """Writes a line of the worker, with the time."""
        self.write(f"[worker {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())}] {line}")

    def copy(self, stream: BinaryIO) -> None:
        """Copies the output of a trainer until it ends."""
        for line in stream:
            self.write(line.decode("utf-8", "replace").rstrip())

    def write(self, line: str) -> None:
        """Writes a line."""
        # Longest first, because one value may contain another.
        lines = [(part, name) for name, value in self.secrets.items() for part in value.split("\n")]
        for part, name in sorted(lines, key=lambda pair: -len(pair[0])):
            line = line.replace(part, f"<{name}>") if part else line
        line = redact(line, os.environ)
        with self._lock, self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def combine_exit_codes(codes: Sequence[int], *, stop_requested: bool) -> int:
    """Returns 75 if one process has saved, or had nothing to save yet; else the first except 0."""
    if EXIT_SAVED in codes or (stop_requested and (not codes or EXIT_TERMINATED in codes)):
        return EXIT_SAVED
    return next((code for code in codes if code != EXIT_DONE), EXIT_DONE)


def _chip_variables(chip: int, cache: Path) -> dict[str, str]:
    """Returns the variables with which libtpu shows a process only one chip of its host.

    From a gist of JAX's makers (skye/f82ba45d2445bb19d53545538754f9a3) and jax/_src/
    test_multiprocess.py; not run on hardware by us.
    """
    port = str(_COORDINATOR_PORT + chip)
    return {
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
        "TPU_PROCESS_PORT": port,
        "CLOUD_TPU_TASK_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Processes of one host would overwrite one another's compiled programs.
        "BERT_JAX_COMPILATION_CACHE": str(cache / str(chip)),
    }


def _metadata(key: str) -> str | None:
    """Returns a value of the machine's metadata; None if there is no such value or no server."""
    server = os.environ.get("BERT_TPU_METADATA", _METADATA)
    request = urllib.request.Request(
        f"{server}/computeMetadata/v1/instance/{key}", headers={"Metadata-Flavor": "Google"}
    )
    # The metadata server is on the machine's own network, where a proxy from the environment
    # cannot reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError, ValueError):
        with opener.open(request, timeout=5) as response:
            return response.read().decode("utf-8").strip()
    return None
