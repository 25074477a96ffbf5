"""Provides a million tokens of novels, as rows of [CLS] text [SEP], to tests of masking."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bert_jax.data.pretraining.rng import epoch_key, example_keys
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.text.files import read_text
from bert_jax.text.load_tokenizer import load_tokenizer


class NovelRows(NamedTuple):
    """Holds unmasked rows of the same length without padding, and their random keys."""

    input_ids: np.ndarray
    keys: np.ndarray
    vocab_arrays: VocabArrays


@pytest.fixture(scope="session")
def novel_rows(shared: Path) -> NovelRows:
    """Returns 8,000 rows of 128 tokens from the novels, cased WordPiece: 1,008,000 tokens."""
    tokenizer = load_tokenizer(shared / "vocab/bert-base-cased/vocab.txt")
    vocab_arrays = VocabArrays.from_tokenizer(tokenizer)
    num_rows, length = 8000, 126
    tokens = np.zeros(0, np.int32)
    for file in sorted((shared / "text/novels").glob("*.txt.gz"))[::5]:
        if len(tokens) < num_rows * length:
            tokens = np.concatenate((tokens, *tokenizer.encode_ids([read_text(file)])))
    rows = np.empty((num_rows, length + 2), np.int32)
    rows[:, 0], rows[:, -1] = tokenizer.cls_id, tokenizer.sep_id
    rows[:, 1:-1] = tokens[: num_rows * length].reshape(num_rows, length)
    keys = example_keys(np.full(num_rows, epoch_key(1, 0), np.uint64), np.arange(num_rows))
    return NovelRows(rows, keys, vocab_arrays)
