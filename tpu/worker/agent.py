"""Runs on a host, started by the launcher: agent.py VERB RUN_URL ATTEMPT HOST.

    preflight   checks whether this host can train and writes a report to the bucket; exits with 0,
                with 76 if another slice may pass, or with 78 if no slice would
    start       starts the systemd unit that trains; a second start does nothing
    stop        stops the unit, which saves first
    unit        trains; this is the command of the systemd unit

HOST is the host's number, or `auto`. Uses only the standard library and runs on Python 3.10.
"""

import sys
from pathlib import Path

# Python puts a script's own folder first. Its modules would hide others of the same name.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from bert_jax.errors import ConfigError, UserError  # noqa: E402
from tpu import protocol, strict_json  # noqa: E402
from tpu.worker import host_context, job, preflight, settings, storage, systemd_unit  # noqa: E402


def main(argv: list[str]) -> int:
    """Runs one verb and returns the exit code."""
    if len(argv) != 4 or argv[0] not in _COMMANDS:
        print(f"usage: agent.py {'|'.join(_COMMANDS)} RUN_URL ATTEMPT HOST", file=sys.stderr)
        return protocol.EXIT_AGENT_USAGE
    command, run_url, attempt, host_argument = argv
    try:
        context = host_context.parse_context(run_url, attempt)
        agent_settings = settings.from_environment()
        return _COMMANDS[command](context, host_argument, agent_settings)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        is_permanent = isinstance(error, storage.StorageError) and error.permanent
        is_config_error = is_permanent or isinstance(error, ConfigError)
        return protocol.EXIT_CONFIG if is_config_error else protocol.EXIT_PREFLIGHT


def _preflight(
    context: host_context.HostContext, host_argument: str, agent_settings: settings.Settings
) -> int:
    if (
        systemd_unit.read_exit_report(context) is not None
        or systemd_unit.unit_state(context).is_running
    ):
        print(f"{context.unit_name} was started before: this host has passed its preflight checks")
        return protocol.EXIT_DONE
    job_spec = host_context.read_job_spec(context)
    report = preflight.run_preflight(
        context,
        host_context.resolve_host_number(host_argument, job_spec, agent_settings),
        job_spec,
        agent_settings,
    )
    for warning in report.warnings:
        print(f"host {report.host} ({report.address}): warning: {warning}")
    for problem in report.problems:
        print(f"host {report.host} ({report.address}): {problem}", file=sys.stderr)
    print(f"host {report.host} ({report.address}) is {'ready' if report.ok else 'not ready'}")
    storage.write(context.attempt_folder.preflight_report(report.host), strict_json.to_text(report))
    if report.ok:
        return protocol.EXIT_DONE
    slice_independent = all(problem.slice_independent for problem in report.problems)
    return protocol.EXIT_CONFIG if slice_independent else protocol.EXIT_PREFLIGHT


def _start(
    context: host_context.HostContext, host_argument: str, agent_settings: settings.Settings
) -> int:
    job_spec = host_context.read_job_spec(context)
    host_number = host_context.resolve_host_number(host_argument, job_spec, agent_settings)
    print(systemd_unit.start(context, host_number, job_spec.max_hours, Path(__file__).resolve()))
    return protocol.EXIT_DONE


def _stop(
    context: host_context.HostContext, host_argument: str, agent_settings: settings.Settings
) -> int:
    print(systemd_unit.stop(context))
    return protocol.EXIT_DONE


def _run_unit(
    context: host_context.HostContext, host_argument: str, agent_settings: settings.Settings
) -> int:
    if not host_argument.isdecimal():
        raise ConfigError(f"host {host_argument!r}: the unit expects a number, not a name")
    return job.run_attempt(context, int(host_argument), agent_settings)


_COMMANDS = {"preflight": _preflight, "start": _start, "stop": _stop, "unit": _run_unit}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
