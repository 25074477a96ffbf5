"""Covers bert_jax/io/atomic_io.py: a file or folder appears whole or not at all."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from safetensors import SafetensorError

from bert_jax.errors import UserError
from bert_jax.io import atomic_io
from bert_jax.io.atomic_io import atomic_path, atomic_write, check_writable, make_folder


def test_file_is_replaced(tmp_path: Path):
    file = tmp_path / "file"
    atomic_write(file, "first")
    atomic_write(file, "sécond".encode())
    assert file.read_text(encoding="utf-8") == "sécond"
    assert list(tmp_path.iterdir()) == [file]


def test_folder_appears_when_it_is_complete(tmp_path: Path):
    folder = tmp_path / "folder"
    with atomic_path(folder) as partial_folder:
        partial_folder.mkdir()
        (partial_folder / "part").write_text("all of it")
        assert not folder.exists()
    assert (folder / "part").read_text() == "all of it"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_failed_write_leaves_the_old_file(tmp_path: Path, kind: str):
    file = tmp_path / "file"
    atomic_write(file, "old")
    with pytest.raises(RuntimeError, match="half way"), atomic_path(file) as partial_path:
        partial_path.mkdir() if kind == "folder" else partial_path.write_text("ne")
        raise RuntimeError("half way")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended_process:
        pass
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "folder") as partial_folder:
        raise RuntimeError
    own_pid = f".{os.getpid()}."
    leftovers = [
        partial_folder,
        partial_folder.with_name(partial_folder.name.replace(own_pid, f".{ended_process.pid}.")),
    ]
    running = partial_folder.with_name(partial_folder.name.replace(own_pid, ".1."))
    for path in [*leftovers, running]:
        path.mkdir()
        (path / "stale").touch()
    with atomic_path(tmp_path / "folder") as again:
        again.mkdir()
    assert sorted(tmp_path.iterdir()) == sorted([running, tmp_path / "folder"])
    assert list((tmp_path / "folder").iterdir()) == []


def test_symbolic_link_stays_a_link(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    link.symlink_to(target)
    for content in ("target does not exist", "target exists"):
        atomic_write(link, content)
        assert link.is_symlink() and target.read_text() == content
    assert list(target.parent.iterdir()) == [target]


def test_named_pipe_is_written_to(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    check_writable(pipe)
    atomic_write(pipe, "through the pipe")
    reader.join(10)
    assert received == ["through the pipe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_device_is_written_to():
    before = os.stat(os.devnull)
    atomic_write(Path(os.devnull), "nothing is kept")
    after = os.stat(os.devnull)
    assert stat.S_ISCHR(after.st_mode) and (before.st_ino, before.st_rdev) == (
        after.st_ino,
        after.st_rdev,
    )


BAD_OUTPUTS = {
    "below_a_file": ("file/below/x", "file is a file, not a folder"),
    "below_a_dangling_link": ("dangling/x", "dangling is a broken symbolic link, not a folder"),
    "name_too_long": ("x" * 300, "File name too long"),
    "proc": ("/proc/nope/x", "the folder /proc/nope does not exist; create it"),
    "link_to_proc": ("link_to_proc", "link to /proc/nope/x, and the folder /proc/nope does not"),
}


@pytest.mark.parametrize("name", BAD_OUTPUTS)
def test_bad_outputs_are_named_before_and_while_writing(tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "link_to_proc").symlink_to("/proc/nope/x")
    before = sorted(tmp_path.iterdir())
    output, reason = tmp_path / BAD_OUTPUTS[name][0], BAD_OUTPUTS[name][1]
    with pytest.raises(UserError, match=f"^--output .*{reason}"):
        check_writable(output)
    with pytest.raises(UserError, match=f"cannot be written: .*{reason}"):
        atomic_write(output, "")
    assert sorted(tmp_path.iterdir()) == before


def test_folder_in_place_of_another_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match="file cannot be written: a file of that name exists"):
        make_folder(tmp_path / "file")
    with pytest.raises(
        UserError, match=r"link to .*nothing, which does not exist; remove the link"
    ):
        make_folder(tmp_path / "link")
    with (
        pytest.raises(UserError, match="file cannot be written: a file of that name exists"),
        atomic_path(tmp_path / "file") as partial_folder,
    ):
        partial_folder.mkdir()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EROFS, "the file system is read-only; choose a path on a writable one"),
        (errno.EACCES, "no permission to create files in {folder}; change its permissions or"),
        (errno.EPERM, "Operation not permitted; choose another path"),
    ],
)
def test_folder_that_refuses_new_files_is_named(tmp_path: Path, monkeypatch, number, message):
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    for write in (check_writable, lambda path: atomic_write(path, "")):
        with pytest.raises(UserError) as error:
            write(tmp_path / "file")
        assert f"cannot be written: {message.format(folder=tmp_path)}" in str(error.value)


def test_long_names_that_the_file_system_allows_are_written(tmp_path: Path):
    check_writable(tmp_path / ("x" * 255))
    atomic_write(tmp_path / ("x" * 255), "content")
    assert len(list(tmp_path.iterdir())) == 1


def test_file_in_place_of_a_folder_is_refused_and_the_reverse(tmp_path: Path):
    atomic_write(tmp_path / "file", "")
    with pytest.raises(UserError, match="is a folder; expected the name of a file"):
        check_writable(tmp_path)
    with pytest.raises(UserError, match="is a file; expected the name of a folder"):
        check_writable(tmp_path / "file", is_folder=True)
    with pytest.raises(UserError, match="it is a folder; expected the name of a file"):
        atomic_write(tmp_path, "")


def test_two_writers_of_one_folder_get_a_clear_error(tmp_path: Path):
    folder = tmp_path / "folder"
    with (
        pytest.raises(UserError, match="another process may have written it"),
        atomic_path(folder) as path,
    ):
        path.mkdir()
        folder.mkdir()
        (folder / "of the other process").touch()
    assert [p.name for p in folder.iterdir()] == ["of the other process"]


def test_full_disk_is_one_error_that_names_the_file(tmp_path: Path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    atomic_write(tmp_path / "file", "old")
    monkeypatch.setattr(atomic_io.os, "fsync", full)
    with pytest.raises(UserError, match=r"file cannot be written: No space left.*free some space"):
        atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_full_disk_under_safetensors_is_an_error_of_the_file(tmp_path: Path):
    reason = "Error while serializing: I/O error: No space left on device (os error 28)"
    with (
        pytest.raises(UserError, match=r"weights cannot be written: No space left.*free some spa"),
        atomic_path(tmp_path / "weights"),
    ):
        raise SafetensorError(reason)
    with pytest.raises(SafetensorError, match="header"), atomic_path(tmp_path / "weights"):
        raise SafetensorError("a damaged header")


def test_errors_of_other_files_are_not_changed(tmp_path: Path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "file"):
        (tmp_path / "input").read_text()
