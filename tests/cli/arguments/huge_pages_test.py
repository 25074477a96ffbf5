"""Tests that training verbs restart themselves once with huge pages, only where that helps."""

import os
import sys

import pytest

from bert_jax.cli.arguments import huge_pages


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Returns the command lines that would have been started; the kernel's setting is "madvise"."""
    commands = []
    monkeypatch.setattr(os, "execv", lambda file, argv: commands.append((file, argv)))
    monkeypatch.setattr(huge_pages.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(huge_pages, "_KERNEL", tmp_path / "enabled")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return commands


def test_same_command_is_started_with_the_tunable(started, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bert_jax", "pretrain", "x.py"])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    huge_pages.restart_with_huge_pages()
    assert started == [(sys.executable, [sys.executable, "-m", "bert_jax", "pretrain", "x.py"])]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"


def test_second_start_does_not_restart(started, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    huge_pages.restart_with_huge_pages()
    assert started == []


@pytest.mark.parametrize("setting", ["[always] madvise never", "always madvise [never]"])
def test_kernel_setting_other_than_madvise_is_respected(started, tmp_path, setting):
    (tmp_path / "enabled").write_text(setting)
    huge_pages.restart_with_huge_pages()
    assert started == []


def test_other_malloc_is_not_restarted(started, monkeypatch):
    monkeypatch.setattr(huge_pages.platform, "libc_ver", lambda: ("", ""))
    huge_pages.restart_with_huge_pages()
    assert started == []
