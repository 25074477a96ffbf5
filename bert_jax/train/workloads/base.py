"""Defines a workload: the training batches of a run and its evaluation, for its objective."""

import abc
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from bert_jax.config.experiment import Experiment
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.io.atomic_io import atomic_path
from bert_jax.models.encoder import EncoderConfig, EncoderDecoderConfig
from bert_jax.objectives.base import Objective
from bert_jax.pretrained.initial import check_initial_tokenizer
from bert_jax.pretrained.seq2seq import check_decoder_tokens
from bert_jax.text.compatibility import (
    Tokenization,
    check_embedding_rows,
    check_input_template,
    check_pad_token_id,
)
from bert_jax.text.tokenizer import Tokenizer
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


class Workload(abc.ABC):
    """Provides the training batches and the evaluation of each phase of an experiment.

    Attributes:
      next_command: the command that most users run after the training; {run} is the run folder.
    """

    next_command: ClassVar[str] = "bert-jax export {run} --output exported"

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        self._phases, self._seed = experiment.train.phases, experiment.seed
        self._evaluation = experiment.train.evaluation

    @abc.abstractmethod
    def prepare_run_folder(self, folder: Path) -> None:
        """Checks that data and model match, and copies the vocabulary into the run folder.

        Called first, on process 0 only.

        Raises:
          UserError: data and model do not match.
        """

    @abc.abstractmethod
    def data_fingerprint(self) -> str | None:
        """Returns a hash of the training data, or None if `prepare_run_folder` compares the data.

        A run is not resumed with other data. Called on process 0 only, before `prepare_run_folder`.
        """

    @abc.abstractmethod
    def describe_data(self) -> dict[str, str]:
        """Describes the data for the report: name -> text, such as a path with its counts."""

    def training_token_ids(self) -> np.ndarray | None:
        """Returns all token ids that training batches have; None if they are not known before."""
        return None

    def on_train_start(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path
    ) -> None:
        """Uses the initial or restored parameters before the first step, as to cache features."""
        del objective, params, mesh, folder

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """Returns the names of the batch fields to move to the devices.

        Raises:
          ConfigError: the data does not provide a field that the objective needs.
        """
        return objective.batch_fields()

    @abc.abstractmethod
    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one {dimension: size} per batch shape of a phase, such as {"B": 32, "L": 128}.

        Sizes are global; `bert_jax.batch` defines the dimensions.
        """

    @abc.abstractmethod
    def loader(self, phase_index: int, position: int) -> AbstractContextManager[Loader]:
        """Returns the batches of a phase from `position`, a position of an earlier loader of it."""

    @abc.abstractmethod
    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> Evaluator | None:
        """Returns the evaluator of a phase; None if the config has no evaluation."""

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes the final results of a run, computed with its best parameters, from `step`.

        By default nothing: the metrics of the last evaluation are the final results.
        """
        del objective, params, mesh, folder, step

    def _check_and_save_tokenizer(
        self,
        tokenizer: Tokenizer,
        path: str,
        model: EncoderConfig | EncoderDecoderConfig,
        folder: Path,
    ) -> None:
        """Checks the tokenizer of labeled data against the model and saves it in the run folder.

        Args:
          path: where the tokenizer was read from, for messages.
        """
        tokenization = Tokenization.of(tokenizer, path)
        remedy = "set data.tokenizer to {tokenizer}"
        check_initial_tokenizer(self._experiment, folder, tokenization, remedy)
        advice = "use the tokenizer of the model"
        check_embedding_rows(tokenization.vocab_size, model.vocab_size, path, advice)
        check_model_inputs(tokenizer, path, model)
        if not (folder / TOKENIZER_FOLDER).exists():
            with atomic_path(folder / TOKENIZER_FOLDER) as partial_folder:
                tokenizer.save(partial_folder)


def distinct_token_ids(tokenizer: Tokenizer, *splits: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the token ids of all sequences of some splits, and all special ones, ascending."""
    is_used = np.zeros(len(tokenizer), bool)
    is_used[list(tokenizer.special_ids)] = True
    for token_ids in itertools.chain(*splits):
        is_used[token_ids] = True
    return np.flatnonzero(is_used)


def check_model_inputs(
    tokenizer: Tokenizer, path: str, model: EncoderConfig | EncoderDecoderConfig
) -> None:
    """Checks that a model can read the special tokens and token types of a tokenizer.

    Raises:
      UserError: it cannot.
    """
    if isinstance(model, EncoderDecoderConfig):
        check_decoder_tokens(tokenizer, model, path)
        return
    check_input_template(tokenizer, model.type_vocab_size, path)
    check_pad_token_id(tokenizer, model.required_pad_token_id, path)
