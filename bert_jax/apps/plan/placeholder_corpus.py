"""Writes a placeholder vocabulary, so that a run can be planned before its corpus exists.

Recipes read only the vocabulary of a corpus, and a plan needs only its size.
"""

import contextlib
import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import override
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment, check_experiment
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.errors import ConfigError

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
