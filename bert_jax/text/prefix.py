"""Encodes texts after a prefix that may be a single token, such as ColBERT's [Q] and [D]."""

from collections.abc import Sequence

import numpy as np

from bert_jax.text.tokenizer import Tokenizer


def encode_with_prefix_token(
    texts: Sequence[str], tokenizer: Tokenizer, prefix: str
) -> list[np.ndarray]:
    """Returns the int32 ids of each text after a prefix, without the tokenizer's special tokens.

    A prefix that is a token of the vocabulary becomes that token, even if the tokenizer would split
    it, as PyLate inserts it: "[unused0]" would be five tokens of BERT. So does the first word of a
    prefix. Any other prefix is a text that is put before each text.
    """
    token_ids: list[int] = []
    for candidate in (prefix, *prefix.split(None, 1)[:1]):
        if candidate and candidate in tokenizer:
            token_id = tokenizer.token_to_id(candidate)
            if tokenizer.encode(candidate) != [token_id]:
                token_ids, prefix = [token_id], prefix[len(candidate) :]
            break
    encoded = tokenizer.encode_ids([prefix + text for text in texts])
    if not token_ids:
        return encoded
    return [np.concatenate([np.array(token_ids, np.int32), ids]) for ids in encoded]
