"""Defines the protocol of a source: a run's training batches and its evaluation."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax

from bert_jax.objectives.base import Objective
from bert_jax.train.loop import Loader


class Evaluator(Protocol):
    """Evaluates parameters."""

    @property
    def known_metrics(self) -> Sequence[str]:
        """Returns names of metrics known without an evaluation; there may be others."""
        ...

    def __call__(self, params: Any) -> dict[str, float]:
        """Returns {metric name: value}."""
        ...


class Source(Protocol):
    """Provides the training batches and the evaluation of each phase."""

    def prepare_run_folder(self, folder: Path) -> None:
        """Checks that data and model match, and copies the vocabulary into the run folder.

        Called first, on process 0 only.

        Raises:
          UserError: data and model do not match.
        """
        ...

    def data_fingerprint(self) -> str | None:
        """Returns a hash of the training data, or None if `prepare_run_folder` compares the data.

        A run is not resumed with other data. Called on process 0 only, before `prepare_run_folder`.
        """
        ...

    def describe_data(self) -> dict[str, str]:
        """Describes the data for the report: name -> text, such as a path with its counts."""
        ...

    def on_train_start(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path
    ) -> None:
        """Uses the initial or restored parameters before the first step, as to cache features."""
        ...

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """Returns the names of the batch fields to move to the devices.

        Raises:
          ConfigError: the data does not provide a field that the objective needs.
        """
        ...

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one {dimension: size} per batch shape of a phase, such as {"B": 32, "L": 128}.

        Sizes are global; `bert_jax.batch` defines the dimensions.
        """
        ...

    def loader(self, phase_index: int, position: int) -> AbstractContextManager[Loader]:
        """Returns the batches of a phase from `position`, a position of an earlier loader of it."""
        ...

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> Evaluator | None:
        """Returns the evaluator of a phase; None if the config has no evaluation."""
        ...

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes the final results of a run, computed with its best parameters, from `step`."""
        ...
