"""Checks in seconds, before JAX is imported, whether this host can train."""

import email.utils
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tpu.protocol import JobSpec, PreflightProblem, PreflightReport
from tpu.worker import devices, host_context, metadata_server, secret_manager, storage
from tpu.worker.host_context import CODE_ROOT, HostContext
from tpu.worker.secret_manager import SecretError
from tpu.worker.settings import Settings
from tpu.worker.storage import StorageError

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
MAX_CLOCK_SKEW_SECONDS = 10
MIN_OPEN_FILES = 65536
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_VERSIONS_SCRIPT = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""

HostCheck = Callable[[HostContext, int, JobSpec, Settings], Iterator[PreflightProblem]]


def run_preflight(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> PreflightReport:
    """Runs all checks and returns the report."""
    problems, warnings = (
        tuple(p for check in checks for p in check(context, host_number, job_spec, settings))
        for checks in (REQUIRED_CHECKS, WARNING_CHECKS)
    )
    return PreflightReport(
        host=host_number,
        ok=not problems,
        problems=problems,
        warnings=warnings,
        address=job_spec.host_addresses[host_number],
        versions=installed_versions(settings),
        time=time.time(),
    )


def installed_versions(settings: Settings) -> dict[str, str]:
    """Returns {package: version} of the trainer's environment without importing the packages."""
    try:
        python = str(host_context.trainer_python(settings))
        command = [python, "-c", _VERSIONS_SCRIPT, *PACKAGES]
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
        return json.loads(completed.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}


def _check_code(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    if job_spec.bundle != CODE_ROOT.name:
        yield PreflightProblem(
            check="code",
            found=f"the agent runs from {CODE_ROOT}",
            expected=f"bundle {job_spec.bundle[:12]}...",
            fix="tpu/tpuctl sync installs the code of the job spec",
        )
    if shutil.which("systemd-run") is None:
        yield PreflightProblem(
            check="systemd",
            found="no systemd-run on PATH",
            expected="a machine with systemd, such as a TPU VM",
            fix="use the runtime version of bert_jax/parallel/tpu_slices.json",
        )


def _check_versions(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    found = installed_versions(settings)
    for package, version in job_spec.required_versions.items():
        if found.get(package) != version:
            yield PreflightProblem(
                check=f"version of {package}",
                found=found.get(package, "none"),
                expected=version,
                fix=f"remove {context.root}/venv-* on the host and run tpu/tpuctl sync",
            )


def _check_chips(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    chip_files, expected_chips = devices.list_chips(settings.dev), job_spec.slice.chips_per_host
    names = ", ".join(path.name for path in chip_files)
    if len(chip_files) != expected_chips:
        yield PreflightProblem(
            check="chips",
            found=f"{len(chip_files)} in {settings.dev} ({names or 'none'})",
            expected=f"{expected_chips}, the number of each host of {job_spec.slice.name}",
            fix="a chip may be broken: create a new slice with tpu/tpuctl down and up",
        )
    holders = devices.find_holders([*chip_files, settings.lockfile])
    for pid, command in (holders or {}).items():
        yield PreflightProblem(
            check="chips are free",
            found=f"process {pid} ({command}) uses them",
            expected="none",
            fix=f"stop it (tpu/tpuctl stop, or kill {pid}); if that fails, create a new slice",
        )
    if settings.lockfile.exists() and holders == {}:
        if failure := devices.remove_lockfile(settings.lockfile):
            yield PreflightProblem(
                check="lock file",
                found=f"{settings.lockfile} of a dead process cannot be removed: {failure}",
                expected="none",
                fix=f"sudo rm {settings.lockfile}",
            )
    elif settings.lockfile.exists() and holders is None:
        yield PreflightProblem(
            check="lock file",
            found=f"{settings.lockfile}, and it is unknown whether a process uses the chips",
            expected="no lock file, or sudo without a password to check",
            fix=f"if nothing trains there: sudo rm {settings.lockfile}",
        )


def _check_disk_and_memory(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    context.root.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(context.root).free / 1e9
    if free_gb < settings.min_disk_gb:
        yield PreflightProblem(
            check="disk",
            found=f"{free_gb:.1f} GB free at {context.root}",
            expected=f"{settings.min_disk_gb:g} GB",
            fix=f"remove old runs and data below {context.root}, or create a new slice",
        )
    available_gb = _meminfo_gb("MemAvailable")
    if available_gb < settings.min_memory_gb:
        yield PreflightProblem(
            check="memory",
            found=f"{available_gb:.1f} GB available",
            expected=f"{settings.min_memory_gb:g} GB",
            fix="stop what uses it, or create a new slice",
        )
    try:
        context.compilation_cache.mkdir(parents=True, exist_ok=True)
        probe = context.compilation_cache / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        yield PreflightProblem(
            check="cache",
            found=f"{context.compilation_cache} cannot be written: {error.strerror}",
            expected="a folder that this user can write",
            fix=f"sudo chown -R $USER {context.root}",
        )


def _check_bucket(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    probe = f"{context.attempt_folder.url}/host-{host_number}.probe"
    try:
        storage.check_access(probe)
    except StorageError as error:
        yield PreflightProblem(
            check="bucket",
            found=str(error),
            expected="write, read and delete in the run's folder",
            fix=error.fix
            or "give the hosts' service account roles/storage.objectAdmin on the bucket",
            slice_independent=error.permanent,
        )


def _check_data(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    for name, url in job_spec.data.items():
        try:
            problem_text = "" if storage.list_names(url) else f"nothing at {url}"
            fix, permanent = f"gcloud storage cp --recursive FOLDER {url}", True
        except StorageError as error:
            problem_text, permanent = str(error), error.permanent
            fix = "give the hosts' service account roles/storage.objectViewer on its bucket"
        if problem_text:
            yield PreflightProblem(
                check=f"data {name}",
                found=problem_text,
                expected="the folder of --data",
                fix=fix,
                slice_independent=permanent,
            )


def _check_secrets(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    for variable, secret in job_spec.secrets.items():
        try:
            secret_manager.access_secret(secret)
        except SecretError as error:
            yield PreflightProblem(
                check=f"secret {variable}",
                found=str(error),
                expected=f"to read {secret}",
                fix="give the hosts' service account roles/secretmanager.secretAccessor on it",
                slice_independent=error.permanent,
            )


def _check_address(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    address = metadata_server.get(settings.metadata, metadata_server.INTERNAL_IP)
    if address is not None and address != job_spec.host_addresses[host_number]:
        yield PreflightProblem(
            check="address",
            found=f"this host is {address}",
            expected=f"{job_spec.host_addresses[host_number]}, host {host_number} of the job spec",
            fix="the job spec is for another slice: launch again",
        )


def _check_clock(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    date, now = metadata_server.http_date(settings.clock), time.time()
    if date is None:
        found = f"{settings.clock} returned no Date header"
    else:
        skew = now - email.utils.parsedate_to_datetime(date).timestamp()
        if abs(skew) <= MAX_CLOCK_SKEW_SECONDS:
            return
        found = f"{abs(skew):.0f} seconds {'ahead of' if skew > 0 else 'behind'} {settings.clock}"
    yield PreflightProblem(
        check="clock",
        found=found,
        expected=f"within {MAX_CLOCK_SKEW_SECONDS} seconds",
        fix="sudo systemctl restart chrony; the bucket refuses access if a clock is minutes off",
    )


def _check_environment(
    context: HostContext, host_number: int, job_spec: JobSpec, settings: Settings
) -> Iterator[PreflightProblem]:
    for name in sorted(os.environ):
        if name.lower().endswith("_proxy") and name.lower() != "no_proxy":
            yield PreflightProblem(
                check="proxy",
                found=f"{name} is set",
                expected="no proxy: it breaks the connections between hosts",
                fix=f"unset {name} on the host; the trainer does not inherit it",
            )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        yield PreflightProblem(
            check="open files",
            found=f"a limit of {limit}",
            expected=f"{MIN_OPEN_FILES}",
            fix="raise it in /etc/security/limits.conf; the unit requests that many",
        )
    if _HUGE_PAGES.exists() and "[always]" not in _HUGE_PAGES.read_text():
        yield PreflightProblem(
            check="huge pages",
            found=_HUGE_PAGES.read_text().strip(),
            expected="[always]: transfers to the chips are slower without",
            fix=f"echo always | sudo tee {_HUGE_PAGES}",
        )


def _meminfo_gb(key: str) -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024 / 1e9
    return 0.0


REQUIRED_CHECKS: tuple[HostCheck, ...] = (
    *(_check_code, _check_versions, _check_chips, _check_disk_and_memory),
    *(_check_bucket, _check_data, _check_secrets, _check_address),
)
WARNING_CHECKS: tuple[HostCheck, ...] = (_check_clock, _check_environment)
