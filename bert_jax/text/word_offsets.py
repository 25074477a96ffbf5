"""Finds the words of a text, by character offsets, as BERT's basic tokenizer splits them."""

import functools
from collections.abc import Sequence

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, normalizers, pre_tokenizers


def word_offsets(texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Returns the character offsets [start, end) of each word of each text.

    Words are separated by white space; each punctuation mark and each Han character is a word;
    control characters are not part of any word (`BasicTokenizer` of BERT's release, without
    lower-casing).
    """
    encodings = _word_splitter().encode_batch(list(texts), add_special_tokens=False)
    return [[(start, end) for start, end in e.offsets if start < end] for e in encodings]


@functools.cache
def _word_splitter() -> BackendTokenizer:
    """Builds a tokenizer that makes one unknown token of each word, with the word's offsets."""
    splitter = BackendTokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    splitter.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    splitter.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return splitter
