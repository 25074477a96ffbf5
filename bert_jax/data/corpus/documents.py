"""Encodes the text of a document as token ids and sentence ends. Imports no TensorFlow.

`bert-jax prepare`, the Beam pipeline and the preprocessors of seqio tasks all use these functions,
so that a corpus has the same bytes whichever of them prepared it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.corpus.records import ids_dtype
from bert_jax.errors import check_range
from bert_jax.text.cleaning import clean_text, drop_reason
from bert_jax.text.sentences import SentenceSplitter
from bert_jax.text.tokenizer import Tokenizer

# A reason for dropping a document, in addition to those of text/cleaning.py.
NO_TOKENS = "no tokens"


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig:
    """Configures how documents are split into sentences and into records.

    A document of more than `max_part_tokens` tokens is stored as several records of whole
    sentences, which keeps random access cheap. `splitter` names a sentence splitter of
    text/sentences.py.
    """

    splitter: str = "rules"
    max_part_tokens: int = 8192

    def __post_init__(self) -> None:
        check_range("max_part_tokens", self.max_part_tokens, at_least=16)


@dataclass(frozen=True, eq=False)
class EncodedDocument:
    """Holds ids [T], ends of sentences in ids [S] (ascending, the last is T), and bytes of text."""

    ids: np.ndarray
    sentence_ends: np.ndarray
    text_bytes: int


def clean_document(text: str) -> tuple[str, str]:
    """Returns the cleaned text and the reason to drop the document ("" to keep it)."""
    cleaned = clean_text(text)
    return cleaned, drop_reason(cleaned) or ""


def encode_sentences(
    sentences: Sequence[str], tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids [T] of all sentences, uint16 or uint32, and their ends in ids, uint32 [S].

    Sentences without any token (for example, of control characters only) are left out.
    """
    encoded = tokenizer.encode_ids(sentences)
    lengths = np.fromiter((len(ids) for ids in encoded), np.uint32, len(encoded))
    dtype = ids_dtype(tokenizer.vocab_size)
    ids = np.concatenate(encoded).astype(dtype) if len(encoded) else np.zeros(0, dtype)
    return ids, np.cumsum(lengths, dtype=np.uint32)[lengths > 0]


def encode_document(
    text: str, tokenizer: Tokenizer, splitter: SentenceSplitter
) -> EncodedDocument | str:
    """Cleans, splits and tokenizes a document; returns it, or the reason why it is dropped."""
    text, reason = clean_document(text)
    if reason:
        return reason
    ids, sentence_ends = encode_sentences(splitter.split(text), tokenizer)
    if not len(ids):
        return NO_TOKENS
    return EncodedDocument(ids, sentence_ends, len(text.encode("utf-8", "surrogatepass")))
