"""Pretraining's source: a prepared corpus, and another one to be held against."""

import shutil
from pathlib import Path
from typing import Any

import jax

from bert_jax import batch as contract
from bert_jax.aside import written_aside
from bert_jax.data.batches import batch_fields
from bert_jax.data.config import LoaderConfig, Packed
from bert_jax.data.loader import PretrainLoader
from bert_jax.data.manifest import VOCABULARY
from bert_jax.data.prepared import PreparedCorpus
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.parallel import sharding
from bert_jax.programs.program import Program
from bert_jax.text.compatibility import check_embedding_rows
from bert_jax.train.config import Evaluation
from bert_jax.train.heldout import HeldOut, check_heldout
from bert_jax.train.initial import check_starting_vocabulary


class PreparedText:
    """The `Source` of an experiment whose data is a `LoaderConfig`."""

    def __init__(self, experiment: Experiment, data: LoaderConfig):
        """Opens the corpus.

        Raises:
          UserError: not a prepared corpus.
        """
        self._experiment, self._data = experiment, data
        self._corpus = PreparedCorpus(data.prepared)

    def settle(self, folder: Path) -> None:
        """See `Source`."""
        used = self._corpus.tokenization
        remedy = "Prepare the text again with `bert-jax prepare --vocab {vocabulary}`."
        check_starting_vocabulary(self._experiment, folder, used, remedy)
        rows = self._experiment.program.model.vocab_size
        check_embedding_rows(
            used.size, rows, used.path, f"Set program.model.vocab_size to {used.size}."
        )
        evaluation = self._experiment.train.evaluation
        if isinstance(evaluation, Evaluation):
            check_heldout(self._corpus, evaluation.prepared)
        if not (folder / VOCABULARY).exists():
            with written_aside(folder / VOCABULARY) as aside:
                shutil.copytree(self._corpus.folder / VOCABULARY, aside)

    def begin(self, program: Program, params: Any, mesh: jax.sharding.Mesh, folder: Path) -> None:
        """See `Source`: examples are drawn anew in every epoch, so nothing is made beforehand."""

    def fields(self, program: Program) -> tuple[str, ...]:
        """See `Source`; with the fields of packing where examples are packed."""
        made, examples = batch_fields(self._data), self._data.examples
        for name in program.fields():
            if name not in made:
                raise ConfigError(
                    f"the program needs the field {name!r}, which data.examples "
                    f"{type(examples).__name__} does not make"
                )
        packed = isinstance(examples, Packed)
        return program.fields() + (contract.PACKED_FIELDS if packed else ())

    def shapes(self, phase: int) -> list[dict[str, int]]:
        """See `Source`; one for each phase."""
        return [self._experiment.train.phases[phase].sizes]

    def loader(self, phase: int, position: int) -> PretrainLoader:
        """See `Source`."""
        sizes = self._experiment.train.phases[phase]
        return PretrainLoader(
            self._corpus,
            self._data,
            length=sizes.length,
            batch_size=sizes.batch_size,
            max_predictions=sizes.max_predictions,
            seed=self._experiment.seed + phase,  # a later phase does not see the first one's order
            host_index=jax.process_index(),
            host_count=jax.process_count(),
            start=position,
        )

    def evaluator(self, program: Program, phase: int, mesh: jax.sharding.Mesh) -> HeldOut | None:
        """See `Source`."""
        evaluation = self._experiment.train.evaluation
        if not isinstance(evaluation, Evaluation):
            return None
        sharding.check_batch_size(evaluation.batch_size, 1, mesh)
        phases = self._experiment.train.phases
        return HeldOut(program, evaluation, self._data, phases[phase], mesh)

    def conclude(
        self, program: Program, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """See `Source`: pretraining has nothing more to show."""
