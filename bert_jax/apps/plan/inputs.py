"""Builds the config of a run whose corpus may not exist yet, and describes its batches.

Recipes read only the vocabulary of a corpus, and a plan needs only its size: a missing corpus gets
a placeholder. Batches are described by their fields and shapes, which is all that the estimates and
a compilation need from the data. Labeled files are read for their lengths, except for those of text
to text, whose batches have one shape.
"""

import collections
import contextlib
import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.batch import BatchSpec, batch_spec
from bert_jax.config.config_lib import override
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment, check_experiment
from bert_jax.config.labeled_data import TextToTextData
from bert_jax.config.objectives import objective_of_phase
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.sentence_embeddings import SentenceEmbeddingData
from bert_jax.config.train import Phase
from bert_jax.data.finetuning.loader import FineTuningLoader
from bert_jax.data.pretraining.batch_builder import select_fields
from bert_jax.errors import ConfigError, UserError
from bert_jax.objectives.base import BatchSizes
from bert_jax.objectives.make import make_objective
from bert_jax.train.workloads import make_workload

CORPUS_PARAMETERS = ("corpus", "heldout")
"""The recipe parameters that name a corpus written by `bert-jax prepare`."""

REMOTE_PREFIXES = ("@", "gs://")
"""Prefixes of folders that are not on this machine: data of the launcher, or a bucket."""

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def planned_experiment(
    recipe: str, arguments: Sequence[str], overrides: Sequence[str], vocab_size: int
) -> tuple[Experiment, tuple[str, ...]]:
    """Builds a recipe's config, with placeholders for corpora that are missing.

    A corpus that is given with a local path is read, so a wrong path is an error.

    Args:
      recipe: the path of the recipe.
      arguments: recipe arguments, "name=value".
      overrides: config overrides, "field=value".
      vocab_size: the vocabulary size of a missing corpus.

    Returns:
      The config, and the names of the recipe parameters that got a placeholder.

    Raises:
      ConfigError: the recipe, an argument or an override is invalid, or the vocabulary is too small
        for BERT.
    """
    get_config = load_recipe(recipe)
    with _placeholder_corpora(get_config, arguments, vocab_size) as (filled, missing):
        experiment = check_experiment(call_recipe(get_config, filled, recipe), recipe)
    if missing and isinstance(experiment.data, PretrainingData):
        # The placeholder's temporary folder is deleted by now, and its name differs every time.
        corpus = _parse_arguments(arguments).get("corpus", "corpus")
        data = dataclasses.replace(experiment.data, corpus=corpus)
        experiment = dataclasses.replace(experiment, data=data)
    return override(experiment, overrides), missing


@contextlib.contextmanager
def _placeholder_corpora(
    get_config: Callable[..., Any], arguments: Sequence[str], vocab_size: int
) -> Generator[tuple[list[str], tuple[str, ...]]]:
    given = _parse_arguments(arguments)
    missing = tuple(
        name
        for name, parameter in inspect.signature(get_config).parameters.items()
        if name in CORPUS_PARAMETERS
        and (
            given[name].startswith(REMOTE_PREFIXES)
            if name in given
            else parameter.default is parameter.empty
        )
    )
    remaining = [each for each in arguments if each.partition("=")[0] not in missing]
    with tempfile.TemporaryDirectory() as folder:
        if missing:
            write_placeholder_vocab(Path(folder) / "vocabulary", vocab_size)
        yield [*remaining, *(f"{name}={folder}" for name in missing)], missing


def _parse_arguments(arguments: Sequence[str]) -> dict[str, str]:
    pairs = (each.partition("=") for each in arguments)
    return {name: value for name, _, value in pairs}


def write_placeholder_vocab(folder: Path, vocab_size: int) -> None:
    """Writes a WordPiece vocabulary of the special tokens and invented ones.

    Raises:
      ConfigError: the size leaves no room for tokens other than the special ones.
    """
    if vocab_size <= len(_SPECIAL_TOKENS):
        raise ConfigError(
            f"--vocab-size {vocab_size}: expected more than {len(_SPECIAL_TOKENS)} tokens"
        )
    tokens = [
        *_SPECIAL_TOKENS,
        *(f"token{number}" for number in range(len(_SPECIAL_TOKENS), vocab_size)),
    ]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), "utf-8")


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
        return BatchSizes.from_dims(self.shapes[-1]).sequences

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

        def fields_of(phase: Phase) -> tuple[str, ...]:
            config = objective_of_phase(experiment.objective, phase)
            fields = make_objective(config).batch_fields()
            return select_fields(data, fields) if isinstance(data, PretrainingData) else fields

        # Texts of `TextToTextData` are padded to the lengths of the phase, so they are not read.
        return tuple(
            Inputs(
                phase=phase, fields=fields_of(phase), shapes=(phase.sizes,), step_fractions=(1.0,)
            )
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
