"""What a run trains on and is held against: all that `run.py` needs to know of the data."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax

from bert_jax.objectives.base import Objective
from bert_jax.train.loop import Loader

Evaluator = Any
"""Callable: parameters -> {metric: value}."""


class Source(Protocol):
    """Batches of each phase, and the evaluation that goes with them."""

    def prepare_run_folder(self, folder: Path) -> None:
        """Checks that data and model belong together; leaves the vocabulary in the run's folder.

        Called on process 0 alone, before anything else.

        Raises:
          UserError: they do not.
        """
        ...

    def on_train_start(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path
    ) -> None:
        """Sees the parameters that a run starts from, or goes on with, before its first step."""
        ...

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """The batch fields that the program needs and the data has.

        Raises:
          ConfigError: the data does not make a field that an objective needs.
        """
        ...

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Sizes of the letters of `bert_jax.batch` for each shape that a phase's batches have."""
        ...

    def loader(self, phase_index: int, position: int) -> AbstractContextManager[Loader]:
        """A phase's batches, from a position of an earlier loader of the same phase on."""
        ...

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> Evaluator | None:
        """What evaluates a phase's parameters; None when nothing is to be evaluated."""
        ...

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes what a finished run has to show, with its best parameters, those of `step`."""
        ...
