"""Entities against seqeval, the official counts of CoNLL-2003, and their own invariants."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.evals.ner_metrics import (
    Entity,
    decode_tags,
    entity_errors,
    entity_metrics,
    entity_spans,
    entity_table,
    repair_iob2,
)

TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-geo-x", "I-geo-x")

# It is no dependency: its last release (2020) builds with an old setuptools-scm only.
WHY_NO_SEQEVAL = "seqeval is not installed: PIP_CONSTRAINT=$PWD/constraints.txt pip install seqeval"

tag_lists = st.lists(st.sampled_from(TAGS), max_size=12)
# As many tags as words, in both.
sentences = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
).map(lambda rows: ([[g for g, _ in row] for row in rows], [[p for _, p in row] for row in rows]))


def tags(text: str) -> list[str]:
    return text.split()


def conll_tags(file: Path) -> list[list[str]]:
    """The last column of a CoNLL-2003 file, sentence by sentence; its scheme is IOB1."""
    blocks = file.read_text(encoding="utf-8").split("\n\n")
    rows = [[line.split()[-1] for line in block.splitlines() if line.strip()] for block in blocks]
    return [row for row in rows if row]


def perturbed(rows: list[list[str]], seed: int, share: float = 0.1) -> list[list[str]]:
    """The same with some tags replaced by others, so not always in valid IOB2."""
    random = np.random.default_rng(seed)
    known = sorted({tag for row in rows for tag in row})
    return [
        [known[random.integers(len(known))] if random.random() < share else tag for tag in row]
        for row in rows
    ]


def chunks(row: list[str]) -> set[tuple[str, int, int]]:
    """(type, first, last word) by the rules of conlleval: where a chunk starts, where one ends."""
    padded, found, start = ["O", *row, "O"], set(), 0
    for place, (left, right) in enumerate(itertools.pairwise(padded)):
        other = left[2:] != right[2:]
        if left != "O" and (right[0] in "BO" or other):
            found.add((left[2:], start, place - 1))
        if right != "O" and (right[0] == "B" or left == "O" or other):
            start = place
    return found


def plain_metrics(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    wanted = {(row, *chunk) for row, tags in enumerate(gold) for chunk in chunks(tags)}
    given = {(row, *chunk) for row, tags in enumerate(predicted) for chunk in chunks(tags)}
    pairs = [pair for g, p in zip(gold, predicted, strict=True) for pair in zip(g, p, strict=True)]

    def f1(kinds: set[str]) -> float:
        some, others = ({c for c in all_ if c[1] in kinds} for all_ in (wanted, given))
        return 2 * len(some & others) / max(1, len(some) + len(others))

    kinds = {chunk[1] for chunk in wanted | given}
    return {
        "precision": len(wanted & given) / max(1, len(given)),
        "recall": len(wanted & given) / max(1, len(wanted)),
        "f1": f1(kinds),
        "f1_macro": sum(f1({kind}) for kind in kinds) / max(1, len(kinds)),
        "token_accuracy": sum(g == p for g, p in pairs) / len(pairs),
    }


def assert_equal_to_seqeval(gold: list[list[str]], predicted: list[list[str]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason=WHY_NO_SEQEVAL)
    settings = {"y_true": gold, "y_pred": predicted, "zero_division": 0}
    expected = {
        "precision": seqeval.precision_score(**settings),
        "recall": seqeval.recall_score(**settings),
        "f1": seqeval.f1_score(**settings),
        "f1_macro": seqeval.f1_score(**settings, average="macro"),
        "token_accuracy": seqeval.accuracy_score(gold, predicted),
    }
    assert entity_metrics(gold, predicted) == pytest.approx(expected, abs=1e-9)
    report = seqeval.classification_report(**settings, output_dict=True)
    for row in entity_table(gold, predicted):
        theirs = report[row.name]
        assert (row.precision, row.recall, row.f1, row.support) == pytest.approx(
            tuple(theirs[key] for key in ("precision", "recall", "f1-score", "support")), abs=1e-9
        )


@settings(deadline=None)
@given(sentences)
def test_equal_to_conlleval_restated(rows: tuple[list[list[str]], list[list[str]]]):
    gold, predicted = rows
    assert entity_metrics(gold, predicted) == pytest.approx(plain_metrics(*rows), abs=1e-9)
    for row in (*gold, *predicted):
        assert {(e.type, e.start, e.end - 1) for e in entity_spans(row)} == chunks(row)


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_seqeval_on_random_tags(seed: int):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 15, 60)
    gold, predicted = (
        [[TAGS[k] for k in random.integers(len(TAGS), size=length)] for length in lengths]
        for _ in range(2)
    )
    assert_equal_to_seqeval(gold, predicted)


@pytest.mark.parametrize("split, entities", [("testa", 5942), ("testb", 5648)])
def test_the_entities_of_conll_2003(shared: Path, split: str, entities: int):
    iob1 = conll_tags(shared / "ner/conll2003" / f"eng.{split}")
    gold = [repair_iob2(row) for row in iob1]
    assert sum(len(entity_spans(row)) for row in iob1) == entities
    assert [entity_spans(row) for row in iob1] == [entity_spans(row) for row in gold]
    predicted = perturbed(gold, seed=0)
    found = entity_metrics(gold, predicted)
    assert found == pytest.approx(plain_metrics(gold, predicted), abs=1e-9)
    assert 0 < found["f1"] < found["token_accuracy"] < 1


def test_equal_to_seqeval_on_conll_2003(shared: Path):
    gold = [repair_iob2(row) for row in conll_tags(shared / "ner/conll2003/eng.testb")]
    assert_equal_to_seqeval(gold, perturbed(gold, seed=1))


def test_reading_as_conlleval_does():
    read = entity_spans(tags("I-PER I-PER I-LOC B-LOC I-LOC O I-LOC B-geo-x I-geo-x I-LOC"))
    assert read == [
        Entity("PER", 0, 2),
        Entity("LOC", 2, 3),
        Entity("LOC", 3, 5),
        Entity("LOC", 6, 7),
        Entity("geo-x", 7, 9),
        Entity("LOC", 9, 10),
    ]
    assert entity_spans([]) == entity_spans(["O", "O"]) == []


@settings(deadline=None)
@given(tag_lists)
def test_repairing_keeps_the_entities_and_leaves_valid_tags(drawn: list[str]):
    repaired = repair_iob2(drawn)
    assert entity_spans(repaired) == entity_spans(drawn)
    assert repair_iob2(repaired) == repaired
    for previous, tag in itertools.pairwise(["O", *repaired]):
        assert tag[:2] != "I-" or previous[2:] == tag[2:]


@settings(deadline=None)
@given(sentences)
def test_every_entity_is_accounted_for_once(rows: tuple[list[list[str]], list[list[str]]]):
    gold, predicted = rows
    errors = {row.type: row for row in entity_errors(gold, predicted)}
    table = {row.name: row for row in entity_table(gold, predicted)}
    assert errors.keys() == table.keys()
    for kind, row in errors.items():
        parts = row.correct + row.wrong_type + row.wrong_boundary + row.missed
        assert parts == table[kind].support
        assert row.correct == pytest.approx(table[kind].recall * table[kind].support)
    guesses = sum(len(entity_spans(row)) for row in predicted)
    explained = sum(r.correct + r.wrong_type + r.wrong_boundary for r in errors.values())
    assert explained + sum(r.spurious for r in errors.values()) == guesses


def test_kinds_of_errors():
    gold = [tags("B-PER I-PER O B-LOC O B-LOC I-LOC O B-PER O O")]
    guess = [tags("B-PER I-PER O B-PER O B-LOC O O O O B-LOC")]
    loc, per = entity_errors(gold, guess)
    assert (loc.type, loc.correct, loc.wrong_type, loc.wrong_boundary) == ("LOC", 0, 1, 1)
    assert (loc.missed, loc.spurious) == (0, 1)
    assert (per.type, per.correct, per.missed, per.spurious) == ("PER", 1, 1, 0)


def test_decoding_reads_first_pieces_and_repairs():
    labels = ("O", "B-PER", "I-PER")
    # [CLS] and the second piece of word 1 are not read; word 3 was cut off.
    logits = np.array([[9, 0, 0], [0, 1, 5], [0, 1, 2], [9, 0, 0], [2, 1, 0], [9, 0, 0.0]])
    logits[0] = np.nan
    assert decode_tags(logits, np.array([1, 2, 4, -1]), labels) == ["B-PER", "I-PER", "O", "O"]
    assert decode_tags(logits, np.array([], int), labels) == []
    with pytest.raises(UserError, match="the logits hold nan, first at 1, 0"):
        decode_tags(logits, np.array([1, 0]), labels)
    with pytest.raises(
        UserError, match="head of the model has 3 tags, but the task has 2: O, B-PER"
    ):
        decode_tags(logits, np.array([1]), labels[:2])


@pytest.mark.parametrize(
    "gold, predicted, message",
    [
        ([], [], "no sentences with labels"),
        ([["O", "O"]], [["O"]], "sentence 0 has 2 reference tags, but 1 predicted"),
        ([["O"]], [["PER"]], "the tag 'PER' is not IOB2"),
        ([["B-"]], [["O"]], "the tag 'B-' is not IOB2"),
        ([["S-PER"]], [["O"]], "the tag 'S-PER' is not IOB2"),
    ],
)
def test_what_cannot_be_measured(gold, predicted, message):
    with pytest.raises(UserError, match=message):
        entity_metrics(gold, predicted)


def test_nothing_found_and_nothing_there():
    zeros = {"precision": 0, "recall": 0, "f1": 0, "f1_macro": 0}
    assert entity_metrics([["O"]], [["O"]]) == {**zeros, "token_accuracy": 1}
    assert entity_metrics([["B-PER"]], [["O"]]) == {**zeros, "token_accuracy": 0}
