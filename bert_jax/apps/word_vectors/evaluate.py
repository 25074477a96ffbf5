"""Evaluates word vectors on word similarity and analogies, as gensim and the papers do.

Words are compared without regard to case; of several words that differ in case only, the first one,
which is the most frequent, counts.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from bert_jax.apps.word_vectors.vectors import WordVectors
from bert_jax.errors import MissingExtraError, UserError
from bert_jax.text.files import read_text

SIMILARITY_FILES = ("wordsim353.tsv", "simlex999.txt")
ANALOGIES_FILE = "questions-words.txt"
_QUESTIONS_AT_ONCE = 256


class Similarity(NamedTuple):
    """Holds the result on pairs of words with ratings of people.

    Attributes:
      spearman: the rank correlation of cosines and ratings; NaN for fewer than two pairs.
      pairs: pairs whose words have vectors.
      missing: the other pairs, which are left out.
    """

    spearman: float
    pairs: int
    missing: int


class Analogies(NamedTuple):
    """Holds the result on questions "a is to b as c is to ?".

    Attributes:
      accuracy: the fraction of answers that are correct; NaN without questions.
      questions: questions whose four words have vectors.
      missing: the other questions, which are left out.
    """

    accuracy: float
    questions: int
    missing: int


def evaluation_file(name: str) -> Path:
    """Returns the path of an evaluation file in the package of gensim.

    Raises:
      MissingExtraError: gensim is not installed.
    """
    found = importlib.util.find_spec("gensim")
    if found is None or found.origin is None:
        raise MissingExtraError(
            "WordSim-353, SimLex-999 and the analogies are files of gensim", "word-vectors"
        )
    return Path(found.origin).parent / "test" / "test_data" / name


def evaluate_similarity(vectors: WordVectors, file: str | Path) -> Similarity:
    """Computes Spearman's rank correlation of cosines with the ratings of a file.

    Args:
      file: lines with two words and a rating between tabs; lines that begin with # are comments.

    Raises:
      UserError: the file is missing, or a line has other fields.
    """
    rows, ratings, cosines, missing = _first_rows(vectors), list[float](), list[float](), 0
    for number, line in _lines(file):
        if line.startswith("#"):
            continue
        try:
            first, second, rating = (word.strip() for word in line.split("\t"))
            value = float(rating)
        except ValueError:
            raise UserError(
                f"{file}, line {number}: {line[:60]!r}; expected two words and a number, with "
                "tabs between them"
            ) from None
        pair = [rows.get(word.upper()) for word in (first, second)]
        if None in pair:
            missing += 1
            continue
        ratings.append(value)
        cosines.append(float(vectors.unit[pair[0]] @ vectors.unit[pair[1]]))
    correlation: Any = spearmanr(ratings, cosines)[0] if len(ratings) > 1 else np.nan
    return Similarity(float(correlation), len(ratings), missing)


def evaluate_analogies(vectors: WordVectors, file: str | Path) -> dict[str, Analogies]:
    """Answers analogies by 3CosAdd (Mikolov et al. 2013), and counts correct answers.

    The answer to "a is to b as c is to ?" is the word with the largest cosine to b - a + c, of
    vectors of length 1, that is none of the three words.

    Args:
      file: lines with four words, under headings that begin with a colon, as questions-words.txt.

    Returns:
      The result of each section, and that of all under "all".

    Raises:
      UserError: the file is missing, or a line has other fields.
    """
    rows = _first_rows(vectors)
    sections: dict[str, list[list[int | None]]] = {}
    section = ""
    for number, line in _lines(file):
        if line.startswith(":"):
            section = line.removeprefix(":").strip()
            continue
        words = line.split()
        if len(words) != 4:
            raise UserError(f"{file}, line {number}: {line[:60]!r}; expected four words")
        sections.setdefault(section, []).append([rows.get(word.upper()) for word in words])
    candidates = np.array(sorted(rows.values()), np.int64)
    found, totals = dict[str, Analogies](), np.zeros(3, np.int64)
    for name, questions in sections.items():
        complete = [question for question in questions if None not in question]
        correct = _count_correct(vectors.unit, np.array(complete, np.int64), candidates)
        totals += (correct, len(complete), len(questions) - len(complete))
        found[name] = _analogies(correct, len(complete), len(questions) - len(complete))
    return {**found, "all": _analogies(*totals.tolist())}


def _analogies(correct: int, questions: int, missing: int) -> Analogies:
    return Analogies(correct / questions if questions else np.nan, questions, missing)


def _count_correct(unit: np.ndarray, questions: np.ndarray, candidates: np.ndarray) -> int:
    """Returns the number of correct answers to questions, rows of words int [n, 4]."""
    correct, column = 0, np.full(len(unit), -1)
    column[candidates] = np.arange(len(candidates))
    for start in range(0, len(questions), _QUESTIONS_AT_ONCE):
        rows = questions[start : start + _QUESTIONS_AT_ONCE]
        a, b, c, answers = rows.T
        cosines = (unit[b] - unit[a] + unit[c]) @ unit[candidates].T
        np.put_along_axis(cosines, column[rows[:, :3]], -np.inf, axis=1)
        correct += int((candidates[cosines.argmax(axis=1)] == answers).sum())
    return correct


def _first_rows(vectors: WordVectors) -> dict[str, int]:
    """Returns the row of each word in upper case; the first word counts."""
    rows: dict[str, int] = {}
    for row, word in enumerate(vectors.words):
        rows.setdefault(word.upper(), row)
    return rows


def _lines(file: str | Path) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, line) of the lines that are not blank."""
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def evaluation_rows(
    vectors: WordVectors, similarity: Sequence[str | Path], analogies: Sequence[str | Path]
) -> dict[str, dict[str, dict[str, float]]]:
    """Evaluates vectors on several files.

    Returns:
      {"similarity": {file name: fields of `Similarity`}, "analogies": {section: of `Analogies`}};
      the sections of several files have the name of their file before them.
    """
    found: dict[str, dict[str, dict[str, float]]] = {"similarity": {}, "analogies": {}}
    for file in similarity:
        found["similarity"][Path(file).stem] = evaluate_similarity(vectors, file)._asdict()
    for file in analogies:
        prefix = f"{Path(file).stem}/" if len(analogies) > 1 else ""
        for section, result in evaluate_analogies(vectors, file).items():
            found["analogies"][prefix + section] = result._asdict()
    return found
