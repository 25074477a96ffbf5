"""One host of a slice in one life of a run: its number, its order, its folders.

$HOME/bert_jax/<sha>/            the code; .venv in it is the trainer's Python environment
               data/<name>-<id>/ a copy of each folder of data
               runs/<run id>/    where the trainer works, so that all paths that a run keeps are
                                 the same on every host and in every life:
                   run/          the run folder
                   data/<name>   a link to the copy
                   configs, bundle   links to the code
                   jax-cache/    compiled programs
                   <n>.log, <n>.exit.json   of the n-th life
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import ConfigError
from tpu import names, protocol, strict_json
from tpu.worker import metadata, storage
from tpu.worker.settings import Settings

CODE = Path(__file__).resolve().parents[2]
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Host:
    """Folders of a run on this machine.

    Attributes:
      run_url: of the run, in the bucket.
      incarnation: the number of this life.
    """

    run_url: str
    incarnation: int

    @property
    def run_id(self) -> str:
        """The last word of the URL."""
        return self.run_url.rsplit("/", 1)[1]

    @property
    def root(self) -> Path:
        """What this project keeps on the machine."""
        return Path.home() / "bert_jax"

    @property
    def work(self) -> Path:
        """Where the trainer works."""
        return self.root / "runs" / self.run_id

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.work / "run"

    @property
    def cache(self) -> Path:
        """Programs that lanes have compiled; a run keeps its own in its folder."""
        return self.work / "compiled"

    @property
    def log(self) -> Path:
        """What this life has said."""
        return self.work / f"{self.incarnation}.log"

    @property
    def exit(self) -> Path:
        """How this life has ended."""
        return self.work / f"{self.incarnation}.exit.json"

    @property
    def unit(self) -> str:
        """The name of the systemd unit."""
        return names.unit_name(self.run_id, self.incarnation)

    @property
    def folder(self) -> names.IncarnationFolder:
        """Reports of this life, in the bucket."""
        return names.RunFolder(self.run_url).incarnation(self.incarnation)


def parse(run_url: str, incarnation: str) -> Host:
    """A host from the words of a command.

    Raises:
      ConfigError: they are no run and no number.
    """
    found = re.fullmatch(r"(.+)/runs/([^/]+)", names.url(run_url))
    if not found:
        raise ConfigError(f"{run_url!r}: expected gs://BUCKET/runs/RUN_ID")
    names.run_id(found[2])
    if not incarnation.isdecimal():
        raise ConfigError(f"incarnation {incarnation!r}: expected 0, 1, ...")
    return Host(run_url=names.url(run_url), incarnation=int(incarnation))


def read_order(host: Host) -> protocol.Order:
    """What this life has to do.

    Raises:
      ConfigError: there is no order, or it is of another run or life.
      StorageError: it cannot be read.
    """
    text = storage.read(host.folder.order)
    if text is None:
        raise ConfigError(f"{host.folder.order} does not exist: launch the run again")
    order = strict_json.from_text(protocol.Order, text, host.folder.order)
    if (order.run_url, order.incarnation) != (host.run_url, host.incarnation):
        raise ConfigError(
            f"{host.folder.order} is for {order.run_url}, incarnation {order.incarnation}"
        )
    return order


def number(word: str, order: protocol.Order, settings: Settings) -> int:
    """Which host of the slice this is: as told, or `auto`, found out by the metadata server.

    Raises:
      ConfigError: no such host, or nobody knows.
    """
    if word != AUTO:
        if not word.isdecimal() or int(word) >= order.slice.hosts:
            raise ConfigError(f"host {word!r}: expected 0 to {order.slice.hosts - 1}, or auto")
        return int(word)
    told = metadata.get(settings.metadata, metadata.WORKER_NUMBER)
    if told and told.isdecimal() and int(told) < order.slice.hosts:
        return int(told)
    address = metadata.get(settings.metadata, metadata.NETWORK_ADDRESS)
    if address in order.hosts:
        return order.hosts.index(address)
    raise ConfigError(
        f"this host cannot tell its number: the metadata server at {settings.metadata} says "
        f"worker {told!r} and address {address!r}; the order has hosts {', '.join(order.hosts)}"
    )


def python(settings: Settings) -> Path:
    """The Python that the trainer runs with."""
    made = CODE / ".venv" / "bin" / "python"
    return settings.python or (made if made.exists() else Path(sys.executable))
