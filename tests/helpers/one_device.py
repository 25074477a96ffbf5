"""Restricts training runs of this process to one of its eight devices.

A run on eight devices takes twice the CPU time: it compiles a partitioned program, and its
checkpoints are cut into eight parts. Use this where the mesh is not what is tested.
"""

import contextlib
from collections.abc import Generator

import jax
import pytest

from bert_jax.parallel import sharding


@contextlib.contextmanager
def one_device_mesh() -> Generator[None]:
    """Makes `run` use a mesh of one device inside the `with` block."""
    make_mesh = sharding.make_mesh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "make_mesh", lambda config: make_mesh(config, jax.devices()[:1]))
        yield
