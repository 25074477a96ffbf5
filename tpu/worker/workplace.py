"""The trainer's working folder: links and copies that make it look the same on every host."""

import hashlib
import os
from pathlib import Path

from tpu.protocol import Order
from tpu.worker import commands, storage
from tpu.worker.host import CODE, Host


def arrange(this: Host, order: Order) -> None:
    """Links to the code, and up-to-date copies of the data.

    Raises:
      StorageError: data cannot be copied.
    """
    this.work.mkdir(parents=True, exist_ok=True)
    _link(this.work / commands.BUNDLE, CODE)
    _link(this.work / commands.CONFIGS, CODE / commands.CONFIGS)
    (this.work / commands.DATA).mkdir(exist_ok=True)
    for name, place in order.data.items():
        # Two runs may call different folders by the same name.
        copy = this.root / "data" / f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
        storage.bring(place, copy, required=True)
        _link(this.work / commands.DATA / name, copy)


def _link(link: Path, target: Path) -> None:
    aside = link.with_name(f"{link.name}.tmp")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    os.replace(aside, link)
