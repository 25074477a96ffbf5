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

from bert_jax.config import call_recipe, load_recipe, override
from bert_jax.data.config import LoaderConfig
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment

CORPORA = ("prepared", "heldout")
"""The parameters of recipes that name a corpus written by `bert-jax prepare`."""

ELSEWHERE = ("@", "gs://")
"""How a folder begins that is not on this machine: the launcher's data, or a bucket."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


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
    with _corpora_at_hand(get_config, arguments, vocab_size) as (filled, missing):
        experiment = call_recipe(get_config, filled, recipe)
    if missing and isinstance(experiment.data, LoaderConfig):
        # Not the stand-in's folder, which is gone, and has another name each time.
        named = _by_name(arguments).get("prepared", "prepared")
        data = dataclasses.replace(experiment.data, prepared=named)
        experiment = dataclasses.replace(experiment, data=data)
    return override(experiment, overrides), missing


@contextlib.contextmanager
def _corpora_at_hand(
    get_config: Callable[..., Any], arguments: Sequence[str], vocab_size: int
) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    given = _by_name(arguments)
    missing = tuple(
        name
        for name, parameter in inspect.signature(get_config).parameters.items()
        if name in CORPORA
        and (
            given[name].startswith(ELSEWHERE)
            if name in given
            else parameter.default is parameter.empty
        )
    )
    kept = [each for each in arguments if each.partition("=")[0] not in missing]
    with tempfile.TemporaryDirectory() as folder:
        if missing:
            write_vocabulary(Path(folder) / "vocabulary", vocab_size)
        yield [*kept, *(f"{name}={folder}" for name in missing)], missing


def _by_name(arguments: Sequence[str]) -> dict[str, str]:
    parted = (each.partition("=") for each in arguments)
    return {name: value for name, _, value in parted}


def write_vocabulary(folder: Path, size: int) -> None:
    """A WordPiece vocabulary of so many pieces, the special ones and made-up ones.

    Raises:
      ConfigError: there would be none but the special ones.
    """
    if size <= len(_SPECIAL):
        raise ConfigError(f"--vocab-size {size}: expected more than {len(_SPECIAL)} pieces")
    pieces = [*_SPECIAL, *(f"piece{number}" for number in range(len(_SPECIAL), size))]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
