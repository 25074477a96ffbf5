"""Asks malloc for huge pages, which it only hears when a process starts.

A step on a CPU allocates its large activations anew each time. In pages of 4 kB the kernel then
spends up to a third of the step handing them out (`docs/performance.md`).
"""

import os
import platform
import sys
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_huge_pages() -> None:
    """Starts this command over, in the same process, with the tunable set; returns if useless.

    It is useless where malloc is not glibc's, where the kernel gives huge pages to all ("always")
    or to none ("never"), and where the user or an earlier call has set the tunable.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if TUNABLE in tunables or platform.libc_ver()[0] != "glibc":
        return
    if not _KERNEL.is_file() or "[madvise]" not in _KERNEL.read_text():
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{TUNABLE}=1")))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
