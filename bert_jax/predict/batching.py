"""Prepares models and texts for prediction: parameters on the device, token ids in padded batches.

Batches have few different shapes, because each new shape costs a compilation.
"""

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.pretrained.load import LoadedModel
from bert_jax.text.tokenizer import Tokenizer

MIN_LENGTH = 16
TOKENS_PER_BATCH = 4096
_MANY_TOKENS = 16 * TOKENS_PER_BATCH
"""Number of tokens from which less padding saves more time than further compilations cost."""
Batch = dict[str, np.ndarray]


def require_tokenizer(model: LoadedModel) -> Tokenizer:
    """Returns the tokenizer of a model; raises a UserError if its folder has none."""
    if model.tokenizer is None:
        raise UserError(
            f"{model.path} has no tokenizer files (vocab.txt, tokenizer.json, vocab.json or a "
            ".model file); copy those with which the model was trained into this folder"
        )
    return model.tokenizer


def require_masked_lm(model: LoadedModel, purpose: str) -> None:
    """Raises a UserError if a model has no masked-LM head.

    Args:
      purpose: what it is needed for, such as "fill masks".
    """
    if "masked_lm" in model.missing:
        reason = model.config.missing_masked_lm_reason
        raise UserError(
            f"{model.path} has no masked-LM head, so it cannot {purpose}"
            + (f": {reason}" if reason else "")
        )


def params_to_device(model: LoadedModel, part: str) -> dict[str, jax.Array]:
    """Copies the parameters of one part of a model, such as "encoder", to the device."""
    return jax.device_put(model.params[part])


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Tokenizes each text with special tokens, without truncation.

    Raises:
      UserError: the model reads too few tokens for any text.
    """
    if max_length < 3:
        raise UserError(
            f"this model reads at most {max_length} tokens; expected at least 3, for a token of "
            "text between [CLS] and [SEP]"
        )
    encodings = tokenizer.encode_batch(texts)
    return [tokenizer.build_inputs_with_special_tokens(e.ids).tolist() for e in encodings]


def next_power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def padded_batches(
    sequences: Sequence[Sequence[int]], *, pad_id: int, max_length: int, num_shards: int = 1
) -> Iterator[tuple[list[int], Batch]]:
    """Groups token ids of similar length into padded batches.

    Lengths are padded to 16, 32, 64, ..., at most `max_length`. From `_MANY_TOKENS` tokens on,
    lengths over 64 are padded to eighths of the next power of two: 80, 96, 112, 128, 160, ... Each
    shard has 1, 2, 4, ... rows, or those of a full batch.

    Args:
      sequences: token ids of each text with special tokens, at most `max_length` each.
      pad_id: the token id of padding.
      max_length: number of positions of the model.
      num_shards: number of devices over which the rows of a batch are spread evenly.

    Yields:
      (indices into `sequences`, batch): the encoder's fields, int32 [B, L]. Rows after the last
      index are padding.
    """
    remaining = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    has_many_lengths = sum(map(len, sequences)) >= _MANY_TOKENS
    while remaining:
        longest = len(sequences[remaining[-1]])
        length = max(next_power_of_two(longest), MIN_LENGTH)
        if has_many_lengths and length > 64:
            step = length // 8
            length = -(-longest // step) * step
        length = min(length, max_length)
        shard_size = max(TOKENS_PER_BATCH // length, 1)
        batch_size = shard_size * num_shards
        # Longest first: the largest buffers are allocated at the start.
        batch_indices, remaining = remaining[-batch_size:], remaining[:-batch_size]
        shard_rows = next_power_of_two(-(-len(batch_indices) // num_shards))
        num_rows = min(shard_rows, shard_size) * num_shards
        batch_sequences = [sequences[index] for index in batch_indices]
        yield batch_indices, _pad(batch_sequences, pad_id, (num_rows, length))


def _pad(sequences: Sequence[Sequence[int]], pad_id: int, shape: tuple[int, int]) -> Batch:
    ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence
        mask[index, : len(sequence)] = 1
    mask[len(sequences) :, 0] = 1  # a softmax over no tokens is undefined
    return {"input_ids": ids, "token_type_ids": np.zeros(shape, np.int32), "attention_mask": mask}
