"""Compares word offsets with a reimplementation of BERT's basic tokenizer."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from bert_jax.text.word_offsets import word_offsets

HAN = [
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
]  # fmt: skip


def is_white(char: str) -> bool:
    return char in "\t\n\r" or unicodedata.category(char) == "Zs"


def is_control(char: str) -> bool:
    dropped = char in "\0\ufffd" or unicodedata.category(char).startswith("C")
    return dropped and char not in "\t\n\r"


def is_alone(char: str) -> bool:
    ascii_mark = char.isascii() and char.isprintable() and not char.isalnum() and char != " "
    han = any(first <= ord(char) <= last for first, last in HAN)
    return ascii_mark or han or unicodedata.category(char).startswith("P")


def basic_words(text: str) -> list[str]:
    """Returns the words, without control characters."""
    words, open_word = [], ""
    for char in text:
        if is_control(char):
            continue
        if is_white(char) or is_alone(char):
            words += [open_word] if open_word else []
            open_word = ""
            words += [char] if is_alone(char) else []
        else:
            open_word += char
    return words + ([open_word] if open_word else [])


# Latin, Greek, punctuation, Han, white space, control characters; all long assigned in Unicode.
CHARACTERS = st.one_of(
    st.sampled_from("abcXYZ019 .,'-$+\t\n\r\0\x01\u00a0\u200b\u2003\u2014\u00bf\ufffd"),
    st.characters(min_codepoint=32, max_codepoint=0x24F),
    st.sampled_from("中文字𠀀豈àé̀ΑΩ"),
)


@given(st.text(CHARACTERS, max_size=40))
def test_words_equal_those_of_the_basic_tokenizer(text):
    (offsets,) = word_offsets([text])
    found = ["".join(c for c in text[start:end] if not is_control(c)) for start, end in offsets]
    assert found == basic_words(text)
    ends = [0, *(end for _, end in offsets)]
    assert all(before <= start < end for before, (start, end) in zip(ends, offsets, strict=False))


def test_batch_equals_single_texts():
    texts = ["", " \x01 ", "the U.S. dollar", "café—中文"]
    assert word_offsets(texts) == [word_offsets([text])[0] for text in texts]
    assert [texts[2][a:b] for a, b in word_offsets(texts)[2]] == [
        "the",
        "U",
        ".",
        "S",
        ".",
        "dollar",
    ]
    assert word_offsets([]) == []
