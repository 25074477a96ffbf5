"""What the batches of each phase are, in fields and shapes.

It is all that memory, time and a compilation need to know of the data. A pretraining corpus need
not be there; labelled files are read.
"""

import collections
from dataclasses import dataclass

from bert_jax.batch import PACKED_FIELDS, Spec, spec
from bert_jax.data.batches import batch_fields
from bert_jax.data.config import LoaderConfig, Packed
from bert_jax.data.labelled.loader import LabelledLoader
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.programs.config import FineTuning
from bert_jax.programs.fine_tuning import states_field
from bert_jax.programs.make import make_program
from bert_jax.train.config import Phase
from bert_jax.train.open_source import open_source
from bert_jax.tuning.config import ReadOnce


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The batches of a phase.

    Attributes:
      fields: their names in `bert_jax.batch`.
      shapes: sizes of the letters of `bert_jax.batch`, by ascending L; each is compiled.
      shares: of the phase's steps that have each of `shapes`; they add up to 1.
    """

    phase: Phase
    fields: tuple[str, ...]
    shapes: tuple[dict[str, int], ...]
    shares: tuple[float, ...]

    @property
    def texts(self) -> int:
        """Texts of a batch that the encoder reads: its rows, times the choices in each."""
        return self.phase.batch_size * self.shapes[-1].get("A", 1)

    def spec(self, shape: int = -1) -> Spec:
        """Shape and dtype of each field of a batch; the longest batch by default."""
        return spec(self.fields, self.shapes[shape])


def make_inputs(experiment: Experiment) -> tuple[Inputs, ...]:
    """The inputs of each phase.

    Raises:
      UserError: labelled data is missing or damaged, or does not go with the program.
    """
    data, phases = experiment.data, experiment.train.phases
    if isinstance(data, LoaderConfig):
        fields = _text_fields(experiment, data)
        return tuple(
            Inputs(phase=phase, fields=fields, shapes=(phase.sizes,), shares=(1.0,))
            for phase in phases
        )
    source = open_source(experiment)
    fields = source.fields(make_program(experiment.program))
    if isinstance(experiment.train.tuning.encoder, ReadOnce):
        assert isinstance(experiment.program, FineTuning)
        fields += (states_field(experiment.program.head),)
    made = []
    for index, phase in enumerate(phases):
        shapes = tuple(sorted(source.shapes(index), key=lambda sizes: sizes["L"]))
        with source.loader(index, 0) as loader:
            assert isinstance(loader, LabelledLoader)
            lengths = collections.Counter(loader.batch_lengths())
        shares = tuple(lengths[sizes["L"]] / lengths.total() for sizes in shapes)
        made.append(Inputs(phase=phase, fields=fields, shapes=shapes, shares=shares))
    return tuple(made)


def _text_fields(experiment: Experiment, data: LoaderConfig) -> tuple[str, ...]:
    made, fields = batch_fields(data), make_program(experiment.program).fields()
    if missing := sorted(set(fields) - set(made)):
        raise ConfigError(
            f"the program needs the field {missing[0]!r}, which data.examples "
            f"{type(data.examples).__name__} does not make"
        )
    return fields + (PACKED_FIELDS if isinstance(data.examples, Packed) else ())
