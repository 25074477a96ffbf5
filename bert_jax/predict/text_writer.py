"""Defines what models that write texts share: how they are called, and what they return."""

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from bert_jax.errors import require_list_of_texts
from bert_jax.predict.batches import Arrays


class Generated(NamedTuple):
    """Holds a generated text.

    Attributes:
      text: without special tokens.
      token_ids: with the end token, if the text has ended.
      is_complete: whether the text has ended, and was not cut at the largest length.
    """

    text: str
    token_ids: list[int]
    is_complete: bool


class TextWriter(abc.ABC):
    """Writes one text for each given text."""

    @overload
    def __call__(self, texts: str) -> Generated: ...

    @overload
    def __call__(
        self,
        texts: list[str] | tuple[str, ...],
        on_progress: Callable[[int], None] | None = None,
        first_index: int = 0,
    ) -> list[Generated]: ...

    def __call__(
        self,
        texts: str | Sequence[str],
        on_progress: Callable[[int], None] | None = None,
        first_index: int = 0,
    ) -> Generated | list[Generated]:
        """Writes a text for one text, or for each text of a list.

        Args:
          on_progress: called after each batch with the number of texts that it had.
          first_index: the index of the first text, from which sampling derives random numbers.

        Raises:
          UserError: the model cannot read a text.
        """
        if isinstance(texts, str):
            return self._write([texts], None, first_index)[0]
        require_list_of_texts(texts)
        return self._write(texts, on_progress, first_index)

    @abc.abstractmethod
    def _write(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int], None] | None,
        first_index: int,
    ) -> list[Generated]:
        """Writes a text for each text; see `__call__`."""


def with_text_indices(
    batches: Iterable[tuple[list[int], Arrays]], text_indices: Sequence[int]
) -> Iterator[tuple[list[int], Arrays]]:
    """Adds the field `text_indices`, int32 [B], to the batches of `padded_batches`.

    Args:
      text_indices: the number of each text, from which its random numbers are derived.
    """
    for rows, batch in batches:
        indices = np.zeros(len(batch["input_ids"]), np.int32)
        indices[: len(rows)] = [text_indices[row] for row in rows]
        yield rows, {**batch, "text_indices": indices}
