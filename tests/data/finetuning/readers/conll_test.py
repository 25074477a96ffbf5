"""Tests tags in three schemes, the counts of CoNLL-2003, and invalid tag sequences."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.config.labeled_data import Conll, TaskConfig
from bert_jax.data.finetuning.example import TaggedExample
from bert_jax.data.finetuning.readers.conll import detect_scheme, to_iob2
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError


def read(config: TaskConfig) -> Any:
    """Reads a task; untyped, because its examples have many types."""
    return load_task(config)


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def spans(tags) -> list[tuple[int, int, str]]:
    """Returns the spans of IOB2 tags by the definition of IOB2."""
    found = []
    for place, tag in enumerate(tags):
        if tag.startswith("B-"):
            found.append((place, place + 1, tag[2:]))
        elif tag.startswith("I-"):
            begin, end, kind = found.pop()
            assert end == place and kind == tag[2:]
            found.append((begin, place + 1, kind))
    return found


def test_conll_2003_has_its_official_counts(shared):
    folder = shared / "ner" / "conll2003"
    task = read(
        Conll(
            train=str(folder / "eng.train.gz"),
            dev=str(folder / "eng.testa"),
            test=str(folder / "eng.testb"),
            strict=True,
        )
    )
    assert task.labels == (
        "O", "B-LOC", "I-LOC", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER"
    )  # fmt: skip
    counts = {}
    for split, examples in task.splits.items():
        tokens = sum(len(e.words) for e in examples)
        counts[split] = (len(examples), tokens, sum(len(spans(e.tags)) for e in examples))
    assert counts == {
        "train": (14041, 203621, 23499),
        "dev": (3250, 51362, 5942),
        "test": (3453, 46435, 5648),
    }
    assert task.notes == () and task.metrics == ("f1", "token_accuracy")
    first = task.splits["train"][0]
    assert first.words[:3] == ("EU", "rejects", "German")
    assert first.tags[:3] == ("B-ORG", "O", "B-MISC")


@st.composite
def sentences(draw) -> tuple[int, list[tuple[int, int, str]]]:
    """Generates a length and spans (begin, end, type) that do not overlap."""
    found, at = [], 0
    for gap, size, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from("XY")))
    ):
        found.append((at + gap, at + gap + size, kind))
        at += gap + size
    return at + draw(st.integers(0, 2)), found


def tags_of(length: int, found: list[tuple[int, int, str]], scheme: str) -> list[str]:
    tags = ["O"] * length
    for begin, end, kind in found:
        for place in range(begin, end):
            if scheme == "BIOES":
                prefix = "S" if end - begin == 1 else "BIE"[(place > begin) + (place == end - 1)]
            elif scheme == "IOB2":
                prefix = "B" if place == begin else "I"
            else:
                touches = begin > 0 and tags[begin - 1][2:] == kind
                prefix = "B" if place == begin and touches else "I"
            tags[place] = f"{prefix}-{kind}"
    return tags


@given(sentences())
@settings(max_examples=200, deadline=None)
def test_all_schemes_give_the_same_spans(sentence):
    length, found = sentence
    for scheme in ("IOB1", "IOB2", "BIOES"):
        converted, wrong = to_iob2(tags_of(length, found, scheme), scheme)
        assert spans(converted) == found and wrong == []


@given(st.lists(st.sampled_from(["O", *(f"{p}-{k}" for p in "BIESLUM" for k in "XY")])))
@settings(max_examples=200, deadline=None)
def test_any_tags_become_valid_iob2(tags):
    for scheme in ("IOB1", "IOB2", "BIOES"):
        converted, _ = to_iob2(tags, scheme)
        spans(converted)  # raises unless every I- continues a span of its type
        assert [tag[1:] for tag in converted] == [tag[1:] for tag in tags]  # O or the same type
        assert to_iob2(converted, "IOB2") == (converted, [])


@pytest.mark.parametrize(
    ("scheme", "tags", "converted", "wrong"),
    [
        ("IOB1", "I-X I-X B-X I-Y", "B-X I-X B-X B-Y", []),
        ("IOB1", "O B-X I-X", "O B-X I-X", [1]),
        ("IOB2", "O I-X I-X B-Y I-X", "O B-X I-X B-Y B-X", [1, 4]),
        ("BIOES", "B-X E-X S-X S-X O", "B-X I-X B-X B-X O", []),
        ("BIOES", "B-X L-X U-X", "B-X I-X B-X", []),
        ("BIOES", "B-X O E-X I-X", "B-X O B-X B-X", [1, 2, 3]),
        ("BIOES", "O B-X I-X", "O B-X I-X", [2]),
    ],
)
def test_examples_of_each_scheme(scheme, tags, converted, wrong):
    assert to_iob2(tags.split(), scheme) == (tuple(converted.split()), wrong)


def test_scheme_is_the_one_of_most_spans():
    assert detect_scheme([["I-X", "O"], ["I-X", "B-X"], ["O", "I-Y"]]) == "IOB1"
    assert detect_scheme([["B-X", "O"], ["B-X", "I-X"], ["O", "I-Y"]]) == "IOB2"
    assert detect_scheme([["B-X", "E-X"]]) == detect_scheme([["U-X"]]) == "BIOES"
    assert detect_scheme([["O"]]) == "IOB2"


def test_invalid_sequences_are_repaired_and_counted_or_rejected(tmp_path):
    text = "a B-X\nb I-X\n\nc I-X\nd I-Y\n\ne O\nf B-Y\n"
    path = write(tmp_path, "train.txt", text)
    task = read(Conll(train=path))
    assert [e.tags for e in task.splits["train"]] == [
        ("B-X", "I-X"), ("B-X", "B-Y"), ("O", "B-Y")
    ]  # fmt: skip
    assert task.notes == (f"{path}: 2 tags of 1 sentences did not follow IOB2.",)
    with pytest.raises(UserError, match=r"train\.txt, line 4: the tags do not follow IOB2.*'c'"):
        read(Conll(train=path, strict=True))


def test_columns_tabs_and_missing_tags(tmp_path):
    train = write(tmp_path, "train.txt", "New York\tB-X\t1\nis\tO\t2\n")
    task = read(Conll(train=train, tag_column=1))
    assert task.splits["train"][0].words == ("New York", "is")
    bare = write(tmp_path, "bare.txt", "-DOCSTART-\n\nNew\n3\u00a0000\n\n\n\nword")
    task = read(Conll(test=bare))
    assert [(e.words, e.tags) for e in task.splits["test"]] == [
        (("New", "3\u00a0000"), None), (("word",), None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("a B-X\nb\nc O\n", None, r"train\.txt, line 2: 1 columns; expected 2"),
        ("a B-X\nb PER\n", None, r"line 2: the tag is 'PER'; expected O, or B-"),
        ("a B-X\nb O\n", "a O\n\na O\nb B-Y\n",
         r"dev\.txt, line 4: the type 'Y' does not occur in train; its tags: O, B-X, I-X"),
        ("a O\nb O\n", None, r"all 1 training examples have the label 'O'"),
        ("\n-DOCSTART- O\n", None, r"train\.txt has no sentences"),
    ],
)  # fmt: skip
def test_invalid_files_are_reported(tmp_path, train: str, dev: str | None, message: str):
    paths: dict[str, Any] = {"train": write(tmp_path, "train.txt", train)}
    if dev is not None:
        paths["dev"] = write(tmp_path, "dev.txt", dev)
    with pytest.raises(UserError, match=message):
        read(Conll(**paths))


def test_byte_order_marks_odd_blanks_and_comments_are_read(tmp_path):
    text = "\ufeff#\tn-tv.de [2005-02-26] \r\nSchar\u00a0tau\tB-PER\u00a0\r\n#\tO\r\n"
    text += "\u00a0 \r\n\ufeffsagte O\r\ner  O \r\n"
    train = tmp_path / "train"
    train.write_bytes(text.encode())
    task = read(Conll(train=str(train)))
    assert [(e.words, e.tags) for e in task.splits["train"]] == [
        (("Schar\u00a0tau", "#"), ("B-PER", "O")),
        (("sagte", "er"), ("O", "O")),
    ]


@pytest.mark.parametrize(
    ("line", "name"),
    [("the\u00a0O", "U+00A0 NO-BREAK SPACE"), ("the \u200bO", "U+200B ZERO WIDTH SPACE")],
)
def test_invisible_characters_are_named(tmp_path, line, name):
    train = write(tmp_path, "train", f"a O\n{line}\n")
    with pytest.raises(UserError, match=r"line 2: .*contains " + name.replace("+", r"\+")):
        read(Conll(train=train))


def test_unequal_numbers_of_words_and_tags_are_reported(tmp_path):
    path = write(tmp_path, "train.txt", "a x B-X\nb x O\n")
    with pytest.raises(UserError, match=r"3 columns, but tag_column is 3"):
        read(Conll(train=path, tag_column=3))
    with pytest.raises(ConfigError, match="word_column and tag_column are both 0"):
        Conll(train=path, tag_column=0)
    with pytest.raises(
        UserError, match="'7' has 2 words and 1 tags; expected one tag for each word"
    ):
        TaggedExample(id="7", words=("a", "b"), tags=("O",))
