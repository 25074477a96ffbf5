"""Restarts the process with huge pages for malloc, to train faster on a CPU.

Each training step on a CPU allocates its large activations again. With pages of 4 kB the kernel
spends up to a third of the step mapping them (`docs/performance.md`). glibc reads the setting only
when a process starts, hence the restart.
"""

import os
import platform
import sys
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_huge_pages() -> None:
    """Replaces this process by the same command with the tunable set, if that has an effect.

    Returns without a restart if malloc is not glibc's, if the kernel gives huge pages to every
    process ("always") or to none ("never"), or if the tunable is already set. To prevent the
    restart, set GLIBC_TUNABLES=glibc.malloc.hugetlb=0.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if TUNABLE in tunables or platform.libc_ver()[0] != "glibc":
        return
    if not _KERNEL.is_file() or "[madvise]" not in _KERNEL.read_text():
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{TUNABLE}=1")))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
