"""A file or folder appears whole or not at all, and nothing else is left."""

from pathlib import Path

import pytest

from bert_jax.atomic_io import atomic_path, atomic_write


def test_a_file_is_replaced_whole(tmp_path: Path):
    file = tmp_path / "file"
    atomic_write(file, "first")
    atomic_write(file, "sécond".encode())
    assert file.read_text(encoding="utf-8") == "sécond"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_appears_when_it_is_complete(tmp_path: Path):
    folder = tmp_path / "folder"
    with atomic_path(folder) as aside:
        aside.mkdir()
        (aside / "part").write_text("all of it")
        assert not folder.exists()
    assert (folder / "part").read_text() == "all of it"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_failed_leaves_what_was_there(tmp_path: Path, kind: str):
    file = tmp_path / "file"
    atomic_write(file, "old")
    with pytest.raises(RuntimeError, match="half way"), atomic_path(file) as aside:
        aside.mkdir() if kind == "folder" else aside.write_text("ne")
        raise RuntimeError("half way")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_is_not_in_the_way(tmp_path: Path):
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "folder") as aside:
        raise RuntimeError
    aside.mkdir()
    (aside / "stale").touch()
    with atomic_path(tmp_path / "folder") as again:
        assert again == aside
        again.mkdir()
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_place_that_cannot_be_written_says_why(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        atomic_write(tmp_path / "file" / "below", "")
