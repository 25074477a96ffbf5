"""Locks files between processes with `flock`.

The operating system releases a lock when the process ends for any reason, so a lock file left
behind by a killed process does no harm. Do not delete a lock file while it may be in use: another
process could then lock a new file of the same name.
"""

import errno
import fcntl
from pathlib import Path
from typing import TextIO


class AlreadyLockedError(Exception):
    """Reports that another process has locked a file.

    Attributes:
      owner: what that process wrote into the file about itself, else "another process".
    """

    def __init__(self, owner: str):
        super().__init__(owner)
        self.owner = owner


def acquire_lock(
    path: Path, *, owner: str = "", shared: bool = False, wait: bool = False
) -> TextIO:
    """Locks a file, which is created if needed; to release the lock, close the returned stream.

    Args:
      owner: written into the file, to tell other processes who holds the lock.
      shared: whether other processes may hold the lock too, if they also share it.
      wait: whether to wait until the lock is free; otherwise a lock in use is an error.

    Raises:
      AlreadyLockedError: another process holds the lock.
      OSError: the file cannot be opened, or its file system does not support locks.
    """
    # "a+" does not truncate: the file has the name of the owner, which must survive a failed
    # attempt.
    stream = path.open("a+", encoding="utf-8", errors="replace")
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(stream, operation)
    except OSError as error:
        with stream:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            stream.seek(0)
            raise AlreadyLockedError(stream.read().strip() or "another process") from None
    if owner:
        # Only after the lock is held, or the owner's name would be removed by a process that does
        # not get it.
        stream.truncate(0)
        stream.write(f"{owner}\n")
        stream.flush()
    return stream


def lock_owner(path: Path) -> str | None:
    """Returns the owner of an exclusive lock on the file; None if it is not locked or missing."""
    if not path.exists():
        return None
    try:
        acquire_lock(path, shared=True).close()
    except AlreadyLockedError as error:
        return error.owner
    return None
