"""Ranks examples by the cosine similarity of their sentence vectors to the vectors of an input.

The vectors are read from a file, because this package runs no model; `bert-jax embed` writes one.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.finetuning.example import TextExample
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write
from bert_jax.io.json_io import parse_json_line
from bert_jax.tasks.metrics.vectors import normalize_vectors


class TextVectors:
    """Holds vectors of length 1 of texts and pairs; the texts of a pair are joined with a space."""

    def __init__(self, file: str | Path, vectors: Mapping[str, np.ndarray]):
        """Stores float32 vectors [E] by text, read from `file`, which messages name."""
        self._file, self._vectors = file, vectors

    def __call__(self, example: TextExample) -> np.ndarray:
        """Returns the vector of an example, float32 [E].

        Raises:
          UserError: the file has none.
        """
        text = vector_text(example)
        if text not in self._vectors:
            raise UserError(
                f"{self._file} has no vector of the text {text!r}, by which similar demonstrations "
                "are chosen; expected those of all inputs: add it with `bert-jax embed`"
            )
        return self._vectors[text]

    def __contains__(self, text: str) -> bool:
        """Returns whether there is a vector of a text, or of a pair as `vector_text` joins it."""
        return text in self._vectors


def vector_text(example: TextExample) -> str:
    """Returns the text whose vector stands for an example."""
    return " ".join(filter(None, (example.text, example.text_pair)))


def read_text_vectors(file: str | Path) -> TextVectors:
    """Reads JSON lines with "text" and "embedding".

    Raises:
      UserError: the file cannot be read, or a line is invalid or has a vector of another size.
    """
    try:
        with open(file, encoding="utf-8", newline="\n") as stream:
            lines = [line.rstrip("\n") for line in stream]
    except OSError as error:
        raise UserError(
            f"{file} cannot be read: {error.strerror}; expected the output of `bert-jax embed`"
        ) from None
    vectors: dict[str, np.ndarray] = {}
    size = None
    for number, line in enumerate(lines, start=1):
        match parse_json_line(file, number, line):
            case {"text": str() as text, "embedding": [*values]} if all(
                isinstance(value, int | float) for value in values
            ):
                vector = np.array(values, np.float32)
            case _:
                raise UserError(
                    f'{file}, line {number}: expected a JSON object with "text", a string, and '
                    '"embedding", a list of numbers, as `bert-jax embed` writes them'
                )
        size = len(vector) if size is None else size
        if len(vector) != size or not size:
            raise UserError(
                f"{file}, line {number}: the embedding has {len(vector)} numbers; expected {size} "
                "as in line 1, and at least one"
            )
        vectors[text] = normalize_vectors(vector)
    return TextVectors(file, vectors)


def rank_by_similarity(vector: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Returns the indices of the candidates, those with the greatest cosine first.

    Of equal ones, those with the smaller index come first.

    Args:
      vector: float32 [E] of length 1.
      candidates: float32 [n, E], rows of length 1.
    """
    return np.argsort(-(candidates @ vector), kind="stable")


def add_text_vectors(file: Path, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Adds vectors of texts, [n, E], to a file for `read_text_vectors`; makes it if necessary."""
    lines = [
        json.dumps({"text": text, "embedding": vector.tolist()}) + "\n"
        for text, vector in zip(texts, vectors, strict=True)
    ]
    saved = file.read_text(encoding="utf-8") if file.exists() else ""
    atomic_write(file, saved + "".join(lines))
