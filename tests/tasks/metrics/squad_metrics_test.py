"""Compares SQuAD metrics with a reimplementation of the official rules."""

import gzip
import json
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.squad_metrics import (
    AnswerScores,
    normalize_answer,
    question_word,
    question_word_table,
    squad1_metrics,
    squad1_scores,
    squad2_metrics,
    squad2_scores,
)

texts = st.text(alphabet="ab theA.,- \u00a0én\t1’", max_size=14)


def words(text: str) -> list[str]:
    """Returns the words of an answer without articles, found character by character."""
    without_punctuation = "".join(c for c in text.lower() if c not in string.punctuation)
    # Only whole words are articles: the characters next to them are not part of words.
    spaced, run = "", ""
    for character in without_punctuation + " ":
        if character.isalnum() or character == "_":
            run += character
        else:
            spaced += (" " if run in ("a", "an", "the") else run) + character
            run = ""
    return spaced.split()


def overlap_f1(references: list[str], guess: list[str]) -> float:
    left, common = list(references), 0
    for word in guess:
        if word in left:
            left.remove(word)
            common += 1
    return 2 * common / (len(references) + len(guess)) if common else 0.0


def plain_v1(references: Sequence[Sequence[str]], guesses: Sequence[str]) -> dict[str, float]:
    exact = [
        any(words(a) == words(g) for a in row) for row, g in zip(references, guesses, strict=True)
    ]
    f1 = [
        max(overlap_f1(words(a), words(g)) for a in row)
        for row, g in zip(references, guesses, strict=True)
    ]
    return {"exact_match": 100 * sum(exact) / len(exact), "f1": 100 * sum(f1) / len(f1)}


def plain_v2(
    references: Sequence[Sequence[str]],
    guesses: Sequence[str],
    doubts: Sequence[float],
    bound: float,
) -> dict[str, float]:
    """Computes exact, f1 and total at one threshold: all questions, HasAns, NoAns."""
    groups: dict[str, list[tuple[float, float]]] = {"": [], "HasAns_": [], "NoAns_": []}
    for row, guess, doubt in zip(references, guesses, doubts, strict=True):
        answers = [words(answer) for answer in row if words(answer)] or [[]]
        if doubt > bound:
            scores = (float(not row), float(not row))
        else:
            exact = max(answer == words(guess) for answer in answers)
            f1 = max(
                1.0 if not answer and not words(guess) else overlap_f1(answer, words(guess))
                for answer in answers
            )
            scores = (float(exact), f1)
        groups[""].append(scores)
        groups["HasAns_" if row else "NoAns_"].append(scores)
    found: dict[str, float] = {}
    for prefix, rows in groups.items():
        if rows:
            found[f"{prefix}exact"] = 100 * sum(exact for exact, _ in rows) / len(rows)
            found[f"{prefix}f1"] = 100 * sum(f1 for _, f1 in rows) / len(rows)
            found[f"{prefix}total"] = len(rows)
    return found


def read_squad(file: Path) -> tuple[list[str], list[list[str]]]:
    """Returns the questions and the texts of their reference answers."""
    articles = json.loads(gzip.decompress(file.read_bytes()))["data"]
    items = [qa for a in articles for paragraph in a["paragraphs"] for qa in paragraph["qas"]]
    return [qa["question"] for qa in items], [[a["text"] for a in qa["answers"]] for qa in items]


def perturbed(references: list[list[str]], seed: int) -> list[str]:
    """Changes reference answers: shorter, longer, upper case, of another question, or empty."""
    random = np.random.default_rng(seed)
    guesses = []
    for row in references:
        other = references[random.integers(len(references))]
        text = row[random.integers(len(row))] if row else (other or ["the thing"])[0]
        part = text.split()[: 1 + random.integers(3)]
        options = [text, " ".join(part), f"the {text}, of 1066", text.upper() + "!", "an", ""]
        guesses.append(options[random.integers(len(options))])
    return guesses


@settings(deadline=None)
@given(texts)
def test_normalize_answer_on_random_text(text: str):
    assert normalize_answer(text) == " ".join(words(text))


def test_normalize_answer_by_example():
    assert normalize_answer("  The U.S.A.,\t an  'apple'-A day!") == "usa applea day"
    assert normalize_answer("Beyoncé’s THE\u00a0band") == "beyoncé’s band"
    assert normalize_answer("a an the") == normalize_answer("!?") == ""


questions = st.lists(
    st.tuples(st.lists(texts, max_size=3), texts, st.sampled_from([0.0, 0.1, 0.4, 0.9, 1.0])),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(questions)
def test_random_answers(rows: list[tuple[list[str], str, float]]):
    references, guesses = [row[0] for row in rows], [row[1] for row in rows]
    doubts = [row[2] for row in rows]
    one = [row or ["x"] for row in references]
    assert squad1_metrics(one, guesses) == pytest.approx(plain_v1(one, guesses), abs=1e-9)
    found = squad2_metrics(references, guesses, np.array(doubts), 0.4)
    best = {name for name in found if name.startswith("best")}
    expected = plain_v2(references, guesses, doubts, 0.4)
    assert {name: found[name] for name in found.keys() - best} == pytest.approx(expected, abs=1e-9)


def test_real_answers_v1(shared: Path):
    _, references = read_squad(shared / "squad/dev-v1.1.json.gz")
    guesses = perturbed(references, seed=0)
    assert len(references) == 10570
    assert squad1_metrics(references, guesses) == pytest.approx(
        plain_v1(references, guesses), abs=1e-9
    )
    first = [row[0] for row in references]
    assert squad1_metrics(references, first)["exact_match"] == 100


def test_real_answers_v2(shared: Path):
    _, references = read_squad(shared / "squad/v2.0/cs224n-dev-v2.0.json.gz")
    guesses = perturbed(references, seed=1)
    random = np.random.default_rng(2)
    doubts = random.normal(size=len(references)) - np.array([bool(row) for row in references])
    found = squad2_metrics(references, guesses, doubts, 0.2)
    assert found["total"] == 6078 and found["NoAns_total"] == 3168
    expected = plain_v2(references, guesses, doubts.tolist(), 0.2)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_best_threshold_is_optimal(seed: int):
    random = np.random.default_rng(seed)
    references = [["red apple"] if answerable else [] for answerable in random.random(40) < 0.6]
    guesses = random.choice(["red apple", "apple", "pear", ""], 40).tolist()
    doubts = random.random(40)
    found = squad2_metrics(references, guesses, doubts)
    for name in ("exact", "f1"):
        reached = [plain_v2(references, guesses, doubts.tolist(), bound)[name] for bound in doubts]
        nothing = plain_v2(references, guesses, doubts.tolist(), -1)[name]
        assert found[f"best_{name}"] == pytest.approx(max([*reached, nothing]), abs=1e-9)
        there = squad2_metrics(references, guesses, doubts, found[f"best_{name}_thresh"])
        assert there[name] == pytest.approx(found[f"best_{name}"], abs=1e-9)


def test_differences_between_the_two_scripts():
    wordless = [["the"]]
    assert squad1_scores(wordless, ["an"]).exact == [1] and squad1_scores(wordless, ["an"]).f1 == [
        0
    ]
    assert squad2_scores(wordless, ["an"]).exact == [1] and squad2_scores(wordless, ["an"]).f1 == [
        1
    ]
    assert squad2_scores([["the", "cat"]], [""]).exact == [
        0
    ]  # a reference answer without words counts as no answer


def test_never_answering_can_be_the_best():
    found = squad2_metrics([[], [], ["x"]], ["p", "q", "r"], np.array([0.2, 0.3, 0.1]), 0.25)
    assert found["best_exact"] == found["best_f1"] == pytest.approx(200 / 3)
    assert found["best_exact_thresh"] == found["best_f1_thresh"] == 0
    assert found["exact"] == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    "question, word",
    [
        ("What is it?", "what"),
        ("In what year did who leave?", "what"),
        ("Whose dog, and why?", "who"),
        ("To whom?", "who"),
        ("how MANY are there", "how many"),
        ("How much is left?", "how many"),
        ("How is it that many left?", "how"),
        ("Name the city where it is", "where"),
        ("Somewhat whatever?", "other"),
        ("", "other"),
    ],
)
def test_question_word_of_a_question(question: str, word: str):
    assert question_word(question) == word


def test_table_by_question_word():
    scores = AnswerScores(exact=np.array([1.0, 0, 0, 1]), f1=np.array([1.0, 0.5, 0, 1]))
    what, who, other = question_word_table(["What?", "who?", "what?", "Go"], scores)
    assert (what.word, what.count, what.exact_match, what.f1) == ("what", 2, 50, 50)
    assert (who.word, who.count, who.exact_match, who.f1) == ("who", 1, 0, 50)
    assert (other.word, other.count, other.f1) == ("other", 1, 100)


def test_invalid_inputs_are_rejected():
    with pytest.raises(UserError, match="no questions with labels"):
        squad1_metrics([], [])
    with pytest.raises(UserError, match=r"question 1 has no reference answer; .* metrics of 2\.0"):
        squad1_metrics([["x"], []], ["x", "y"])
    with pytest.raises(UserError, match="no-answer scores hold nan, first at 1"):
        squad2_metrics([["x"], []], ["x", "y"], np.array([0, np.nan]))
    with pytest.raises(ValueError, match="questions do not pair up: 1 and 2"):
        squad1_metrics([["x"]], ["x", "y"])
