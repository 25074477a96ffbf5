"""Truncates texts that are too long, or reads them in windows and pools the outputs."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import log_expit, log_softmax, logsumexp

from bert_jax.config.labeled_data import (
    HeadTailTruncation,
    HeadTruncation,
    JointWindows,
    Truncation,
    Windows,
)
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import (
    Features,
    build_inputs_with_special_tokens,
    longest_first_lengths,
    window_starts,
)
from bert_jax.text.tokenizer import Tokenizer

_SUN_HEAD_TOKENS, _SUN_TOTAL_TOKENS = 128, 510
"""Sun et al. read the first 128 of 510 tokens and the last 382; other lengths keep this ratio."""


# Each window is a training example with the label of its text, so that long texts count more than
# short ones, as in question answering.
def text_features(
    examples: Sequence[TextExample],
    tokenizer: Tokenizer,
    max_length: int,
    truncation: Truncation,
    window_overlap: int,
) -> Features:
    """Tokenizes texts and pairs, and truncates those that are too long, or cuts them into windows.

    Args:
      window_overlap: number of tokens that neighboring windows of one text share.
    """
    first = tokenizer.encode_ids([example.text for example in examples])
    pairs = [example.text_pair for example in examples]
    second = iter(tokenizer.encode_ids([text for text in pairs if text is not None]))
    features, example_indices = Features(), []
    if isinstance(truncation, Windows):
        features.window_pooling = truncation.pooling
    if isinstance(truncation, JointWindows):
        features.num_choices = truncation.num_windows
        features.window_mask = np.zeros((len(examples), features.num_choices), np.int32)
    for index, (a, pair) in enumerate(zip(first, pairs, strict=True)):
        b = None if pair is None else next(second)
        if b is None:
            num_first, num_second = (
                min(len(a), max_length - tokenizer.template.num_single_special_tokens),
                0,
            )
        else:
            num_text_tokens = max_length - tokenizer.template.num_pair_special_tokens
            num_first, num_second = longest_first_lengths(len(a), len(b), num_text_tokens)
        sequences, is_truncated = _cut_sequences(
            a, b, num_first, num_second, truncation, window_overlap
        )
        if features.window_mask is not None:
            is_truncated |= len(sequences) > features.num_choices
            sequences = sequences[: features.num_choices]
            features.window_mask[index, : len(sequences)] = 1
        for left, right in sequences:
            input_ids, token_type_ids, _ = build_inputs_with_special_tokens(
                left, right, tokenizer, max_length
            )
            features.input_ids.append(input_ids)
            features.token_type_ids.append(token_type_ids)
            example_indices.append(index)
        if features.window_mask is not None:
            missing = features.num_choices - len(sequences)
            # The number of windows is fixed, so that one step is compiled; missing windows are
            # empty and masked.
            features.input_ids += [np.zeros(0, np.int32)] * missing
            features.token_type_ids += [np.zeros(0, np.int32)] * missing
        features.num_truncated += is_truncated
    if features.window_mask is not None:  # all windows of an example are one sequence
        example_indices = range(len(examples))
    features.example_index = np.array(example_indices, np.int64)
    return features


def _cut_sequences(
    a: np.ndarray,
    b: np.ndarray | None,
    num_first: int,
    num_second: int,
    truncation: Truncation,
    window_overlap: int,
) -> tuple[list[tuple[np.ndarray, np.ndarray | None]], bool]:
    """Returns the texts of each sequence of an example, and whether some tokens are not read.

    Args:
      num_first, num_second: how many tokens of `a` and of `b` fit into one sequence.
    """
    if num_first == len(a) and (b is None or num_second == len(b)):
        # Short texts need no windows, and their sequences are the same whatever the truncation is.
        return [(a, b)], False
    if not isinstance(truncation, Windows | JointWindows):
        return [
            (
                _truncate(a, num_first, truncation),
                None if b is None else _truncate(b, num_second, truncation),
            )
        ], True
    if b is None:
        return [(window, None) for window in _windows(a, num_first, window_overlap)], False
    if len(a) > len(b):
        return [
            (window, b[:num_second]) for window in _windows(a, num_first, window_overlap)
        ], num_second < len(b)
    return [
        (a[:num_first], window) for window in _windows(b, num_second, window_overlap)
    ], num_first < len(a)


def _truncate(tokens: np.ndarray, num_tokens: int, truncation: Truncation) -> np.ndarray:
    if isinstance(truncation, HeadTruncation) or num_tokens == len(tokens):
        return tokens[:num_tokens]
    is_both = isinstance(truncation, HeadTailTruncation)
    head = num_tokens * _SUN_HEAD_TOKENS // _SUN_TOTAL_TOKENS if is_both else 0
    return np.concatenate([tokens[:head], tokens[len(tokens) - (num_tokens - head) :]])


def _windows(tokens: np.ndarray, window_length: int, window_overlap: int) -> list[np.ndarray]:
    starts = window_starts(len(tokens), window_length, min(window_overlap, window_length // 2))
    return [tokens[start : start + window_length] for start in starts]


def pool_windows(
    outputs: Mapping[str, Sequence[np.ndarray]], name: str, features: Features
) -> np.ndarray:
    """Combines the outputs for all windows of each example by `features.window_pooling`.

    Pooled logits are logarithms of pooled probabilities, except with "mean_logits". The output for
    an example with a single sequence is not changed.

    Args:
      name: "logits" or "binary_logits", with outputs [C] for each sequence, or "values", with
        outputs [].

    Returns:
      The outputs of each example, [examples, C] or [examples].
    """
    by_sequence = np.stack(outputs[name])
    first_sequences = np.flatnonzero(np.diff(features.example_index, prepend=-1))
    # Without windows the outputs stay as the head gave them, logits and not log-probabilities.
    if len(first_sequences) == len(by_sequence):
        return by_sequence
    return np.stack(
        [
            windows[0] if len(windows) == 1 else _pool(name, windows, features)
            for windows in np.split(by_sequence, first_sequences[1:])
        ]
    )


def _pool(name: str, windows: np.ndarray, features: Features) -> np.ndarray:
    windows, window_pooling = windows.astype(np.float64), features.window_pooling
    if window_pooling == "mean_logits":
        return windows.mean(axis=0)
    if window_pooling == "first":
        return windows[0]
    if name == "values":
        return windows.mean(axis=0) if window_pooling == "mean" else windows.max(axis=0)
    if name == "binary_logits":  # the probability of each label is pooled by itself
        if window_pooling == "max":
            return windows.max(axis=0)
        # The logit of the mean probability, from the logarithms of the mean probabilities that
        # the label is there and that it is not.
        return logsumexp(log_expit(windows), axis=0) - logsumexp(log_expit(-windows), axis=0)
    log_probs = log_softmax(windows, axis=-1)
    if window_pooling == "max":
        return log_probs.max(axis=0)
    # The logarithm of the mean probability, without leaving log space, where small probabilities do
    # not underflow.
    return logsumexp(log_probs, axis=0) - np.log(len(windows))
