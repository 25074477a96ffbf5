"""Compares vocabularies where a model, a corpus or labeled data meet.

Token ids mean something only in the vocabulary that made them. With another vocabulary, training
runs without an error and learns nothing that can be used.
"""

from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.text.vocabulary import Vocabulary


class Tokenization(NamedTuple):
    """What the vocabulary of a model, a corpus or labeled data is compared by.

    Attributes:
      path: of the model, the corpus or the vocabulary, as the user named it.
      size: number of token ids.
      fingerprint: `Vocabulary.fingerprint`.
    """

    path: str
    size: int
    fingerprint: str

    @classmethod
    def of(cls, vocabulary: Vocabulary, path: str) -> "Tokenization":
        """Describes a vocabulary that belongs to what lies at `path`."""
        return cls(path, vocabulary.size, vocabulary.fingerprint)

    def __str__(self) -> str:
        return f"{self.path} has {self.size:,} tokens, fingerprint {self.fingerprint[:12]}"


def check_same_vocabulary(first: Tokenization, second: Tokenization, next_step: str) -> None:
    """Raises a UserError, which ends with `next_step`, unless both have the same vocabulary."""
    if first.fingerprint != second.fingerprint:
        raise UserError(
            f"{first.path} and {second.path} have different vocabularies: {first}; {second}. "
            f"{next_step}"
        )


def check_embedding_rows(size: int, rows: int, source: str, next_step: str) -> None:
    """Raises unless a vocabulary of `size` tokens fits a word-embedding table of `rows` rows.

    The table may have fewer than 128 unused rows if its size is a multiple of 8, because some
    training programs pad it.

    Raises:
      UserError: it does not fit; the message begins with `source` and ends with `next_step`.
    """
    unused = rows - size
    if unused == 0 or (0 < unused < 128 and rows % 8 == 0):
        return
    raise UserError(
        f"{source}: the vocabulary has {size:,} tokens, but the word-embedding table of the model "
        f"has {rows:,} rows. {next_step}"
    )
