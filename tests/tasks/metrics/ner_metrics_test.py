"""Compares entity metrics with seqeval, conlleval and the official counts of CoNLL-2003."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.ner_metrics import (
    Entity,
    decode_tags,
    entity_errors,
    entity_metrics,
    entity_spans,
    entity_table,
    repair_iob2,
)

TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-geo-x", "I-geo-x")

# seqeval is no dependency: its last release (2020) builds only with an old setuptools-scm.
WHY_NO_SEQEVAL = "seqeval is not installed: PIP_CONSTRAINT=$PWD/constraints.txt pip install seqeval"

tag_lists = st.lists(st.sampled_from(TAGS), max_size=12)
# Reference and predicted tags of equal length.
sentences = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
).map(lambda rows: ([[g for g, _ in row] for row in rows], [[p for _, p in row] for row in rows]))


def tags(text: str) -> list[str]:
    return text.split()


def conll_tags(file: Path) -> list[list[str]]:
    """Returns the tags (last column, IOB1) of each sentence of a CoNLL-2003 file."""
    blocks = file.read_text(encoding="utf-8").split("\n\n")
    rows = [[line.split()[-1] for line in block.splitlines() if line.strip()] for block in blocks]
    return [row for row in rows if row]


def perturbed(rows: list[list[str]], seed: int, fraction: float = 0.1) -> list[list[str]]:
    """Replaces some tags at random; the result is not always valid IOB2."""
    random = np.random.default_rng(seed)
    known = sorted({tag for row in rows for tag in row})
    return [
        [known[random.integers(len(known))] if random.random() < fraction else tag for tag in row]
        for row in rows
    ]


def chunks(row: list[str]) -> set[tuple[str, int, int]]:
    """Returns (type, first, last word) of all chunks by the rules of conlleval."""
    padded, found, start = ["O", *row, "O"], set(), 0
    for place, (left, right) in enumerate(itertools.pairwise(padded)):
        other = left[2:] != right[2:]
        if left != "O" and (right[0] in "BO" or other):
            found.add((left[2:], start, place - 1))
        if right != "O" and (right[0] == "B" or left == "O" or other):
            start = place
    return found


def plain_metrics(references: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    wanted = {(row, *chunk) for row, tags in enumerate(references) for chunk in chunks(tags)}
    given = {(row, *chunk) for row, tags in enumerate(predicted) for chunk in chunks(tags)}
    pairs = [
        pair for g, p in zip(references, predicted, strict=True) for pair in zip(g, p, strict=True)
    ]

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


def assert_equal_to_seqeval(references: list[list[str]], predicted: list[list[str]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason=WHY_NO_SEQEVAL)
    settings = {"y_true": references, "y_pred": predicted, "zero_division": 0}
    expected = {
        "precision": seqeval.precision_score(**settings),
        "recall": seqeval.recall_score(**settings),
        "f1": seqeval.f1_score(**settings),
        "f1_macro": seqeval.f1_score(**settings, average="macro"),
        "token_accuracy": seqeval.accuracy_score(references, predicted),
    }
    assert entity_metrics(references, predicted) == pytest.approx(expected, abs=1e-9)
    report = seqeval.classification_report(**settings, output_dict=True)
    for row in entity_table(references, predicted):
        expected_row = report[row.name]
        assert (row.precision, row.recall, row.f1, row.support) == pytest.approx(
            tuple(expected_row[key] for key in ("precision", "recall", "f1-score", "support")),
            abs=1e-9,
        )


@settings(deadline=None)
@given(sentences)
def test_equal_to_reimplemented_conlleval(rows: tuple[list[list[str]], list[list[str]]]):
    references, predicted = rows
    assert entity_metrics(references, predicted) == pytest.approx(plain_metrics(*rows), abs=1e-9)
    for row in (*references, *predicted):
        assert {(e.type, e.start, e.end - 1) for e in entity_spans(row)} == chunks(row)


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_seqeval_on_random_tags(seed: int):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 15, 60)
    references, predicted = (
        [[TAGS[k] for k in random.integers(len(TAGS), size=length)] for length in lengths]
        for _ in range(2)
    )
    assert_equal_to_seqeval(references, predicted)


@pytest.mark.parametrize("split, entities", [("testa", 5942), ("testb", 5648)])
def test_entity_counts_of_conll_2003(shared: Path, split: str, entities: int):
    iob1 = conll_tags(shared / "ner/conll2003" / f"eng.{split}")
    references = [repair_iob2(row) for row in iob1]
    assert sum(len(entity_spans(row)) for row in iob1) == entities
    assert [entity_spans(row) for row in iob1] == [entity_spans(row) for row in references]
    predicted = perturbed(references, seed=0)
    found = entity_metrics(references, predicted)
    assert found == pytest.approx(plain_metrics(references, predicted), abs=1e-9)
    assert 0 < found["f1"] < found["token_accuracy"] < 1


def test_equal_to_seqeval_on_conll_2003(shared: Path):
    references = [repair_iob2(row) for row in conll_tags(shared / "ner/conll2003/eng.testb")]
    assert_equal_to_seqeval(references, perturbed(references, seed=1))


def test_invalid_tags_are_read_like_conlleval():
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
def test_repair_keeps_entities_and_gives_valid_tags(random_tags: list[str]):
    repaired = repair_iob2(random_tags)
    assert entity_spans(repaired) == entity_spans(random_tags)
    assert repair_iob2(repaired) == repaired
    for previous, tag in itertools.pairwise(["O", *repaired]):
        assert tag[:2] != "I-" or previous[2:] == tag[2:]


@settings(deadline=None)
@given(sentences)
def test_every_entity_is_counted_once(rows: tuple[list[list[str]], list[list[str]]]):
    references, predicted = rows
    errors = {row.type: row for row in entity_errors(references, predicted)}
    table = {row.name: row for row in entity_table(references, predicted)}
    assert errors.keys() == table.keys()
    for kind, row in errors.items():
        parts = row.correct + row.wrong_type + row.wrong_boundary + row.missed
        assert parts == table[kind].support
        assert row.correct == pytest.approx(table[kind].recall * table[kind].support)
    guesses = sum(len(entity_spans(row)) for row in predicted)
    explained = sum(r.correct + r.wrong_type + r.wrong_boundary for r in errors.values())
    assert explained + sum(r.spurious for r in errors.values()) == guesses


def test_error_types():
    references = [tags("B-PER I-PER O B-LOC O B-LOC I-LOC O B-PER O O")]
    guess = [tags("B-PER I-PER O B-PER O B-LOC O O O O B-LOC")]
    loc, per = entity_errors(references, guess)
    assert (loc.type, loc.correct, loc.wrong_type, loc.wrong_boundary) == ("LOC", 0, 1, 1)
    assert (loc.missed, loc.spurious) == (0, 1)
    assert (per.type, per.correct, per.missed, per.spurious) == ("PER", 1, 1, 0)


def test_decoding_reads_first_tokens_and_repairs_tags():
    labels = ("O", "B-PER", "I-PER")
    # [CLS] and the second token of word 1 are ignored; word 3 was truncated.
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
    "references, predicted, message",
    [
        ([], [], "no sentences with labels"),
        ([["O", "O"]], [["O"]], "sentence 0 has 2 reference tags, but 1 predicted"),
        ([["O"]], [["PER"]], "the tag 'PER' is not IOB2"),
        ([["B-"]], [["O"]], "the tag 'B-' is not IOB2"),
        ([["S-PER"]], [["O"]], "the tag 'S-PER' is not IOB2"),
    ],
)
def test_invalid_inputs_are_rejected(references, predicted, message):
    with pytest.raises(UserError, match=message):
        entity_metrics(references, predicted)


def test_no_predicted_and_no_reference_entities():
    zeros = {"precision": 0, "recall": 0, "f1": 0, "f1_macro": 0}
    assert entity_metrics([["O"]], [["O"]]) == {**zeros, "token_accuracy": 1}
    assert entity_metrics([["B-PER"]], [["O"]]) == {**zeros, "token_accuracy": 0}
