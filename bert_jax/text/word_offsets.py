"""The words of a text as BERT's basic tokenizer parts them, by their places in the text."""

import functools
from collections.abc import Sequence

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, normalizers, pre_tokenizers


def word_offsets(texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """The characters [start, end) of each word of each text.

    White space parts words; a punctuation mark and a Han character are words of their own; control
    characters belong to none (`BasicTokenizer` of BERT's release, without lower-casing).
    """
    encodings = _word_splitter().encode_batch(list(texts), add_special_tokens=False)
    return [[(start, end) for start, end in e.offsets if start < end] for e in encodings]


@functools.cache
def _word_splitter() -> BackendTokenizer:
    """Gives every word one token, the unknown one, whose offsets are the word's."""
    splitter = BackendTokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    splitter.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    splitter.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return splitter
