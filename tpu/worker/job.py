"""Runs one attempt on one host: fetches, waits for the other hosts, trains, reports and exits.

SIGTERM (from systemd, from `stop` or because of a preemption notice) is forwarded to the trainer,
which saves and exits. After that, everything is copied to the bucket once more.
"""

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Generator
from types import FrameType

from bert_jax.errors import UserError
from bert_jax.io.file_lock import AlreadyLockedError, acquire_lock
from tpu import bucket_layout, protocol, strict_json
from tpu.protocol import DoneMarker, JobSpec
from tpu.worker import (
    host_context,
    peers,
    rendezvous,
    secret_manager,
    storage,
    subprocesses,
    trainer_commands,
)
from tpu.worker.bucket_sync import PodSync, ShardedSync
from tpu.worker.host_context import HostContext
from tpu.worker.log import HostLog, Redactor
from tpu.worker.metadata_server import PreemptionWatcher
from tpu.worker.reporter import Reporter
from tpu.worker.settings import Settings


def run_attempt(context: HostContext, host_number: int, settings: Settings) -> int:
    """Runs the attempt; returns the exit code, which the exit report in the bucket has, too.

    Raises:
      UserError: another process on this host runs the same run.
    """
    with _exclusive_lock(context):
        try:
            job_spec = host_context.read_job_spec(context)
            host_context.resolve_host_number(str(host_number), job_spec, settings)
        except UserError as error:
            exit_code = _exit_code_of(error)
            log = HostLog(context.log_file)
            reporter = Reporter(context, host_number, log, settings.heartbeat)
            reporter.write_exit_report(exit_code, str(error))
            return exit_code
        attempt = _HostAttempt(context, host_number, job_spec, settings)
        signal.signal(signal.SIGTERM, attempt.on_sigterm)
        watcher = PreemptionWatcher(settings.metadata, attempt.on_preemption)
        watcher.start()
        try:
            return attempt.run()
        finally:
            watcher.close()


class _HostAttempt:
    def __init__(
        self, context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
    ):
        self._context, self._host_number = context, host_number
        self._job_spec, self._settings = job_spec, settings
        self._log = HostLog(context.log_file)
        self._reporter = Reporter(context, host_number, self._log, settings.heartbeat)
        self._stop_requested = False
        chips_per_host = job_spec.slice.chips_per_host
        own_shards = range(host_number * chips_per_host, (host_number + 1) * chips_per_host)
        self._pod_sync = PodSync(context, host_number)
        self._sharded_sync = ShardedSync(context, own_shards, job_spec.slice.chips)

    def on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """Handles SIGTERM. Must not log: it may have interrupted a log call that holds the lock."""
        self._stop_requested = True

    def on_preemption(self, reason: str) -> None:
        """Handles a preemption notice; called in a thread of its own."""
        if not self._stop_requested:
            self._log.info(f"{reason}: saving")
            os.kill(os.getpid(), signal.SIGTERM)

    def run(self) -> int:
        """Runs everything from the first report to the exit report."""
        context, job_spec = self._context, self._job_spec
        self._log.info(
            f"host {self._host_number} of {job_spec.slice.name}, attempt {context.attempt}"
        )
        self._reporter.start()
        try:
            code = self._run_to_exit_code()
        except UserError as error:
            self._log.info(f"error: {error}")
            code = _exit_code_of(error)
        except Exception:
            self._log.info(f"error: unexpected error in the agent:\n{traceback.format_exc()}")
            code = protocol.EXIT_FAILED
        self._reporter.finish(code)
        if code == protocol.EXIT_DONE and self._host_number == 0:
            self._write_done_marker()
        return code

    def _run_to_exit_code(self) -> int:
        job_spec, settings = self._job_spec, self._settings
        trainer_commands.set_up_workdir(self._context, job_spec)
        sync = self._sharded_sync if job_spec.mode == "shards" else self._pod_sync
        sync.fetch()
        secrets = {
            name: secret_manager.access_secret(secret_name)
            for name, secret_name in job_spec.secrets.items()
        }
        self._log.redact = self._sharded_sync.redact = Redactor(secrets)
        if self._stop_requested:
            return protocol.EXIT_SAVED
        self._reporter.set_phase("waiting")
        rendezvous.wait_for_preflights(job_spec, settings.rendezvous)
        rendezvous.wait_for_units(
            job_spec, settings.rendezvous, lambda: self._stop_requested, self._log.info
        )
        self._reporter.mirror, self._reporter.progress = sync.mirror, sync.progress
        if job_spec.mode == "pod":
            return self._train_pod(secrets)
        return self._train_shards(secrets)

    def _train_pod(self, secrets: dict[str, str]) -> int:
        python = host_context.trainer_python(self._settings)
        command = trainer_commands.pod_command(
            self._host_number, self._job_spec, python, self._settings.mount
        )
        return self._run_commands([command], secrets)

    def _train_shards(self, secrets: dict[str, str]) -> int:
        python = host_context.trainer_python(self._settings)
        others = [each for each in range(self._job_spec.slice.hosts) if each != self._host_number]
        self._reporter.also_check = lambda: peers.stop_with_peers(
            self._job_spec, others, self.on_preemption
        )
        code = self._run_commands(
            trainer_commands.shard_commands(
                self._context, self._host_number, self._job_spec, python
            ),
            secrets,
        )
        if code not in (protocol.EXIT_DONE, protocol.EXIT_FAILED):
            return code
        # Host 0 repeats failed jobs at the end, so every host waits until then.
        self._sharded_sync.mirror()
        self._reporter.set_phase("collecting")
        waiting = peers.PeerWaiter(
            self._job_spec, self._settings.heartbeat, self._should_stop, self._log.info
        )
        if self._host_number != 0:
            return waiting.wait_for_table()
        code = waiting.wait_for_shards(others)
        if code != protocol.EXIT_DONE:
            return code
        self._sharded_sync.fetch_results()
        code = self._run_commands(
            [trainer_commands.results_table_command(self._job_spec, python)], secrets
        )
        self._sharded_sync.mirror_results()
        return code

    def _run_commands(
        self, command_list: list[subprocesses.TrainerCommand], secrets: dict[str, str]
    ) -> int:
        if self._stop_requested:
            return protocol.EXIT_SAVED
        if self._reporter.phase != "collecting":
            self._reporter.set_phase("training")
        commands_with_secrets = [
            subprocesses.TrainerCommand(
                name=each.name, argv=each.argv, environment={**each.environment, **secrets}
            )
            for each in command_list
        ]
        for each in command_list:
            self._log.info(f"running {' '.join(each.argv)}")  # the environment has secrets
        return subprocesses.run_commands(
            commands_with_secrets,
            self._context.workdir,
            self._log,
            self._should_stop,
            self._on_started,
        )

    def _on_started(self, pids: list[int]) -> None:
        self._reporter.pids = pids

    def _should_stop(self) -> bool:
        if self._stop_requested and self._reporter.phase != "saving":
            self._reporter.phase = "saving"
            self._log.info("asked to stop: the trainer saves and exits")
        return self._stop_requested

    def _write_done_marker(self) -> None:
        """Writes DONE.json once the other hosts' exit reports are there, or after a timeout."""
        job_spec, deadline = self._job_spec, time.monotonic() + self._settings.rendezvous
        while (
            time.monotonic() < deadline
            and len(peers.read_exit_reports(job_spec)) < job_spec.slice.hosts
        ):
            time.sleep(min(2.0, self._settings.heartbeat))
        done_marker = DoneMarker(run_id=job_spec.run_id, attempt=job_spec.attempt, time=time.time())
        storage.write(
            bucket_layout.RunFolder(job_spec.run_url).done_marker, strict_json.to_text(done_marker)
        )


def _exit_code_of(error: UserError) -> int:
    """Returns 76 if the attempt might succeed on another slice, else 78."""
    is_transient = isinstance(error, storage.StorageError) and not error.permanent
    is_slice_problem = is_transient or isinstance(error, rendezvous.HostsNotReady)
    return protocol.EXIT_PREFLIGHT if is_slice_problem else protocol.EXIT_CONFIG


@contextlib.contextmanager
def _exclusive_lock(context: HostContext) -> Generator[None]:
    """Prevents a second trainer of the same run on this host, in case systemd does not."""
    context.workdir.mkdir(parents=True, exist_ok=True)
    try:
        lock = acquire_lock(context.workdir / "lock")
    except AlreadyLockedError:
        raise UserError(f"another process on this host already trains {context.run_id}") from None
    with lock:
        yield
