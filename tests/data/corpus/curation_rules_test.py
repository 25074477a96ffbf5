"""Compares signals, rules and lines of C4 with hand-worked values and other implementations.

Covers bert_jax/apps/curate/{signals,rules,c4,units}.py.
"""

import random
from collections import Counter

import pytest

from bert_jax.apps.curate.corpus import match_key
from bert_jax.apps.curate.plan import (
    FINEWEB_QUALITY,
    GOPHER_QUALITY,
    GOPHER_REPETITION,
    C4Lines,
    CurationConfig,
    Rule,
    Source,
)
from bert_jax.apps.curate.signals import SIGNALS, TextView
from bert_jax.apps.curate.units import clean_page, filter_document
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import ConfigError
from bert_jax.text.cleaning import normalize_text
from bert_jax.text.files import read_text

PROSE = (
    "The house stood at the end of the road, and nobody had lived in it for years. "
    "Every summer the children of the village dared each other to walk up to the door. "
    "That year a light was seen in the window, and people began to talk about it."
)


def config(**fields):
    return CurationConfig(sources=(Source(name="web", files=TextFiles("unused")),), **fields)


def signal(name: str, text: str) -> float:
    return SIGNALS[name](TextView(text))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("words", "It's 5 o'clock -- here, now!", 7),
        ("mean_word_length", "ab, abcd.", 3),
        ("hashes_per_token", "# one # two", 0.5),
        ("ellipses_per_token", "one... two three", 1 / 4),
        ("bullet_lines", "- a\n• b\n\nc\n  - d", 0.75),
        ("ellipsis_lines", "so it goes ...\nand so…\nend", 2 / 3),
        ("tokens_with_letter", "a b 3 .", 0.5),
        ("stop_words", "The cat and THE dog, of course", 3),
        ("duplicate_lines", "a\nb\na\n\na", 0.5),
        ("duplicate_line_characters", "ab\nc\nab", 0.4),
        ("duplicate_paragraphs", "a\nb\n\na\nb\n\nc", 1 / 3),
        ("duplicate_paragraph_characters", "ab\n\nc\n\nab", 2 / 9),
        ("lines_ending_a_sentence", 'He said "yes."\nno\nwhy?\nmenu', 0.5),
        ("short_lines", "a" * 30 + "\n" + "a" * 31, 0.5),
        ("newlines_per_token", "a\nb\nc d", 0.5),
        ("replacement_characters", "ab\ufffd\ufffd", 0.5),
        ("top_2gram_characters", "a b a b c", 6 / 9),
        ("top_2gram_characters", "a b c d", 0),
        ("duplicate_5gram_characters", "a b c d e x a b c d e", 5 / 21),
    ],
)
def test_signals_of_small_texts(name, text, expected):
    assert signal(name, text) == pytest.approx(expected)


def reference_top(tokens: list[str], n: int, text: str) -> float:
    grams = Counter(" ".join(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
    highest = max(grams.values(), default=0)
    longest = max((len(gram) for gram, count in grams.items() if count == highest), default=0)
    return longest * highest / len(text) if highest > 1 else 0.0


def reference_duplicates(tokens: list[str], n: int, text: str) -> float:
    seen, total, index = set(), 0, 0
    while index + n <= len(tokens):
        gram = tuple(tokens[index : index + n])
        total += sum(map(len, gram)) if gram in seen else 0
        index += n if gram in seen else 1
        seen.add(gram)
    return total / len(text)


def test_ngram_signals_equal_a_slow_reference():
    rng = random.Random(0)
    words = PROSE.split()
    for vocabulary in (2, 5, 40):
        text = " ".join(rng.choice(words[:vocabulary]) for _ in range(300))
        view = TextView(text)
        for n in (2, 3, 4):
            expected = reference_top(view.tokens, n, text)
            assert SIGNALS[f"top_{n}gram_characters"](view) == pytest.approx(expected)
        for n in range(5, 11):
            expected = reference_duplicates(view.tokens, n, text)
            assert SIGNALS[f"duplicate_{n}gram_characters"](view) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", " \n", "...", "a", "\x00", "字" * 50])
def test_signals_of_hostile_texts_are_finite(text):
    assert all(0 <= signal(name, text) < 1e6 for name in SIGNALS)


def test_rules_keep_prose_and_drop_each_kind_of_bad_page():
    prose = " ".join([PROSE, *(PROSE.replace("house", f"house {i}") for i in range(2))])
    found = filter_document("\n".join(PROSE.split(". ")) + "\n" + PROSE, config(), Counter())
    assert found.reason == ""
    bad = {
        "Gopher quality: words": (GOPHER_QUALITY, "Too short."),
        "Gopher quality: stop_words": (GOPHER_QUALITY, "la maison est grande ici " * 20),
        "Gopher quality: tokens_with_letter": (GOPHER_QUALITY, "the 1234 of 5678 9012 345 " * 20),
        "Gopher repetition: duplicate_lines": (GOPHER_REPETITION, "a menu\n" * 9 + PROSE),
        "Gopher repetition: duplicate_5gram_characters": (GOPHER_REPETITION, f"{PROSE} {PROSE}"),
        "FineWeb quality: short_lines": (FINEWEB_QUALITY, "One.\nTwo.\nThree.\nFour."),
    }
    for reason, (rule_set, text) in bad.items():
        found = filter_document(text, config(rule_sets=(rule_set,)), Counter())
        assert (found.reason, found.text) == (reason, "")
        assert found.value == signal(reason.partition(": ")[2], text.strip())
    assert filter_document(prose, config(rule_sets=(GOPHER_QUALITY,)), Counter()).reason == ""


class OneSentence:
    """Counts a line as one sentence, in place of NLTK's Punkt."""

    name = "one"

    def split(self, text: str) -> list[str]:
        return [text]


def test_lines_of_c4_equal_the_code_of_tfds(shared, monkeypatch):
    c4_utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    monkeypatch.setattr(c4_utils, "_get_sentences", lambda text: [text])
    original = c4_utils.get_clean_page_fn()
    rng = random.Random(1)
    noise = [
        "Click here to enable JavaScript in your browser now.",
        "Please read our privacy policy before you go on.",
        "This site USES COOKIES to make your visit better.",
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
        "function f() { return 1 and two and three; }.",
        "The town[12] was founded[citation needed] in the ninth century.",
        "A line that trails off and never ends...",
        "Home | About | Contact",
        'She said "this is the end of the story."',
        "word " * 4 + "x" * 1001 + ".",
        "Too short here.",
        "",
    ]
    files = sorted((shared / "text" / "inaugural").rglob("*.txt*"))[:12]
    paragraphs = [line for file in files for line in read_text(file, errors="replace").split("\n")]
    reasons = Counter[str]()
    for _ in range(300):
        lines = rng.sample(paragraphs, 4) + rng.choices(noise, k=rng.randrange(4))
        rng.shuffle(lines)
        text = rng.choice(["\n", "\r\n", "\u2028"]).join(lines)
        counts = Counter[str]()
        page = c4_utils.PageFeatures(url="u", text=text)
        expected = list(original(page, counter_inc_fn=lambda name, c=counts: c.update([name])))
        found = clean_page(text, OneSentence())
        assert found.text == (expected[0].text if expected else "")
        assert (found.reason is None) == bool(expected)
        # Reading ends with a page that is dropped, so blank lines are counted up to there only.
        if found.reason is None:
            counts["line-filtered:no_endmark"] -= sum(
                not line.strip() for line in text.splitlines()
            )
            removed = [n for name, n in counts.items() if name.startswith("line-filtered") and n]
            assert sorted(found.removed_lines.values()) == sorted(removed)
        reasons[str(found.reason)] += 1
    assert len(reasons) == 4  # each way to end a page occurred


def test_normalization_removes_what_is_invisible_and_composes():
    raw = "Cafe\u0301\u00a0au\u2009lait\u200b\x00\ud800\r\nmi\u200cxed\ufeff\U000e0041"
    assert normalize_text(raw) == "Café au lait\nmi\u200cxed"
    assert normalize_text("a hy\u00adphen con\u00ad \r\n tinues\u00ad\n\nHere") == (
        "a hyphen continues\n\nHere"
    )
    assert normalize_text(normalize_text(raw)) == normalize_text(raw)
    assert match_key("The  ﬁrst\nLINE ") == match_key("the first line")


def test_limits_that_cannot_be_meant_are_refused():
    with pytest.raises(ConfigError, match=r"no signal 'word'; did you mean 'words'"):
        Rule(signal="word", at_least=1)
    with pytest.raises(ConfigError, match="words: no limit; expected at_least"):
        Rule(signal="words")
    with pytest.raises(ConfigError, match="at_least is 5 and at_most 3, which drops every"):
        Rule(signal="words", at_least=5, at_most=3)
    with pytest.raises(ConfigError, match="two sources have one name; found web, web"):
        config(lines=C4Lines()).__class__(sources=config().sources * 2)
