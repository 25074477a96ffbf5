"""Covers bert_jax/text/compatibility.py: which tokenizers, tables and templates are refused."""

import re

import pytest

from bert_jax.apps.testing.models import WORDS, word_tokenizer
from bert_jax.errors import UserError
from bert_jax.text.compatibility import (
    Tokenization,
    check_embedding_rows,
    check_input_template,
    check_pad_token_id,
    check_same_tokenizer,
)
from bert_jax.text.input_template import BertTemplate
from bert_jax.text.load_tokenizer import load_tokenizer


def test_same_tokenizer_at_two_paths_is_accepted(tmp_path):
    one, other = (word_tokenizer(tmp_path / name) for name in "ab")
    check_same_tokenizer(Tokenization.of(one, "a"), Tokenization.of(other, "b"), "not shown")


def test_tokenizers_of_the_same_size_are_compared_by_tokens(tmp_path):
    one, other = word_tokenizer(tmp_path / "a"), word_tokenizer(tmp_path / "b", WORDS[::-1])
    message = (
        f"model and corpus have different vocabularies: model has 18 tokens, fingerprint "
        f"{one.fingerprint[:12]}; corpus has 18 tokens, fingerprint {other.fingerprint[:12]}; "
        "prepare it again"
    )
    with pytest.raises(UserError, match=re.escape(message)):
        check_same_tokenizer(
            Tokenization.of(one, "model"), Tokenization.of(other, "corpus"), "prepare it again"
        )


def test_padding_id_that_the_model_does_not_count_from_raises(tmp_path):
    tokenizer = word_tokenizer(tmp_path)
    check_pad_token_id(tokenizer, None, "corpus")
    check_pad_token_id(tokenizer, 0, "corpus")
    with pytest.raises(UserError, match=r"^corpus: .* padding id 0, but .* the padding id 1; use"):
        check_pad_token_id(tokenizer, 1, "corpus")


@pytest.mark.parametrize(
    "vocab_size, num_rows", [(100, 100), (101, 101), (100, 104), (30522, 30592)]
)
def test_embedding_table_may_be_padded(vocab_size, num_rows):
    check_embedding_rows(vocab_size, num_rows, "model", "not shown")


@pytest.mark.parametrize("vocab_size, num_rows", [(105, 104), (100, 101), (8192, 30522), (8, 136)])
def test_embedding_table_of_another_size_raises(vocab_size, num_rows):
    with pytest.raises(
        UserError, match=rf"^model: .* {vocab_size:,} tokens, .* {num_rows:,} rows; do it$"
    ):
        check_embedding_rows(vocab_size, num_rows, "model", "do it")


def test_template_of_bert_is_refused_for_roberta_tokens_and_one_token_type(shared, tmp_path):
    roberta = load_tokenizer(shared / "vocab/roberta-base")
    check_input_template(roberta, 1, "folder")
    roberta.template = BertTemplate()  # as after loading a folder that names no template
    check_input_template(roberta, 2, "folder")  # BERT with this tokenizer
    message = r'^folder: .* template \'bert\', .* has 1 token type\..* set "template": "roberta"'
    with pytest.raises(UserError, match=message):
        check_input_template(roberta, 1, "folder")
    check_input_template(word_tokenizer(tmp_path), 1, "folder")  # RoBERTa with BERT's tokenizer
