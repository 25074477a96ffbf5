"""What a host can be told by its environment (BERT_TPU_*); the defaults are those of a TPU VM."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError
from tpu import protocol


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Places and times.

    Attributes:
      metadata: BERT_TPU_METADATA, the metadata server.
      clock: BERT_TPU_CLOCK, a server whose Date the clock is held against.
      dev: BERT_TPU_DEV, where the chips' device files lie.
      lockfile: BERT_TPU_LOCKFILE, which libtpu leaves behind when it is killed.
      mount: BERT_TPU_MOUNT, below which buckets are mounted; None: the trainer speaks to gs://.
      python: BERT_TPU_PYTHON, the trainer's; None: that of the environment beside the code.
      min_disk_gb: BERT_TPU_MIN_DISK_GB, free where runs and data lie.
      min_memory_gb: BERT_TPU_MIN_MEMORY_GB, available.
      heartbeat: BERT_TPU_HEARTBEAT, seconds from one report to the next.
      rendezvous: BERT_TPU_RENDEZVOUS, seconds after which a silent host is named as absent.
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
    """Reads BERT_TPU_*.

    Raises:
      ConfigError: a number that is none.
    """
    given = {name: os.environ.get(f"BERT_TPU_{name.upper()}") for name in _KINDS}
    values: dict[str, Any] = {name: _read(name, text) for name, text in given.items() if text}
    return Settings(**values)


_KINDS: dict[str, Callable[[str], Any]] = {
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


def _read(name: str, text: str) -> Any:
    try:
        return _KINDS[name](text)
    except ValueError:
        variable = f"BERT_TPU_{name.upper()}"
        raise ConfigError(f"{variable}={text!r}: expected a number") from None
