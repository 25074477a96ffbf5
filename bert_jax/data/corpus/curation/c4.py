"""Drops lines and pages of web text by the rules of C4 (Raffel et al. 2020, section 2.2).

The rules are those of the code that made the data set, in the same order; the paper differs in
places. C4's filters by language and by a list of bad words are not applied.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from bert_jax.text.sentences import SentenceSplitter

MIN_WORDS_OF_LINE, MIN_SENTENCES, MAX_WORD_CHARACTERS = 5, 3, 1000

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_END_MARKS, _ELLIPSIS = (".", "?", "!", '"'), "..."
_POLICY_LINES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)

FEW_SENTENCES = "C4: sentences"
"""The reason for dropping a page with too few sentences in the lines that are retained."""


@dataclass(frozen=True)
class CleanedPage:
    """Holds what C4's rules keep of a page.

    Attributes:
      text: the lines that are kept; "" if the page is dropped.
      reason: why the page is dropped; None to keep it.
      num_sentences: the sentences of the retained lines, counted until there are enough.
      removed_lines: the number of lines removed, by reason.
    """

    text: str
    reason: str | None
    num_sentences: int = 0
    removed_lines: Counter[str] = field(default_factory=Counter)


def clean_page(text: str, splitter: SentenceSplitter) -> CleanedPage:
    """Applies the rules to one page.

    Args:
      splitter: counts the sentences; C4's code uses NLTK's Punkt.
    """
    retained, removed, num_sentences = [], Counter[str](), 0
    for line in map(str.strip, text.splitlines()):
        if any(len(word) > MAX_WORD_CHARACTERS for word in line.split()):
            removed["long word"] += 1
            continue
        if not line:
            continue
        line = _CITATION.sub("", line)
        if not line.endswith(_END_MARKS) or line.endswith(_ELLIPSIS):
            removed["no end mark"] += 1
            continue
        if len(line.split()) < MIN_WORDS_OF_LINE:
            removed["few words"] += 1
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return CleanedPage("", "C4: lorem ipsum", removed_lines=removed)
        if "javascript" in lower:
            removed["javascript"] += 1
            continue
        if "{" in line:
            return CleanedPage("", "C4: curly bracket", removed_lines=removed)
        if any(words in lower for words in _POLICY_LINES):
            removed["policy"] += 1
            continue
        if num_sentences < MIN_SENTENCES:  # splitting takes most of the time
            num_sentences += len(splitter.split(line))
        retained.append(line)
    if num_sentences < MIN_SENTENCES:
        return CleanedPage("", FEW_SENTENCES, num_sentences, removed)
    return CleanedPage("\n".join(retained).strip(), None, num_sentences, removed)


def count_sentences(text: str, splitter: SentenceSplitter) -> int:
    """Returns the number of sentences in the lines of a cleaned page."""
    return sum(len(splitter.split(line)) for line in text.split("\n") if line.strip())
