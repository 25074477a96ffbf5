"""Reads the settings of a host from the environment (BERT_TPU_*); the defaults fit TPU VMs."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError
from tpu import protocol


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Holds paths, URLs and times.

    Attributes:
      metadata: BERT_TPU_METADATA, URL of the metadata server.
      clock: BERT_TPU_CLOCK, a server whose Date header the clock is compared with.
      dev: BERT_TPU_DEV, folder of the chips' device files.
      lockfile: BERT_TPU_LOCKFILE, the lock file that libtpu leaves behind when it is killed.
      mount: BERT_TPU_MOUNT, folder below which buckets are mounted; None: gs:// URLs are used.
      python: BERT_TPU_PYTHON, the trainer's Python; None: the one in the code's .venv.
      min_disk_gb: BERT_TPU_MIN_DISK_GB, required free space for runs and data.
      min_memory_gb: BERT_TPU_MIN_MEMORY_GB, required available memory.
      heartbeat: BERT_TPU_HEARTBEAT, seconds between two reports.
      rendezvous: BERT_TPU_RENDEZVOUS, seconds after which a host that has not reported is named.
    """

    metadata: str = "http://metadata.google.internal"
    clock: str = "https://storage.googleapis.com"
    dev: Path = Path("/dev")
    lockfile: Path = Path("/tmp/libtpu_lockfile")
    mount: Path | None = None
    python: Path | None = None
    min_disk_gb: float = 20.0
    min_memory_gb: float = 8.0
    heartbeat: float = protocol.HEARTBEAT_SECONDS
    rendezvous: float = protocol.RENDEZVOUS_SECONDS


def from_environment() -> Settings:
    """Returns the settings that BERT_TPU_* variables describe.

    Raises:
      ConfigError: a value is not a number.
    """
    given = {name: os.environ.get(f"BERT_TPU_{name.upper()}") for name in _FIELD_TYPES}
    values: dict[str, Any] = {
        name: _parse_value(name, text) for name, text in given.items() if text
    }
    return Settings(**values)


_FIELD_TYPES: dict[str, Callable[[str], Any]] = {
    "metadata": str,
    "clock": str,
    "dev": Path,
    "lockfile": Path,
    "mount": Path,
    "python": Path,
    "min_disk_gb": float,
    "min_memory_gb": float,
    "heartbeat": float,
    "rendezvous": float,
}


def _parse_value(name: str, text: str) -> Any:
    try:
        return _FIELD_TYPES[name](text)
    except ValueError:
        unit = "gigabytes" if name.endswith("_gb") else "seconds"
        variable, default = f"BERT_TPU_{name.upper()}", getattr(Settings(), name)
        raise ConfigError(
            f"{variable} is {text!r}; expected a number of {unit}, such as the default {default:g}"
        ) from None
