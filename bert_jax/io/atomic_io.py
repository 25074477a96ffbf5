"""Writes files and folders atomically: to a temporary path first, then renamed.

A reader sees the complete file or none. A symbolic link stays a link, and a device or a named pipe
is written to, never replaced.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bert_jax.errors import UserError
from bert_jax.io.json_io import format_json
from bert_jax.io.parent_process import is_running

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
"""Errors of a disk that is full, read-only or broken; the path that failed may not be named."""
_MAX_NAME_BYTES = 255


@contextlib.contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """Yields a temporary path in the same folder, to write a file or a folder to.

    When the `with` block ends, what was written is renamed to `path`; a file is synced to disk
    before. After an error it is removed. The temporary name, `.NAME.HOST.PID.partial`, is unique to
    the process: what a killed process leaves is removed by the next one on the same host, and two
    threads must not write the same path. If `path` is a symbolic link, the file that it names is
    replaced; if it is a device or a pipe, what was written is copied to it.

    Raises:
      UserError: writing or renaming failed, or `path` is a folder that is not empty.
    """
    if _is_device_or_pipe(path):
        with _writing_to_device(path) as temporary_file:
            yield temporary_file
        return
    target = _resolve_link(path)
    partial_path = _partial_path(target)
    _remove_leftovers(target)
    try:
        with _as_user_errors(path, partial_path):
            yield partial_path
            if partial_path.is_file():
                with partial_path.open("rb+") as file:
                    # Without it a crash of the machine may leave an empty file under the final
                    # name: the rename can reach the disk before the content.
                    os.fsync(file.fileno())
            os.replace(partial_path, target)
    finally:
        _remove(partial_path)


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a file atomically.

    Raises:
      UserError: the file cannot be written.
    """
    # Lone surrogates stand for bytes of file names that are not UTF-8; "?" replaces them.
    data = content.encode(errors="replace") if isinstance(content, str) else content
    with atomic_path(path) as partial_path:
        partial_path.write_bytes(data)


def write_json(path: Path, data: Any) -> None:
    """Writes indented JSON atomically.

    Raises:
      UserError: the file cannot be written.
    """
    atomic_write(path, format_json(data))


def make_folder(path: Path) -> None:
    """Creates a folder and its parents if they do not exist.

    Raises:
      UserError: it cannot be created, or a file has its name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write_error(path, error) from None


def check_writable(
    path: Path | str | None, flag: str = "--output", *, is_folder: bool = False
) -> None:
    """Checks before long work that a file or folder can be written to `path`.

    Creates the parent folder and tries to write a temporary file in it.

    Args:
      path: where to write; None: nothing is written.
      flag: the flag that the user gave, which begins the message.
      is_folder: whether a folder is going to be written, not a file.

    Raises:
      UserError: it cannot be written.
    """
    if path is None:
        return
    path = Path(path)
    try:
        if not is_folder and os.path.isdir(path):
            raise UserError(f"{flag} {path} is a folder; expected the name of a file")
        if is_folder and os.path.exists(path) and not os.path.isdir(path):
            raise UserError(f"{flag} {path} is a file; expected the name of a folder")
        if _is_device_or_pipe(path):
            return
        target = _resolve_link(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.exists(target):  # finds names that are too long
            target.touch()
            target.unlink()
        partial_path = _partial_path(target)
        try:
            partial_path.write_bytes(b"\0")
        finally:
            _remove(partial_path)
    except OSError as error:
        raise UserError(f"{flag} {cannot_write_error(path, error)}") from None


def check_new_folder(output: Path) -> None:
    """Raises a UserError if `output` cannot be written, or is not empty."""
    check_writable(output, is_folder=True)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not an empty folder; choose another --output")


def cannot_write_error(path: Path, error: OSError) -> UserError:
    """Returns the error that reports why `path` cannot be written, and what to do."""
    target = _resolve_link(path)
    link = f"it is a symbolic link to {target}, and " if target != path else ""
    # An OSError does not say which part of a path it is about: look for the first that exists.
    parent = next(filter(os.path.lexists, target.parents), target.parent)
    reason, remedy = error.strerror or str(error), "choose another path"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space there, then run the same command again"
    elif error.errno == errno.EROFS:
        reason, remedy = "the file system is read-only", "choose a path on a writable one"
    elif not os.path.isdir(parent):
        kind = "a file" if os.path.exists(parent) else "a broken symbolic link"
        reason = f"{link}{parent} is {kind}, not a folder"
    elif error.errno == errno.ENOENT:
        reason = f"{link}the folder {target.parent} does not exist"
        remedy = "create it or choose another path"
    elif error.errno == errno.EISDIR:
        reason = "it is a folder; expected the name of a file"
    elif error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
        if os.path.isdir(target):
            reason = "a folder of that name exists; another process may have written it"
            remedy = "choose another path, or remove the folder if nothing uses it"
        elif os.path.exists(target):
            reason = "a file of that name exists; expected the name of a folder"
            remedy = "remove the file or choose another path"
        else:  # `mkdir` does not follow a broken link
            reason = f"it is a symbolic link to {target}, which does not exist"
            remedy = "remove the link or choose another path"
    elif error.errno == errno.EACCES and not _is_device_or_pipe(path):
        # The temporary file is created next to the target, whose own permissions do not matter.
        reason = f"{link}no permission to create files in {parent}"
        remedy = "change its permissions or choose another path"
    return UserError(f"{path} cannot be written: {reason}; {remedy}")


@contextlib.contextmanager
def _as_user_errors(path: Path, partial_path: Path) -> Generator[None]:
    """Turns errors of writing `partial_path` into a UserError; errors of other files stay."""
    try:
        yield
    except shutil.Error as error:  # holds one (source, target, reason) for each file
        copies = error.args[0] if error.args and isinstance(error.args[0], list) else [str(error)]
        last = copies[-1][-1] if isinstance(copies[-1], tuple) else copies[-1]
        raise UserError(f"{path} cannot be written: {last}") from None
    except OSError as error:
        file_names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name]
        is_temporary_path = any(name.startswith(str(partial_path)) for name in file_names)
        # A full disk is reported without a name of a file by some writers. Any other error in the
        # block is about a file of the caller.
        if is_temporary_path or (not file_names and error.errno in DISK_ERRORS):
            raise cannot_write_error(path, error) from None
        raise
    except SafetensorError as error:  # has the number of an OSError only in its text
        if (found := re.search(r"os error (\d+)", str(error))) is None:
            raise
        number = int(found[1])
        raise cannot_write_error(path, OSError(number, os.strerror(number))) from None


def _resolve_link(path: Path) -> Path:
    """Returns the path that a symbolic link names; any other path unchanged."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def _is_device_or_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def _writing_to_device(path: Path) -> Generator[Path]:
    import tempfile  # rarely needed, and slow to import

    with tempfile.TemporaryDirectory() as folder:
        temporary_file = Path(folder) / "content"
        yield temporary_file
        if temporary_file.is_dir():
            raise UserError(f"{path} is not a folder; choose another path")
        try:
            with temporary_file.open("rb") as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise cannot_write_error(path, error) from None


def _partial_path(path: Path) -> Path:
    return path.with_name(f"{_partial_prefix(path)}{os.getpid()}.partial")


def _partial_prefix(path: Path) -> str:
    """Returns `.NAME.HOST.`, with a hash in place of NAME if the file name became too long."""
    # Process ids repeat between hosts that share a file system.
    host = os.uname().nodename[:40]
    prefix = f".{path.name}.{host}."
    # 20 bytes are left for the process id and ".partial".
    if len(os.fsencode(prefix)) + 20 > _MAX_NAME_BYTES:
        prefix = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.{host}."
    return prefix


def _remove_leftovers(path: Path) -> None:
    """Removes temporary files for `path` whose process does not run on this host anymore."""
    prefix, suffix = _partial_prefix(path), ".partial"
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            pid = name.removeprefix(prefix).removesuffix(suffix)
            if name == f"{prefix}{pid}{suffix}" and pid.isdigit() and not is_running(int(pid)):
                _remove(path.with_name(name))
    _remove(_partial_path(path))


def _remove(path: Path) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        # The parent may not exist or may be a file; the error of the caller is the one to show.
        with contextlib.suppress(OSError):
            path.unlink()
