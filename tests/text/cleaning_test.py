"""Tests cleaning: removed characters, joined lines, separate paragraphs."""

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.text.cleaning import clean_text, drop_reason, split_paragraphs
from bert_jax.text.files import read_text

PROSE = (
    "The rain had only ceased with the gray streaks of morning at Blazing Star, and the settlement "
    "awoke to a moral sense of cleanliness, and the finding of forgotten knives, tin cups, and "
    "smaller camp utensils, where the heavy showers had washed away the debris and dust heaps "
    "before the cabin doors. It was recorded that a fortunate early riser had once picked up a "
    "solid chunk of gold quartz. Nobody knew his name."
)
SHORT = "Possibly this was the reason."


def test_newlines_and_invisible_characters():
    assert clean_text("One.\r\nTwo.\rThree.\u2028Four.\fFive.") == (
        "One.\n\nTwo.\n\nThree.\n\nFour.\n\nFive."
    )
    assert clean_text("\ufeffa\x00b\x07c\x1b \u00add\x7f\ud800e\tf\u00a0 g") == "abc de f g"
    assert clean_text("e\u0301 👩\u200d👩 \u200cx") == "e\u0301 👩\u200d👩 \u200cx"
    assert clean_text(" \n\t\n ") == ""


@pytest.mark.parametrize("width", [50, 65, 100])
@pytest.mark.parametrize("parting", ["\n\n", "\n", "\n   "])
def test_hard_wrapped_lines_are_joined(width, parting):
    wrapped = [textwrap.fill(PROSE, width), SHORT, textwrap.fill(PROSE, width)]
    assert split_paragraphs(parting.join(wrapped)) == [PROSE, SHORT, PROSE]


def test_headings_remain_separate_in_wrapped_text():
    text = "CHAPTER I\nIN WHICH NOTHING HAPPENS\n" + textwrap.fill(PROSE, 70)
    assert split_paragraphs(text) == ["CHAPTER I", "IN WHICH NOTHING HAPPENS", PROSE]


def test_lines_that_are_not_wrapped_remain_paragraphs():
    lines = [PROSE, "A second one.", SHORT, PROSE]
    assert split_paragraphs("\n".join(lines)) == lines
    verse = ["Tyger Tyger, burning bright,", "In the forests of the night;"]
    assert split_paragraphs("\n".join(verse)) == verse


def test_lines_without_upper_case_are_not_joined():
    lines = ["the movie was great", "i would see it again any day of the week", "bad acting though"]
    assert split_paragraphs("\n".join(lines)) == lines


def test_single_line_breaks_inside_a_sentence_are_joined():
    text = "\n".join(["Line one is whole."] * 8 + ["This one breaks", "inside a sentence."])
    assert split_paragraphs(text)[-1] == "This one breaks inside a sentence."


def test_words_broken_at_a_hyphen():
    assert split_paragraphs("He was a well-\nknown man of the\ntown.") == [
        "He was a well-known man of the town."
    ]
    assert split_paragraphs("He was here -\nand there in the\ntown.") == [
        "He was here - and there in the town."
    ]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="aB. \n\r\t\x00é力-\u2028\ufeff\u00ad", max_size=80))
def test_cleaning_is_idempotent_and_keeps_all_letters(text):
    clean = clean_text(text)
    assert clean_text(clean) == clean
    assert "\n\n\n" not in clean and "\r" not in clean and "\0" not in clean
    letters = "aB.é力-"
    assert [c for c in clean if c in letters] == [c for c in text if c in letters]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("One sentence is a document.", None),
        ("Привет, мир.", None),
        ("你好，世界。", None),
        ("नमस्ते दुनिया", None),
        ("", "empty"),
        ("\n\n ", "empty"),
        ("17 42 | 93 -- 11", "few letters"),
        ("caf\ufffd und m\ufffdde", "undecodable characters"),
    ],
)
def test_drop_reason(text, reason):
    assert drop_reason(text) == reason


def test_wrapped_and_unwrapped_novels(shared):
    wrapped = read_text(shared / "text/novels/Dickens_Oliver_1839.txt.gz")
    found = split_paragraphs(clean_text(wrapped))
    assert found[:5] == [
        *("OLIVER TWIST", "OR", "THE PARISH BOY'S PROGRESS", "BY", "CHARLES DICKENS")
    ]
    assert len(wrapped.splitlines()) / 10 < len(found) < len(wrapped.splitlines()) / 3
    unwrapped = read_text(shared / "text/novels/Burnett_Garden_1911.txt.gz")
    lines = [line.strip() for line in unwrapped.splitlines() if line.strip()]
    assert len(split_paragraphs(clean_text(unwrapped))) == pytest.approx(len(lines), rel=0.01)
