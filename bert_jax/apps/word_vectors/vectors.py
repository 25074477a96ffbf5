"""Holds static word vectors, and reads and writes them in the text format of word2vec.

vectors = read_word_vectors("skip-gram.txt")
vectors["bank"]                             # float32 [D]
vectors.nearest(vectors["bank"], 5)         # [("banks", 0.71), ...]
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from bert_jax.apps.word_vectors.sentences import split_words
from bert_jax.errors import UserError, did_you_mean
from bert_jax.io.atomic_io import atomic_write
from bert_jax.text.files import read_text


class WordVectors:
    """Maps words to vectors.

    Attributes:
      words: the words, the most frequent first.
      array: float32 [V, D], one row for each word.
      layer_names: the name of the only layer that `embed` has.
    """

    layer_names = ("static",)

    def __init__(self, words: Sequence[str], array: np.ndarray):
        """Checks that there is one finite row for each word, and no word twice.

        Raises:
          UserError: a word occurs twice, or a vector has values that are not finite.
        """
        if array.ndim != 2 or len(words) != len(array):
            raise ValueError(f"{len(words)} words have vectors of shape {array.shape}")
        self.words, self.array = list(words), np.asarray(array, np.float32)
        self._index: Mapping[str, int] = {word: row for row, word in enumerate(self.words)}
        if len(self._index) < len(self.words):
            double = next(w for row, w in enumerate(self.words) if self._index[w] != row)
            raise UserError(f"the word {double!r} has two vectors; expected one for each word")
        finite = np.isfinite(self.array).all(axis=1)
        if not finite.all():
            raise UserError(
                f"the vector of {self.words[int(np.argmin(finite))]!r} has values that are not "
                "finite; train the vectors again with a smaller learning rate"
            )

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def __getitem__(self, word: str) -> np.ndarray:
        """Returns the vector of a word; UserError with similar words if there is none."""
        if word not in self._index:
            raise UserError(
                f"there is no vector of {word!r}; {did_you_mean(word, self.words)}expected one of "
                f"{len(self):,} words"
            )
        return self.array[self._index[word]]

    @cached_property
    def unit(self) -> np.ndarray:
        """The vectors divided by their lengths, float32 [V, D]; a zero vector remains zero."""
        lengths = np.linalg.norm(self.array, axis=1, keepdims=True)
        return self.array / np.where(lengths == 0, 1, lengths)

    def nearest(self, vector: np.ndarray, number: int) -> list[tuple[str, float]]:
        """Returns the words with the largest cosines to a vector, and the cosines."""
        cosines = self.unit @ (vector / max(float(np.linalg.norm(vector)), 1e-30))
        best = np.argsort(-cosines, kind="stable")[:number]
        return [(self.words[row], float(cosines[row])) for row in best]

    def embed(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the vectors of the words of each text, float32 [words, 1 layer, D].

        A word without a vector has zeros.
        """
        zeros = np.zeros(self.array.shape[1], np.float32)
        return [
            np.array(
                [self.array[self._index[w]] if w in self else zeros for w in split_words(text)],
                np.float32,
            ).reshape(-1, 1, len(zeros))
            for text in texts
        ]


def write_word_vectors(path: str | Path, vectors: WordVectors) -> None:
    """Writes vectors in word2vec's text format: a line with V and D, then a line for each word."""
    lines = [f"{len(vectors)} {vectors.array.shape[1]}"]
    # Nine digits tell all float32 numbers apart.
    lines += [
        " ".join([word, *(f"{x:.9g}" for x in row)])
        for word, row in zip(vectors.words, vectors.array.tolist(), strict=True)
    ]
    atomic_write(Path(path), "\n".join(lines) + "\n")


def read_word_vectors(path: str | Path) -> WordVectors:
    """Reads vectors in the text format of word2vec, or of GloVe, which has no first line.

    Raises:
      UserError: the file is missing or damaged; the message has the line.
    """
    lines = read_text(path).rstrip("\n").split("\n")
    header = lines[0].split()
    has_header = len(header) == 2 and all(number.isdigit() for number in header)
    first = 1 if has_header else 0
    size = int(header[1]) if has_header else len(header) - 1
    if size < 1 or (has_header and len(lines) - 1 != int(header[0])):
        found = f"{len(lines) - first:,} vectors after the first line {lines[0][:60]!r}"
        raise UserError(
            f"{path}: {found}; expected word2vec's text format: the numbers of words and of "
            "dimensions, then a line for each word, as `bert-jax word-vectors train` writes"
        )
    words, array = list[str](), np.zeros((len(lines) - first, size), np.float32)
    for row, line in enumerate(lines[first:]):
        # Some words of GloVe contain spaces.
        word, *values = line.rstrip().rsplit(" ", size)
        try:
            array[row] = np.array(values, np.float32).reshape(size)
        except ValueError:
            raise UserError(
                f"{path}, line {row + first + 1}: {line[:60]!r}; expected a word and {size} "
                "numbers, separated by spaces"
            ) from None
        words.append(word)
    try:
        return WordVectors(words, array)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
