"""Splits text into sentences by punctuation and a list of English abbreviations.

rules           rules of this module, for English and similar languages; fast; no dependency
lines           one sentence per line, as in the sample text of BERT's release
sentencex:LANG  the `sentencex` library, for some 300 languages (`sentencex` alone is English)
"""

import re
from collections.abc import Callable
from typing import Protocol

from bert_jax.errors import UserError
from bert_jax.text.cleaning import split_paragraphs

# The sentence nearly always continues after these, even if an upper-case letter follows.
_ABBREVIATIONS = """
    Mr Mrs Ms Messrs Mme Mmes Mlle Mlles Dr Drs Prof Rev Revd Hon Esq St Ste Sts Mt Ft Fr Bp Abp
    Capt Cpt Col Gen Maj Lt Lieut Sgt Sergt Cpl Pvt Adm Cmdr Comdr Brig Gov Sen Sens Rep Reps Pres
    Supt Insp Det Amb Atty Hon'ble MM
    vs viz cf al approx ca incl eg ie
    mr mrs ms dr prof rev st capt col gen lt sgt
    e.g i.e E.g I.e
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())

# Abbreviations only before a number; elsewhere they may end a sentence ("No. I will not.").
_ABBREVIATIONS_BEFORE_NUMBER = """
    No no Nos nos Vol vol Vols vols Ch ch Chap chap Sec sec Sect sect Art art Fig fig Figs figs Eq
    eq Eqs eqs p pp P Pp Par par Pt pt Bk bk Ex ex Op op Ver ver Rev Ps Cor Matt Gen Deut
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec
"""
ABBREVIATIONS_BEFORE_NUMBER = frozenset(_ABBREVIATIONS_BEFORE_NUMBER.split())

# After "U.S." or an initial, these words begin a new sentence and do not continue a name.
_SENTENCE_STARTERS = """
    A After All Also Although An And Another Are As At Because Before But By Can Could Did Do Does
    Even For From Had Has Have He Her Here His How However I If In Indeed Is It It's Its Let Many
    May Meanwhile Most My No Nobody Nor Not Nothing Now Of On Once One Only Or Our Perhaps She
    Should Since So Some Still Such That The Their Then There These They This Those Though Thus To
    Today Under Until Was We Well Were What When Where Which While Who Whose Why Will With Would
    Yes Yet You Your
"""
SENTENCE_STARTERS = frozenset(_SENTENCE_STARTERS.split())

# Verbs that follow a speaker's name after quoted speech.
SPEECH_VERBS = (
    "added",
    "answered",
    "asked",
    "asks",
    "began",
    "begged",
    "continued",
    "cried",
    "cries",
    "demanded",
    "echoed",
    "ejaculated",
    "exclaimed",
    "inquired",
    "enquired",
    "interposed",
    "interrupted",
    "laughed",
    "murmured",
    "muttered",
    "observed",
    "persisted",
    "protested",
    "pursued",
    "rejoined",
    "remarked",
    "repeated",
    "replied",
    "responded",
    "retorted",
    "returned",
    "said",
    "says",
    "screamed",
    "shouted",
    "sighed",
    "sobbed",
    "suggested",
    "thought",
    "told",
    "urged",
    "whispered",
    "wondered",
)


class SentenceSplitter(Protocol):
    """Splits a text into sentences; joined, they have every character except white space."""

    @property
    def name(self) -> str:
        """Returns the name for `get_sentence_splitter`, which manifests contain too."""
        ...

    def split(self, text: str) -> list[str]:
        """Returns non-empty sentences without white space at their ends."""
        ...


def split_sentences(text: str, splitter: SentenceSplitter | None = None) -> list[str]:
    """Splits a text into sentences, by default with `RuleSplitter`."""
    return (splitter or RuleSplitter()).split(text)


def get_sentence_splitter(name: str) -> SentenceSplitter:
    """Returns a splitter by its name: "rules", "lines", "sentencex" or "sentencex:de".

    Raises:
      UserError: the name is unknown, or the `sentencex` library is not installed.
    """
    kind, _, language = name.partition(":")
    if kind == "sentencex":
        return SentencexSplitter(language or "en")
    if name == "rules":
        return RuleSplitter()
    if name == "lines":
        return LineSplitter()
    raise UserError(
        f"unknown sentence splitter {name!r}; expected rules, lines, sentencex or sentencex:LANG"
    )


class LineSplitter:
    """Takes each line that is not blank as a sentence, without white space at its ends."""

    name = "lines"

    def split(self, text: str) -> list[str]:
        return [sentence for line in text.split("\n") if (sentence := line.strip())]


class SentencexSplitter:
    """Splits with the `sentencex` library of Wikimedia, for some 300 languages."""

    def __init__(self, language: str):
        """Takes a language code such as "de"; UserError if the library is not installed."""
        try:
            # The library is compiled and has no type stubs.
            from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]
        except ImportError:
            raise UserError(
                "the splitter 'sentencex' needs a library: pip install 'bert_jax[sentencex]'"
            ) from None
        self._segment: Callable[[str, str], list[str]] = segment
        self.name = f"sentencex:{language}"
        self._language = language

    def __reduce__(self):
        return type(self), (self._language,)

    def split(self, text: str) -> list[str]:
        return [
            sentence
            for paragraph in split_paragraphs(text)
            for part in self._segment(self._language, paragraph)
            if (sentence := part.strip())
        ]


_CLOSING = r"[\"'”’»›)\]}*_]*"
# A run of periods, exclamation and question marks, closing quotes or brackets, and a space. CJK
# marks need no space. The sentence ends at the group "end" (or "cjk").
_BOUNDARY_CANDIDATE = re.compile(
    rf"(?:(?P<mark>\.(?: \.)+|[.!?…]+){_CLOSING}(?P<end>)\s+"
    r"|[。！？｡]+[”’」』）\])]*(?P<cjk>)\s*)(?=\S)"
)
# Characters that may precede the first letter of a sentence.
_OPENING = re.compile(r"[\"'“‘«‹(\[{*_¿¡\-–—\s]*")
_LAST_WORD = re.compile(r"[^\s\"'“‘«(\[{—–\-]*$")
_DOTTED_ABBREVIATION = re.compile(r"(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}$")
_FIRST_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_ENUMERATOR = re.compile(r"\W*(?:\d{1,3}|[IVXLCivxlc]{1,7}|[A-Za-z])$")
# "Why?" Mrs. Ramsay asked.
_SPEAKER = re.compile(
    r"(?:the |my |his |her )?(?:[A-Z][\w'’\-]*\.? ){1,3}(?:" + "|".join(SPEECH_VERBS) + r")\b"
)


class RuleSplitter:
    """Splits after . ! ? … with rules for English and similar languages.

    It does not split before a lower-case letter; after abbreviations (Mr., e.g., U.S. before a
    name), initials and list numbers; or between quoted speech and its speaker ("Why?" Mary asked.).
    Otherwise it splits before an upper-case letter. Text is first divided into paragraphs:
    hard-wrapped lines are joined, and a heading is a sentence of its own.
    """

    name = "rules"

    def split(self, text: str) -> list[str]:
        sentences: list[str] = []
        for paragraph in split_paragraphs(text):
            start = 0
            for match in _BOUNDARY_CANDIDATE.finditer(paragraph):
                end = match.start("cjk") if match["mark"] is None else match.start("end")
                if match["mark"] is None or _is_sentence_end(paragraph, start, match, end):
                    sentences.append(paragraph[start:end])
                    start = match.end()
            if start < len(paragraph):
                sentences.append(paragraph[start:])
        return sentences


def _is_sentence_end(text: str, start: int, match: re.Match[str], end: int) -> bool:
    """Returns whether the sentence that began at `start` ends at this candidate."""
    next_sentence_start = match.end()
    first_char = text[next_sentence_start]
    if not first_char.isalnum():
        opening = _OPENING.match(text, next_sentence_start)
        next_sentence_start = opening.end() if opening else next_sentence_start
        first_char = text[next_sentence_start : next_sentence_start + 1]
    if first_char.islower():
        return False
    punctuation = match["mark"]
    if punctuation == ".":
        if first_char and match.start() > start and end == match.start() + 1:
            return _period_ends_sentence(
                text, start, match.start(), next_sentence_start, first_char
            )
        return True
    word = _FIRST_WORD.match(text, next_sentence_start)
    if punctuation[-1] in ".…" and len(punctuation) > 1:
        # "Well ... I do not know": a pause, not an end.
        return not (word and word[0].split("'")[0].split("’")[0] == "I")
    quoted = end > match.end("mark")
    return not (quoted and _SPEAKER.match(text, next_sentence_start))


def _period_ends_sentence(
    text: str, start: int, period: int, next_sentence_start: int, first_char: str
) -> bool:
    """Returns whether the period at `period` ends a sentence, not only an abbreviation."""
    # Only the last 40 characters: a search from the start of a long paragraph would be quadratic.
    last_word = _LAST_WORD.search(text, max(start, period - 40), period)
    word = last_word[0] if last_word else ""
    if word in ABBREVIATIONS:
        return False
    if word in ABBREVIATIONS_BEFORE_NUMBER and first_char.isdigit():
        return False
    # Only near the start of a sentence can a number be that of a list.
    if period - start <= 12 and _ENUMERATOR.match(text, start, period):
        # "1. The text", "IV. The text": a list number stays with its text. "I." may be a word.
        return word == "I" and start > 0
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    if not is_initial and not _DOTTED_ABBREVIATION.match(word):
        return True
    # "J. R. Smith", "the U.S. Army", but "He left the U.S. It was late."
    next_word = _FIRST_WORD.match(text, next_sentence_start)
    return bool(next_word and next_word[0] in SENTENCE_STARTERS)
