"""Describes the batches of each phase by their fields and shapes.

This is all that the estimates of memory and time and a compilation need from the data. A
pretraining corpus does not have to exist yet; labeled files are read for their lengths, except for
those of text to text, whose batches have one shape.
"""

import collections
from dataclasses import dataclass

from bert_jax.batch import BatchSpec, batch_spec
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import TextToTextData
from bert_jax.config.sentence_embeddings import SentenceEmbeddingData
from bert_jax.config.train import Phase
from bert_jax.data.finetuning.loader import FineTuningLoader
from bert_jax.data.pretraining.batch_builder import select_fields
from bert_jax.errors import UserError
from bert_jax.objectives.make import make_objective
from bert_jax.train.workloads import make_workload


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Describes the batches of a phase.

    Attributes:
      phase: the phase's config.
      fields: the names of the batch fields (see `bert_jax.batch`).
      shapes: one {dimension: size} per batch shape, such as {"B": 32, "L": 128}, by ascending L.
        Sizes are global. The train step is compiled for each shape.
      step_fractions: the fraction of the phase's steps that use each of `shapes`; they sum to 1.
    """

    phase: Phase
    fields: tuple[str, ...]
    shapes: tuple[dict[str, int], ...]
    step_fractions: tuple[float, ...]

    @property
    def num_sequences(self) -> int:
        """Returns how many sequences the encoder reads per batch: examples times choices."""
        return self.phase.batch_size * self.shapes[-1].get("A", 1)

    def batch_spec(self, shape_index: int = -1) -> BatchSpec:
        """Returns {field: (global shape, dtype)} for `shapes[shape_index]`.

        The default is the shape with the largest sequence length.
        """
        return batch_spec(self.fields, self.shapes[shape_index])


def make_inputs(experiment: Experiment) -> tuple[Inputs, ...]:
    """Returns the inputs of each phase.

    Raises:
      UserError: labeled data is missing or damaged, does not match the objective, or the run is one
        of sentence embeddings, which `bert-jax plan` does not support.
    """
    data, phases = experiment.data, experiment.train.phases
    if isinstance(data, PretrainingData | TextToTextData):
        fields = make_objective(experiment.objective).batch_fields()
        if isinstance(data, PretrainingData):
            fields = select_fields(data, fields)
        # Texts of `TextToTextData` are padded to the lengths of the phase, so they are not read.
        return tuple(
            Inputs(phase=phase, fields=fields, shapes=(phase.sizes,), step_fractions=(1.0,))
            for phase in phases
        )
    if isinstance(data, SentenceEmbeddingData):
        raise UserError(
            "data is SentenceEmbeddingData, which bert-jax plan does not support; expected a "
            "config of pretraining or fine-tuning"
        )
    source = make_workload(experiment)
    cached_features = experiment.train.tuning.features == "cached"
    fields = source.batch_fields(
        make_objective(experiment.objective, cached_features=cached_features)
    )
    phase_inputs = []
    for index, phase in enumerate(phases):
        shapes = tuple(sorted(source.shapes(index), key=lambda sizes: sizes["L"]))
        with source.loader(index, 0) as loader:
            assert isinstance(loader, FineTuningLoader)
            lengths = collections.Counter(loader.batch_lengths())
        step_fractions = tuple(lengths[sizes["L"]] / lengths.total() for sizes in shapes)
        phase_inputs.append(
            Inputs(phase=phase, fields=fields, shapes=shapes, step_fractions=step_fractions)
        )
    return tuple(phase_inputs)
