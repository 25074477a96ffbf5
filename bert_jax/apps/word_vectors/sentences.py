r"""Splits text into the words of word vectors, and reads the sentences of a corpus as words.

There is one tokenization: lower-cased runs of letters, marks and digits, without punctuation. So
"Don't re-read No. 7!" has the words don, t, re, read, no, 7. Text that a tokenizer has decoded,
whose spaces around punctuation may differ, has the same words as the original.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import UserError
from bert_jax.text.cleaning import clean_text
from bert_jax.text.sentences import split_sentences

_WORD = re.compile(r"(?:[^\W_]|[\u0300-\u036f])+")


def split_words(text: str) -> list[str]:
    """Splits a text into its words."""
    return [match.lower() for match in _WORD.findall(text)]


def read_sentences(corpus: Sequence[str]) -> list[list[str]]:
    """Reads a corpus as sentences of words, and leaves out sentences without words.

    Args:
      corpus: as in `read_texts`.

    Raises:
      UserError: as in `read_texts`, or there are no words.
    """
    # Each word is in memory once, however often it occurs.
    sentences = [
        [sys.intern(word) for word in words]
        for text in read_texts(corpus)
        if (words := split_words(text))
    ]
    if not sentences:
        raise UserError(f"{', '.join(corpus)}: no words; expected a corpus with letters or digits")
    return sentences


def read_texts(corpus: Sequence[str]) -> Iterator[str]:
    """Yields the sentences of a corpus as text.

    Args:
      corpus: the folder of one prepared corpus, or names and glob patterns of text and JSON lines
        files, whose sentences are found in the same way as by `bert-jax prepare`.

    Raises:
      UserError: the folder is no prepared corpus, or a file cannot be read.
    """
    if len(corpus) == 1 and Path(corpus[0]).is_dir():
        yield from _prepared_sentences(corpus[0])
        return
    source = TextFiles(tuple(corpus))
    for document in source.read_texts(source.list_files()):
        yield from split_sentences(clean_text(document))


def _prepared_sentences(folder: str) -> Iterator[str]:
    """Yields the decoded sentences of a prepared corpus, which holds token ids only."""
    corpus = PreparedCorpus(folder)
    tokenizer = corpus.tokenizer()
    for index in range(len(corpus.tokens_per_part)):
        part, start = corpus.read(index), 0
        for end in part.sentence_ends.tolist():
            yield tokenizer.decode(part.ids[start:end].tolist())
            start = end
