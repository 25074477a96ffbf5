"""Cleans raw text into paragraphs: newlines, control characters, hard-wrapped lines, headings.

`normalize_text` only normalizes the characters. `clean_text` returns paragraphs without newlines
inside, separated by one blank line. Sentence splitters expect this form, and it keeps a heading
separate from the text below it.
"""

import re
import unicodedata
from itertools import pairwise

# Scripts that do not separate words by spaces: each character is a word. Chinese and Japanese,
# Thai, Lao, Myanmar, Khmer.
UNSPACED_SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Line ends of other systems and of Unicode, and form feeds, which separate pages.
_NEWLINES = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Control characters, byte-order marks, soft hyphens, lone surrogates.
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\ufeff\ud800-\udfff]")
# For `normalize_text`: also zero-width spaces, text-direction controls and tags. Zero-width joiners
# (U+200C, U+200D) stay, because Persian and Indic scripts need them.
_INVISIBLE_CHARACTERS = (
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f"
)
_SPACE_CHARACTERS = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_INVISIBLE_UNICODE = re.compile(f"[{_INVISIBLE_CHARACTERS}]")
_UNICODE_SPACES = re.compile(f"[{_SPACE_CHARACTERS}]")
_CHANGED_CHARACTERS = re.compile(
    f"[\r\v\f\x1c-\x1e\x85\u2028\u2029{_INVISIBLE_CHARACTERS}{_SPACE_CHARACTERS}]"
)
# A soft hyphen at the end of a line was inserted in typesetting, unlike a hyphen, which
# may be part of the word.
_SOFT_LINE_BREAK = re.compile(r"\u00ad[ \t]*\n[ \t]*(?=\w)")
_BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_SPACES = re.compile(r"[^\S\n]+")
_WORD = re.compile(r"\S+")
_SENTENCE_END = re.compile(r"[.!?:;…。！？][\"'”’»)\]]*$")

# Hard-wrapped text is hardly ever wider than this; longer lines are paragraphs.
_MAX_WRAP_WIDTH = 120
# In wrapped prose, about half of the line breaks are inside a sentence and before a lower-case
# letter; in lists, verse and files with one sentence per line hardly any are.
_MIN_CONTINUED_FRACTION = 0.25
# If a line and the next word would fill less than this fraction of the width, the break is meant.
_FULL_LINE_FRACTION = 0.85

# Documents with fewer letters or more replacement characters are not text.
_MIN_LETTER_FRACTION = 0.4
_MAX_REPLACEMENT_FRACTION = 0.01


def clean_text(text: str) -> str:
    """Returns clean paragraphs separated by a blank line ("\\n\\n"); "" if nothing is left.

    Newlines of all systems become "\\n", control and invisible characters are removed, runs of
    white space become one space, and hard-wrapped lines are joined into paragraphs. Headings remain
    separate. Cleaning text that is already clean changes nothing.
    """
    text = _INVISIBLE.sub("", _NEWLINES.sub("\n", text).replace("\t", " "))
    return "\n\n".join(split_paragraphs(text))


def normalize_text(text: str) -> str:
    """Returns text in NFC with "\\n" as newline, without invisible characters.

    Special spaces become U+0020. A word that a soft hyphen breaks at the end of a line is joined.
    Other words, punctuation and lines do not change. Normalizing a second time changes nothing.
    """
    if _CHANGED_CHARACTERS.search(text) is not None:  # one pass over most texts, not four
        text = _SOFT_LINE_BREAK.sub("", _NEWLINES.sub("\n", text))
        text = _UNICODE_SPACES.sub(" ", _INVISIBLE_UNICODE.sub("", text))
    return unicodedata.normalize("NFC", text)


def split_paragraphs(text: str) -> list[str]:
    """Returns the paragraphs of a text, each on one line, with hard-wrapped lines joined.

    In hard-wrapped text (many lines break inside sentences), a paragraph ends at a blank line,
    before an indented line, and after a line that had enough space left for the next word. In other
    text every line is a paragraph, unless it breaks inside a sentence before a lower-case letter.
    In text without upper-case letters every line is a paragraph.
    """
    blocks = _BLANK_LINES.split(text.strip("\n"))
    if "\n" not in text.strip().replace("\n\n", ""):
        return [line for block in blocks if (line := _collapse_spaces(block))]
    # Without upper-case letters every line break would look like one inside a sentence.
    cased = text != text.lower()
    lines = [block.split("\n") for block in blocks]
    width = _wrap_width(lines) if cased else 0
    cleaned_paragraphs: list[str] = []
    for block in lines:
        start = 0
        for n in range(1, len(block) + 1):
            if n < len(block):
                line, next_line = block[n - 1], block[n]
                if width and not _ends_paragraph(line, next_line, width):
                    continue
                if cased and not width and _breaks_mid_sentence(line, next_line):
                    continue
            if joined := _join_lines(block[start:n]):
                cleaned_paragraphs.append(joined)
            start = n
    return cleaned_paragraphs


def drop_reason(text: str) -> str | None:
    """Returns the reason why a cleaned document is dropped, for the manifest; None to keep it.

    A document is dropped if it has less than 40 % letters (tables, dumps) or more than 1 %
    replacement characters (text in another encoding).
    """
    num_visible = len(text) - text.count(" ") - text.count("\n")
    if not num_visible:
        return "empty"
    if text.count("\ufffd") > _MAX_REPLACEMENT_FRACTION * num_visible:
        return "undecodable characters"
    letters = sum(map(str.isalpha, text))
    # In many scripts, vowel signs and accents are marks, which str.isalpha does not count.
    marks = 0 if text.isascii() else sum(not c.isascii() and not c.isalnum() for c in text)
    if letters == 0 or letters + marks < _MIN_LETTER_FRACTION * num_visible:
        return "few letters"
    return None


def _breaks_mid_sentence(line: str, next_line: str) -> bool:
    """Returns whether the break between two lines is inside a sentence."""
    return (
        next_line.lstrip()[:1].islower()
        and len(line) <= _MAX_WRAP_WIDTH
        and not _SENTENCE_END.search(line.rstrip())
    )


def _wrap_width(blocks: list[list[str]]) -> int:
    """Returns the width at which lines were wrapped, or 0 if they were not."""
    num_line_breaks = 0
    continued_widths: list[int] = []
    for block in blocks:
        for line, next_line in pairwise(block):
            num_line_breaks += 1
            if _breaks_mid_sentence(line, next_line):
                continued_widths.append(len(line))
    if not continued_widths or len(continued_widths) < _MIN_CONTINUED_FRACTION * num_line_breaks:
        return 0
    continued_widths.sort()
    # Nearly the longest line and not the longest, because a single line that was not wrapped would
    # make every other line look short.
    return continued_widths[min(int(0.98 * len(continued_widths)), len(continued_widths) - 1)]


def _ends_paragraph(line: str, next_line: str, width: int) -> bool:
    text, next_text = line.rstrip(), next_line.lstrip()
    # A lower-case letter continues the paragraph however short the line before it is.
    if not next_text or next_text[0].islower():
        return not next_text
    # In a block that is indented as a whole, such as a quotation, the indentation marks no
    # paragraph.
    indented = len(next_line) - len(next_text) >= 2 and not line.startswith(" ")
    if indented or len(text) > _MAX_WRAP_WIDTH:
        return True
    word = _WORD.match(next_text)
    needed_width = len(text) + 1 + (word.end() if word else 0)
    return needed_width <= _FULL_LINE_FRACTION * width


def _join_lines(lines: list[str]) -> str:
    if len(lines) == 1:
        return _collapse_spaces(lines[0])
    joined = ""
    for line in lines:
        line = line.strip()
        # "well-" / "known" and "word--" / "word" were broken at the hyphen, not at a space.
        hyphen = joined.endswith("-") and joined[-2:-1].strip() != ""
        joined += line if hyphen or not joined else f" {line}"
    return _collapse_spaces(joined)


def _collapse_spaces(text: str) -> str:
    return _SPACES.sub(" ", text).strip()
