"""Text of one document -> token ids with sentence ends. Pure functions, no TensorFlow.

`bert-jax prepare`, its Beam twin and the preprocessors of seqio tasks all call these: one
implementation, so the same bytes whichever way a corpus is prepared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.corpus.records import ids_dtype
from bert_jax.errors import ConfigError
from bert_jax.text.cleaning import clean_text, drop_reason
from bert_jax.text.sentences import SentenceSplitter
from bert_jax.text.tokenizer import Tokenizer

# What a document is left out for, beside the reasons of text/cleaning.py.
NO_TOKENS = "no tokens"


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig:
    """How text becomes sentences and parts.

    A document of more than `max_part_tokens` tokens is stored in several records, each of whole
    sentences, so that reading at random touches little. `splitter` names a sentence splitter of
    text/sentences.py.
    """

    splitter: str = "rules"
    max_part_tokens: int = 8192

    def __post_init__(self) -> None:
        if self.max_part_tokens < 16:
            raise ConfigError(f"max_part_tokens is {self.max_part_tokens}; expected at least 16")


@dataclass(frozen=True, eq=False)
class EncodedDocument:
    """ids [T], the ends of its sentences in ids [S] (ascending, the last is T), bytes of text."""

    ids: np.ndarray
    sentence_ends: np.ndarray
    text_bytes: int


def clean_document(text: str) -> tuple[str, str]:
    """Cleaned text, and why the document is to be dropped ("" to keep it)."""
    cleaned = clean_text(text)
    return cleaned, drop_reason(cleaned) or ""


def encode_sentences(
    sentences: Sequence[str], tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """ids [T] (uint16 or uint32) of all sentences in a row, and their ends in ids, uint32 [S].

    Sentences without a token (only control characters, say) vanish.
    """
    encoded = tokenizer.encode_ids(sentences)
    lengths = np.fromiter((len(ids) for ids in encoded), np.uint32, len(encoded))
    dtype = ids_dtype(tokenizer.vocab_size)
    ids = np.concatenate(encoded).astype(dtype) if len(encoded) else np.zeros(0, dtype)
    return ids, np.cumsum(lengths, dtype=np.uint32)[lengths > 0]


def encode_document(
    text: str, tokenizer: Tokenizer, splitter: SentenceSplitter
) -> EncodedDocument | str:
    """Clean, split, tokenise: the document, or the reason why it is dropped."""
    text, reason = clean_document(text)
    if reason:
        return reason
    ids, sentence_ends = encode_sentences(splitter.split(text), tokenizer)
    if not len(ids):
        return NO_TOKENS
    return EncodedDocument(ids, sentence_ends, len(text.encode("utf-8", "surrogatepass")))
