"""A vocabulary in place of a corpus that is not there yet: a run can be planned before its data.

Recipes read one thing of a corpus, its vocabulary; a plan needs no more of that than its size.
"""

import contextlib
import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config_lib import call_recipe, load_recipe, override
from bert_jax.data.config import PretrainingData
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment

CORPUS_PARAMETERS = ("corpus", "heldout")
"""The parameters of recipes that name a corpus written by `bert-jax prepare`."""

REMOTE_PREFIXES = ("@", "gs://")
"""How a folder begins that is not on this machine: the launcher's data, or a bucket."""

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def planned_experiment(
    recipe: str, arguments: Sequence[str], overrides: Sequence[str], vocab_size: int
) -> tuple[Experiment, tuple[str, ...]]:
    """The config that a recipe gives, and the names of the corpora that were stood in for.

    A corpus that is named and should be on this machine is read: a wrong path is an error.

    Args:
      arguments: of the recipe, "name=value".
      overrides: of its config, "field=value".
      vocab_size: of a corpus that is not here.

    Raises:
      ConfigError: as `call_recipe` and `override`, or a vocabulary too small for BERT.
    """
    get_config = load_recipe(recipe)
    with _placeholder_corpora(get_config, arguments, vocab_size) as (filled, missing):
        experiment = call_recipe(get_config, filled, recipe)
    if missing and isinstance(experiment.data, PretrainingData):
        # Not the stand-in's folder, which is gone, and has another name each time.
        corpus = _parse_arguments(arguments).get("corpus", "corpus")
        data = dataclasses.replace(experiment.data, corpus=corpus)
        experiment = dataclasses.replace(experiment, data=data)
    return override(experiment, overrides), missing


@contextlib.contextmanager
def _placeholder_corpora(
    get_config: Callable[..., Any], arguments: Sequence[str], vocab_size: int
) -> Iterator[tuple[list[str], tuple[str, ...]]]:
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
    """A WordPiece vocabulary of so many pieces, the special ones and made-up ones.

    Raises:
      ConfigError: there would be none but the special ones.
    """
    if vocab_size <= len(_SPECIAL_TOKENS):
        raise ConfigError(
            f"--vocab-size {vocab_size}: expected more than {len(_SPECIAL_TOKENS)} pieces"
        )
    tokens = [
        *_SPECIAL_TOKENS,
        *(f"piece{number}" for number in range(len(_SPECIAL_TOKENS), vocab_size)),
    ]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), "utf-8")
