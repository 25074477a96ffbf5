"""Tokenizers that differ are refused with both paths, sizes, fingerprints and the next step."""

import re

import pytest

from bert_jax.errors import UserError
from bert_jax.testing.models import WORDS, word_tokenizer
from bert_jax.text.compatibility import Tokenization, check_embedding_rows, check_same_tokenizer


def test_same_tokenizer_at_two_paths_is_accepted(tmp_path):
    one, other = (word_tokenizer(tmp_path / name) for name in "ab")
    check_same_tokenizer(Tokenization.of(one, "a"), Tokenization.of(other, "b"), "Not shown.")


def test_tokenizers_of_the_same_size_are_compared_by_tokens(tmp_path):
    one, other = word_tokenizer(tmp_path / "a"), word_tokenizer(tmp_path / "b", WORDS[::-1])
    message = (
        f"model and corpus have different vocabularies: model has 18 tokens, fingerprint "
        f"{one.fingerprint[:12]}; corpus has 18 tokens, fingerprint {other.fingerprint[:12]}. "
        "Prepare it again."
    )
    with pytest.raises(UserError, match=re.escape(message)):
        check_same_tokenizer(
            Tokenization.of(one, "model"), Tokenization.of(other, "corpus"), "Prepare it again."
        )


@pytest.mark.parametrize(
    "vocab_size, num_rows", [(100, 100), (101, 101), (100, 104), (30522, 30592)]
)
def test_embedding_table_may_be_padded(vocab_size, num_rows):
    check_embedding_rows(vocab_size, num_rows, "model", "Not shown.")


@pytest.mark.parametrize("vocab_size, num_rows", [(105, 104), (100, 101), (8192, 30522), (8, 136)])
def test_embedding_table_of_another_size_raises(vocab_size, num_rows):
    with pytest.raises(
        UserError, match=rf"^model: .* {vocab_size:,} tokens, .* {num_rows:,} rows\. Do it\.$"
    ):
        check_embedding_rows(vocab_size, num_rows, "model", "Do it.")
