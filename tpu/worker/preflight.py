"""Is this host fit to train? Everything that can be known before JAX is imported, in seconds."""

import email.utils
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tpu.protocol import Order, Preflight, Problem
from tpu.worker import devices, host, metadata, secret_manager, storage
from tpu.worker.host import CODE, Host
from tpu.worker.secret_manager import SecretError
from tpu.worker.settings import Settings
from tpu.worker.storage import StorageError

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
SKEW_SECONDS = 10
OPEN_FILES = 65536
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""

Check = Callable[[Host, int, Order, Settings], Iterator[Problem]]


def examine(this: Host, number: int, order: Order, settings: Settings) -> Preflight:
    """Makes all checks."""
    problems = [found for check in CHECKS for found in check(this, number, order, settings)]
    warnings = [found for check in CAUTIONS for found in check(this, number, order, settings)]
    return Preflight(
        host=number,
        ok=not problems,
        problems=tuple(problems),
        warnings=tuple(warnings),
        address=order.hosts[number],
        versions=versions(settings),
        time=time.time(),
    )


def versions(settings: Settings) -> dict[str, str]:
    """Package -> version in the trainer's environment, from its metadata; imports none of them."""
    try:
        done = subprocess.run(
            [str(host.python(settings)), "-c", _VERSIONS, *PACKAGES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}


def _code(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    if order.bundle != CODE.name:
        yield Problem(
            check="code",
            found=f"the agent runs from {CODE}",
            expected=f"bundle {order.bundle[:12]}...",
            fix="tpu/pod sync brings the code of the order",
        )
    if shutil.which("systemd-run") is None:
        yield Problem(
            check="systemd",
            found="no systemd-run on PATH",
            expected="a machine that systemd runs, as TPU VMs are",
            fix="use the runtime version of bert_jax/hardware/tpu_slices.json",
        )


def _versions(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    found = versions(settings)
    for package, version in order.requires.items():
        if found.get(package) != version:
            yield Problem(
                check=f"version of {package}",
                found=found.get(package, "none"),
                expected=version,
                fix=f"remove {this.root}/venv-* on the host, then tpu/pod sync installs it anew",
            )


def _chips(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    there, wanted = devices.chips(settings.dev), order.slice.chips_per_host
    if len(there) != wanted:
        yield Problem(
            check="chips",
            found=f"{len(there)} in {settings.dev} ({', '.join(p.name for p in there) or 'none'})",
            expected=f"{wanted}, as each host of {order.slice.name} has",
            fix="tpu/pod down and up make the slice anew; a chip may be broken",
        )
    held = devices.holders([*there, settings.lockfile])
    for pid, command in (held or {}).items():
        yield Problem(
            check="chips are free",
            found=f"process {pid} ({command}) holds them",
            expected="none",
            fix=f"stop it (tpu/pod stop, or kill {pid}); if it does not go, make the slice anew",
        )
    if settings.lockfile.exists() and held == {}:
        failure = devices.remove_lockfile(settings.lockfile)
        if failure:
            yield Problem(
                check="lock file",
                found=f"{settings.lockfile} of a dead process cannot be removed: {failure}",
                expected="none",
                fix=f"sudo rm {settings.lockfile}",
            )
    elif settings.lockfile.exists() and held is None:
        yield Problem(
            check="lock file",
            found=f"{settings.lockfile}, and whether a process holds the chips cannot be seen",
            expected="none, or the right to ask by sudo",
            fix=f"if nothing trains there: sudo rm {settings.lockfile}",
        )


def _room(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    this.root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(this.root).free / 1e9
    if free < settings.min_disk_gb:
        yield Problem(
            check="disk",
            found=f"{free:.1f} GB free at {this.root}",
            expected=f"{settings.min_disk_gb:g} GB",
            fix=f"remove old runs and data below {this.root}, or make the slice anew",
        )
    available = _meminfo("MemAvailable")
    if available < settings.min_memory_gb:
        yield Problem(
            check="memory",
            found=f"{available:.1f} GB available",
            expected=f"{settings.min_memory_gb:g} GB",
            fix="stop what uses it, or make the slice anew",
        )
    try:
        this.cache.mkdir(parents=True, exist_ok=True)
        probe = this.cache / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        yield Problem(
            check="cache",
            found=f"{this.cache} cannot be written: {error.strerror}",
            expected="a folder of our own",
            fix=f"sudo chown -R $USER {this.root}",
        )


def _bucket(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    probe = f"{this.folder.url}/host-{number}.probe"
    try:
        storage.write(probe, "probe")
        if storage.read(probe) != "probe":
            raise StorageError(f"{probe} does not hold what was written", lasting=False)
        storage.remove(probe)
    except StorageError as error:
        yield Problem(
            check="bucket",
            found=str(error),
            expected="write, read and delete in the run's folder",
            fix="give the hosts' service account roles/storage.objectAdmin on the bucket",
            anywhere=error.lasting,
        )


def _data(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    for name, place in order.data.items():
        try:
            found = "" if storage.names(place) else f"nothing at {place}"
            fix, lasting = f"gcloud storage cp --recursive FOLDER {place}", True
        except StorageError as error:
            found, lasting = str(error), error.lasting
            fix = "give the hosts' service account roles/storage.objectViewer on its bucket"
        if found:
            yield Problem(
                check=f"data {name}",
                found=found,
                expected="the folder that the order names",
                fix=fix,
                anywhere=lasting,
            )


def _secrets(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    for variable, secret in order.secrets.items():
        try:
            secret_manager.access(secret)
        except SecretError as error:
            yield Problem(
                check=f"secret {variable}",
                found=str(error),
                expected=f"to read {secret}",
                fix="give the hosts' service account roles/secretmanager.secretAccessor on it",
                anywhere=error.lasting,
            )


def _identity(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    address = metadata.get(settings.metadata, metadata.NETWORK_ADDRESS)
    if address is not None and address != order.hosts[number]:
        yield Problem(
            check="address",
            found=f"this host is {address}",
            expected=f"{order.hosts[number]}, host {number} of the order",
            fix="the order is of another slice: launch again",
        )


def _clock(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    date, now = metadata.date(settings.clock), time.time()
    if date is None:
        found = f"{settings.clock} did not say the time"
    else:
        skew = now - email.utils.parsedate_to_datetime(date).timestamp()
        if abs(skew) <= SKEW_SECONDS:
            return
        found = f"{abs(skew):.0f} seconds {'ahead of' if skew > 0 else 'behind'} {settings.clock}"
    yield Problem(
        check="clock",
        found=found,
        expected=f"within {SKEW_SECONDS} seconds",
        fix="sudo systemctl restart chrony; at some minutes the bucket refuses access",
    )


def _surroundings(this: Host, number: int, order: Order, settings: Settings) -> Iterator[Problem]:
    for name in sorted(os.environ):
        if name.lower().endswith("_proxy") and name.lower() != "no_proxy":
            yield Problem(
                check="proxy",
                found=f"{name} is set",
                expected="no proxy: it breaks the hosts' talk to each other",
                fix=f"unset {name} on the host; the trainer does not inherit it",
            )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES:
        yield Problem(
            check="open files",
            found=f"a limit of {limit}",
            expected=f"{OPEN_FILES}",
            fix="raise it in /etc/security/limits.conf; the unit asks for as many",
        )
    if _HUGE_PAGES.exists() and "[always]" not in _HUGE_PAGES.read_text():
        yield Problem(
            check="huge pages",
            found=_HUGE_PAGES.read_text().strip(),
            expected="[always]: transfers to the chips are slower without",
            fix=f"echo always | sudo tee {_HUGE_PAGES}",
        )


def _meminfo(key: str) -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024 / 1e9
    return 0.0


CHECKS: tuple[Check, ...] = (
    *(_code, _versions, _chips, _room),
    *(_bucket, _data, _secrets, _identity),
)
CAUTIONS: tuple[Check, ...] = (_clock, _surroundings)
