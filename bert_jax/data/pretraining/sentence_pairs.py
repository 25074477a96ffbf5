"""Makes sentence pairs from windows of text, for next-sentence and sentence-order prediction.

The rules are as in BERT's create_pretraining_data.py (Devlin et al. 2019, section 3.1 and
appendix A.2): segment A is the first sentences of the window; segment B is the rest of the window
(label 0) or text of another document (label 1). A pair that is too long loses one token at a time
from the longer segment, at its front or its back.

For sentence-order prediction, the script of the same name in ALBERT's release exchanges A and B
(label 1) instead of taking B from another document (Lan et al. 2020, section 3.1).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.batch import NEXT_SENTENCE_FIELDS
from bert_jax.config.data import PairFormat, SentenceOrderPairs, SentencePairs
from bert_jax.data.pretraining.rng import ExampleRng, Stream
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import TextWindow


class SentencePair(NamedTuple):
    """Holds token ids a [Ta] and b [Tb]; label 0 if b follows a, 1 if b is random or precedes a."""

    a: np.ndarray
    b: np.ndarray
    label: int


def sample_target_seq_length(max_num_tokens: int, config: PairFormat, rng: ExampleRng) -> int:
    """Draws the target length: `max_num_tokens`, or rarely uniform in [2, max_num_tokens]."""
    if rng.uniform(Stream.SHORT_SEQ) < config.short_seq_prob:
        # BERT makes 10 % of the sequences shorter, so that pretraining sees lengths as in
        # fine-tuning.
        return 2 + rng.randint(max_num_tokens - 1, Stream.TARGET_SEQ_LENGTH)
    return max_num_tokens


def make_pair(
    window: TextWindow,
    target_seq_length: int,
    max_num_tokens: int,
    random_next_text: Callable[[int], np.ndarray],
    config: PairFormat,
    rng: ExampleRng,
) -> SentencePair:
    """Splits a window into A and B, replaces B or exchanges them, and truncates the pair.

    Args:
      window: the sentences of the example.
      target_seq_length: the number of tokens that the window was made for.
      max_num_tokens: the largest number of tokens of A and B together.
      random_next_text: returns the ids of whole sentences of another document, at least as many
        as its argument unless that document ends first. Called only for a random B.
    """
    num_sentences = len(window.sentence_ends)
    num_sentences_a = (
        1 + rng.randint(num_sentences - 1, Stream.SEGMENT_SPLIT) if num_sentences > 1 else 1
    )
    end = int(window.sentence_ends[num_sentences_a - 1])
    a, b = window.ids[:end], window.ids[end:]
    # A window of one sentence cannot be split, so B comes from another document (as in both
    # scripts; in ALBERT's with the label of swapped segments). Leaving such windows out would make
    # the length of an epoch unknown without reading the text. In novels they are 0.5 % of the
    # sequences of 512 tokens and 2.6 % of the sequences of 128.
    is_random, is_swapped = num_sentences == 1, False
    match config:
        case SentencePairs():
            is_random |= rng.uniform(Stream.RANDOM_NEXT) < config.random_next_prob
        case SentenceOrderPairs():
            is_swapped = not is_random and rng.uniform(Stream.SENTENCE_ORDER) < config.swap_prob
    if is_random:
        b = random_next_text(max(1, target_seq_length - end))
    if is_swapped:
        a, b = b, a
    a, b = truncate_seq_pair(a, b, max_num_tokens, rng)
    return SentencePair(a, b, int(is_random or is_swapped))


def truncate_seq_pair(
    a: np.ndarray, b: np.ndarray, max_num_tokens: int, rng: ExampleRng
) -> tuple[np.ndarray, np.ndarray]:
    """Removes tokens one by one from the longer of a and b until `max_num_tokens` are left.

    If both are equally long, b loses the next token. Each removal is at the front with probability
    1/2: bit i of the random stream TRUNCATE decides the removal with index i.
    """
    # BERT's script removes tokens in a loop. Counting the bits of the removals gives the same
    # distribution without a step for each token.
    excess = len(a) + len(b) - max_num_tokens
    if excess <= 0:
        return a, b
    length_difference = min(excess, abs(len(a) - len(b)))
    front_bits = 0
    for index in range(-(-excess // 64)):
        front_bits |= rng.bits(Stream.TRUNCATE, index) << (64 * index)
    longer_bits = front_bits & ((1 << length_difference) - 1)
    # Once both are equally long, they take turns: b loses tokens at even and a at odd removals.
    alternating_bits = (front_bits & ((1 << excess) - 1)) >> length_difference
    # 0x55 has a one at every even bit.
    even_bits = int.from_bytes(b"\x55" * (excess // 8 + 1), "little")
    longer_is_a = len(a) > len(b)
    num_removed_a, num_removed_front_a = (
        (excess - length_difference) // 2,
        (alternating_bits & (even_bits << 1)).bit_count(),
    )
    num_removed_b, num_removed_front_b = (
        (excess - length_difference + 1) // 2,
        (alternating_bits & even_bits).bit_count(),
    )
    if longer_is_a:
        num_removed_a, num_removed_front_a = (
            num_removed_a + length_difference,
            num_removed_front_a + longer_bits.bit_count(),
        )
    else:
        num_removed_b, num_removed_front_b = (
            num_removed_b + length_difference,
            num_removed_front_b + longer_bits.bit_count(),
        )
    return a[num_removed_front_a : len(a) - (num_removed_a - num_removed_front_a)], b[
        num_removed_front_b : len(b) - (num_removed_b - num_removed_front_b)
    ]


def collate_pairs(
    pairs: Sequence[SentencePair],
    seq_length: int,
    vocab_arrays: VocabArrays,
    label_field: str = NEXT_SENTENCE_FIELDS[0],
) -> dict[str, np.ndarray]:
    """Builds padded sequences of pairs with special tokens, not yet masked.

    Returns:
      `input_ids`, `token_type_ids`, `attention_mask` [B, L] and the labels [B] as the field
      `label_field`, int32.
    """
    num_pairs = len(pairs)
    input_ids = np.full((num_pairs, seq_length), vocab_arrays.pad_id, dtype=np.int32)
    token_type_ids = np.zeros((num_pairs, seq_length), dtype=np.int32)
    attention_mask = np.zeros((num_pairs, seq_length), dtype=np.int32)
    template, cls_id, sep_id = vocab_arrays.template, vocab_arrays.cls_id, vocab_arrays.sep_id
    for row, pair in enumerate(pairs):
        end = template.write_inputs(input_ids[row], cls_id, sep_id, pair.a, pair.b)
        token_type_ids[row, template.second_start(len(pair.a)) : end] = template.second_token_type
        attention_mask[row, :end] = 1
    return {
        "input_ids": input_ids,
        "token_type_ids": token_type_ids,
        "attention_mask": attention_mask,
        label_field: np.array([pair.label for pair in pairs], dtype=np.int32),
    }


def collate_single_segments(
    texts: Sequence[np.ndarray], seq_length: int, vocab_arrays: VocabArrays
) -> dict[str, np.ndarray]:
    """Builds padded sequences of one text each with special tokens, not yet masked.

    Returns:
      `input_ids`, `token_type_ids`, `attention_mask` [B, L] int32.
    """
    input_ids = np.full((len(texts), seq_length), vocab_arrays.pad_id, dtype=np.int32)
    attention_mask = np.zeros((len(texts), seq_length), dtype=np.int32)
    template, cls_id, sep_id = vocab_arrays.template, vocab_arrays.cls_id, vocab_arrays.sep_id
    for row, text in enumerate(texts):
        end = template.write_inputs(input_ids[row], cls_id, sep_id, text)
        attention_mask[row, :end] = 1
    return {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "attention_mask": attention_mask,
    }
