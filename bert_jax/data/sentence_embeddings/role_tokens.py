"""Tokenizes queries and documents as sparse and multi-vector models read them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.finetuning.features import build_inputs_with_special_tokens
from bert_jax.models.sentence_encoder.config import (
    MultiVectorEncoderConfig,
    SparseEncoderConfig,
    TextRole,
)
from bert_jax.text.tokenizer import Tokenizer


class RoleTokens(NamedTuple):
    """Holds a text as token ids.

    Attributes:
      input_ids: int32 [length], with prompt and special tokens, truncated.
      token_type_ids: int32 [length].
      is_truncated: whether the text was longer.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    is_truncated: bool


def tokenize_for_role(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    config: SparseEncoderConfig | MultiVectorEncoderConfig,
    role: TextRole,
    prompt: str,
    longest: int,
) -> list[RoleTokens]:
    """Tokenizes texts; the expansion of queries is not included.

    Static queries have no special tokens.

    Args:
      prompt: what is put before each text.
      longest: the longest length of the encoder.
    """
    if isinstance(config, MultiVectorEncoderConfig):
        length = config.length_of_role(role, longest)
        if config.has_prefix_tokens:
            encoded = encode_with_prefix_token(texts, tokenizer, prompt)
        else:
            encoded = tokenizer.encode_ids([prompt + text for text in texts])
    else:
        length = min(config.max_seq_length or longest, longest)
        encoded = tokenizer.encode_ids([prompt + text for text in texts])
        if role == "query" and config.has_static_queries:
            length = config.query_length or length
            return [
                RoleTokens(ids[:length], np.zeros_like(ids[:length]), len(ids) > length)
                for ids in encoded
            ]
    return [
        RoleTokens(*build_inputs_with_special_tokens(ids, None, tokenizer, length))
        for ids in encoded
    ]


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
