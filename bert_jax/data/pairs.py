"""Windows -> sentence pairs and rows, as in BERT (Devlin et al., 2019, 3.1 and appendix A.2).

The rules are those of BERT's create_pretraining_data.py: A is the first few sentences of the
window; B is the rest of it (label 0) or text of another document (label 1); what is too long is
cut token by token from the longer one, at the front or the back.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.config import Pairs
from bert_jax.data.random import Draws, Stream
from bert_jax.data.token_table import TokenTable
from bert_jax.data.windows import Window

PAIR_SPECIALS = 3  # [CLS] A [SEP] B [SEP]
SINGLE_SPECIALS = 2  # [CLS] text [SEP]


class Pair(NamedTuple):
    """Token ids a [Ta] and b [Tb]; label 0 = b is next, 1 = b is from elsewhere."""

    a: np.ndarray
    b: np.ndarray
    label: int


def target_tokens(width: int, config: Pairs, draws: Draws) -> int:
    """Tokens to gather for a pair: `width`, or now and then uniform in [2, width]."""
    if draws.uniform(Stream.SHORT) < config.short_probability:
        return 2 + draws.below(width - 1, Stream.TARGET)
    return width


def make_pair(
    window: Window,
    target: int,
    width: int,
    other_text: Callable[[int], np.ndarray],
    config: Pairs,
    draws: Draws,
) -> Pair:
    """Splits a window into A and B, or takes B from elsewhere, and truncates to `width` tokens.

    Args:
      target: the number of tokens for which the window was gathered.
      other_text: gives ids of whole sentences of another document, at least as many as asked
        for unless that document ends first. Called only when B comes from elsewhere.
    """
    sentences = len(window.sentence_ends)
    in_a = 1 + draws.below(sentences - 1, Stream.SPLIT) if sentences > 1 else 1
    end = int(window.sentence_ends[in_a - 1])
    a = window.ids[:end]
    if sentences == 1 or draws.uniform(Stream.NEXT) < config.not_next_probability:
        b, label = other_text(max(1, target - end)), 1
    else:
        b, label = window.ids[end:], 0
    a, b = truncate(a, b, width, draws)
    return Pair(a, b, label)


def truncate(
    a: np.ndarray, b: np.ndarray, width: int, draws: Draws
) -> tuple[np.ndarray, np.ndarray]:
    """Removes tokens one by one from the longer of a and b until both have `width` in all.

    Of two that are equally long, b loses the next token. Each removal is at the front with
    probability 1/2: removal number i is decided by bit i of the stream TRUNCATE.
    """
    excess = len(a) + len(b) - width
    if excess <= 0:
        return a, b
    apart = min(excess, abs(len(a) - len(b)))
    coins = 0
    for index in range(-(-excess // 64)):
        coins |= draws.word(Stream.TRUNCATE, index) << (64 * index)
    from_longer = coins & ((1 << apart) - 1)
    # Once they are equally long, b loses tokens at even and a at odd removals.
    in_turn = (coins & ((1 << excess) - 1)) >> apart
    even = int.from_bytes(b"\x55" * (excess // 8 + 1), "little")
    longer_is_a = len(a) > len(b)
    a_cut, a_front = (excess - apart) // 2, (in_turn & (even << 1)).bit_count()
    b_cut, b_front = (excess - apart + 1) // 2, (in_turn & even).bit_count()
    if longer_is_a:
        a_cut, a_front = a_cut + apart, a_front + from_longer.bit_count()
    else:
        b_cut, b_front = b_cut + apart, b_front + from_longer.bit_count()
    return a[a_front : len(a) - (a_cut - a_front)], b[b_front : len(b) - (b_cut - b_front)]


def pair_rows(pairs: Sequence[Pair], length: int, table: TokenTable) -> dict[str, np.ndarray]:
    """Rows [CLS] A [SEP] B [SEP] of `length`, unmasked.

    Returns:
      `input_ids`, `token_type_ids`, `attention_mask` [B, L] and `next_sentence_labels` [B], int32.
    """
    rows = len(pairs)
    input_ids = np.full((rows, length), table.pad_id, dtype=np.int32)
    token_type_ids = np.zeros((rows, length), dtype=np.int32)
    attention_mask = np.zeros((rows, length), dtype=np.int32)
    for row, pair in enumerate(pairs):
        middle = 1 + len(pair.a)
        end = middle + 1 + len(pair.b)
        ids = input_ids[row]
        ids[0] = table.cls_id
        ids[1:middle] = pair.a
        ids[middle] = table.sep_id
        ids[middle + 1 : end] = pair.b
        ids[end] = table.sep_id
        token_type_ids[row, middle + 1 : end + 1] = 1
        attention_mask[row, : end + 1] = 1
    return {
        "input_ids": input_ids,
        "token_type_ids": token_type_ids,
        "attention_mask": attention_mask,
        "next_sentence_labels": np.array([pair.label for pair in pairs], dtype=np.int32),
    }


def single_rows(
    texts: Sequence[np.ndarray], length: int, table: TokenTable
) -> dict[str, np.ndarray]:
    """Rows [CLS] text [SEP] of `length`, unmasked; texts [T] with T <= length - 2.

    Returns:
      `input_ids`, `token_type_ids`, `attention_mask` [B, L] int32.
    """
    input_ids = np.full((len(texts), length), table.pad_id, dtype=np.int32)
    attention_mask = np.zeros((len(texts), length), dtype=np.int32)
    for row, text in enumerate(texts):
        end = 1 + len(text)
        input_ids[row, 0] = table.cls_id
        input_ids[row, 1:end] = text
        input_ids[row, end] = table.sep_id
        attention_mask[row, : end + 1] = 1
    return {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "attention_mask": attention_mask,
    }
