"""Performs the actions of the restart loop with gcloud; each one can safely be repeated."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bert_jax.errors import ConfigError, UserError
from tpu import strict_json
from tpu.launcher.cloud import ssh_commands
from tpu.launcher.cloud.backend import Argv, LiveSlice, RemoteCommand
from tpu.launcher.cloud.error_catalog import classify_error
from tpu.launcher.cloud.gcloud import CommandResult, GcloudError
from tpu.launcher.restarts.loop_types import ActionFailure, CreateSlice
from tpu.launcher.runs import version_1
from tpu.launcher.runs.run_context import RunContext
from tpu.protocol import EXIT_PREFLIGHT, FATAL_EXIT_CODES, JobSpec

CREATE_TIMEOUT_SECONDS = 15 * 60
DELETE_TIMEOUT_SECONDS = 30 * 60
INSTALL_TIMEOUT_SECONDS = 40 * 60
REMOTE_TIMEOUT_SECONDS = 15 * 60
STOP_TIMEOUT_SECONDS = 15 * 60


def create_slice(run: RunContext, action: CreateSlice) -> ActionFailure | None:
    """Requests a slice; if a later command fails, deletes what the earlier ones have created."""
    for index, argv in enumerate(run.backend.create_commands(action.attempt, action.zone)):
        result = run.runner.run(argv, timeout=CREATE_TIMEOUT_SECONDS)
        if result.ok or result.error_kind == "exists":
            continue
        if index:
            for delete_argv in run.backend.delete_commands(
                action.attempt, action.zone, frozenset()
            ):
                run.runner.run(delete_argv, timeout=DELETE_TIMEOUT_SECONDS)
        return ActionFailure(
            action="create", error_kind=result.error_kind, message=str(GcloudError(argv, result))
        )
    return None


def delete_slice(run: RunContext, attempt: int, zone: str, resources: frozenset[str]) -> list[str]:
    """Deletes a slice; returns error messages. A resource that does not exist is no error."""
    errors: list[str] = []
    for argv in run.backend.delete_commands(attempt, zone, resources):
        result = run.runner.run(argv, timeout=DELETE_TIMEOUT_SECONDS)
        if not result.ok and result.error_kind != "absent":
            errors.append(str(GcloudError(argv, result)))
    return errors


def start_trainers(run: RunContext, live: LiveSlice) -> ActionFailure | None:
    """Writes the job spec, then installs the code, checks and starts the trainer on all hosts."""
    try:
        write_job_spec(run, live)
    except (UserError, ConfigError) as error:
        kind = error.error_kind if isinstance(error, GcloudError) else "config"
        return ActionFailure(
            action="start", error_kind=kind, message=str(error), exit_code=error.exit_code
        )
    return (
        warm_up_ssh(run, live)
        or fetch_code(run, live)
        or run_agent(run, live, "preflight")
        or run_agent(run, live, "start")
    )


def warm_up_ssh(run: RunContext, live: LiveSlice) -> ActionFailure | None:
    """Connects to one host first: it creates the ssh key; parallel connections would race."""
    if len(live.ssh_targets) == 1:
        return None
    (argv,) = run.backend.ssh_commands(live, lambda host: "true", host=0)
    result = run.runner.run(argv, timeout=REMOTE_TIMEOUT_SECONDS)
    return None if result.ok else _remote_failure(argv, result)


def fetch_code(run: RunContext, live: LiveSlice) -> ActionFailure | None:
    """Downloads the code to all hosts and installs its requirements."""
    remote_command = ssh_commands.fetch_command(run.bucket_url, run.manifest.bundle)
    return _run_on_hosts(run, live, remote_command, INSTALL_TIMEOUT_SECONDS)


def run_agent(run: RunContext, live: LiveSlice, verb: str) -> ActionFailure | None:
    """Runs a verb of the agent on all hosts."""
    remote_command = ssh_commands.agent_command(
        verb, run.manifest.bundle, run.folder.url, live.attempt
    )
    return _run_on_hosts(
        run,
        live,
        remote_command,
        STOP_TIMEOUT_SECONDS if verb == "stop" else REMOTE_TIMEOUT_SECONDS,
    )


def write_job_spec(run: RunContext, live: LiveSlice) -> JobSpec:
    """Writes the job spec of an attempt; of an existing one only `max_hours` may change.

    Raises:
      UserError: the attempt already has a different job spec.
    """
    url = run.folder.attempt(live.attempt).job_spec
    job_spec = run.manifest.job_spec(run.folder.url, live.attempt, live.addresses)
    is_version_1 = run.folder.layout_version == 1
    text = version_1.format_job_spec(job_spec) if is_version_1 else strict_json.to_text(job_spec)
    if not run.bucket.write(url, text, generation=0):
        existing_text = run.bucket.read(url) or ""
        if is_version_1:
            existing = version_1.parse_job_spec(existing_text, url)
        else:
            existing = strict_json.from_text(JobSpec, existing_text, url)
        if replace(existing, max_hours=job_spec.max_hours) != job_spec:
            raise UserError(
                f"{url} is for a slice with other hosts or for another job; run "
                f"`{run.command_line('down')}` and launch again, which starts a new attempt"
            )
        if existing != job_spec:
            run.bucket.write(url, text)
    return job_spec


def _run_on_hosts(
    run: RunContext, live: LiveSlice, remote_command: RemoteCommand, timeout: float
) -> ActionFailure | None:
    commands = run.backend.ssh_commands(live, remote_command)
    if len(commands) == 1 or run.runner.dry:
        results = [run.runner.run(argv, timeout=timeout) for argv in commands]
    else:
        with ThreadPoolExecutor(len(commands)) as pool:
            results = list(pool.map(lambda argv: run.runner.run(argv, timeout=timeout), commands))
    for argv, result in zip(commands, results, strict=True):
        if not result.ok:
            return _remote_failure(argv, result)
    return None


def _remote_failure(argv: Argv, result: CommandResult) -> ActionFailure:
    """Tells errors of gcloud and ssh from errors of the command that ran on the host."""
    pattern = classify_error(result.stderr)
    is_gcloud_error = pattern.kind in ("flag", "permission", "auth", "api", "ssh")
    if is_gcloud_error or result.returncode == 255:
        kind = pattern.kind if is_gcloud_error else "ssh"
        return ActionFailure(
            action="start", error_kind=kind, message=str(GcloudError(argv, result))
        )
    lines = [line for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    message = "; ".join(lines[-6:]) or f"code {result.returncode}"
    if result.returncode == EXIT_PREFLIGHT:
        return ActionFailure(
            action="start", error_kind="preflight", message=message, exit_code=result.returncode
        )
    if result.returncode in FATAL_EXIT_CODES:
        return ActionFailure(
            action="start", error_kind="config", message=message, exit_code=result.returncode
        )
    return ActionFailure(
        action="start", error_kind="other", message=message, exit_code=result.returncode
    )
