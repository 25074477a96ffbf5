"""Checks that the tokenizer of a corpus or of labeled data is the one of the model.

Token ids have a meaning only with the tokenizer that made them. Without these checks, training with
another tokenizer would raise no error, and the model would learn nothing useful.
"""

from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.text.input_template import RobertaTemplate, default_template
from bert_jax.text.tokenizer import TOKENIZER_INFO_FILE, Tokenizer


class Tokenization(NamedTuple):
    """Describes the tokenizer of a model, a corpus or labeled data, for comparisons.

    Attributes:
      path: path of the model, the corpus or the tokenizer, as the user typed it.
      vocab_size: number of token ids.
      fingerprint: `Tokenizer.fingerprint`.
    """

    path: str
    vocab_size: int
    fingerprint: str

    @classmethod
    def of(cls, tokenizer: Tokenizer, path: str) -> "Tokenization":
        """Describes a tokenizer that belongs to the model, corpus or data at `path`."""
        return cls(path, tokenizer.vocab_size, tokenizer.fingerprint)

    def __str__(self) -> str:
        return f"{self.path} has {self.vocab_size:,} tokens, fingerprint {self.fingerprint[:12]}"


def check_same_tokenizer(first: Tokenization, second: Tokenization, next_step: str) -> None:
    """Raises a UserError, which ends with `next_step`, unless both have the same tokenizer."""
    if first.fingerprint != second.fingerprint:
        raise UserError(
            f"{first.path} and {second.path} have different vocabularies: {first}; {second}; "
            f"{next_step}"
        )


def check_embedding_rows(vocab_size: int, num_rows: int, source: str, next_step: str) -> None:
    """Checks that a vocabulary has as many tokens as the word-embedding table has rows.

    Some training programs pad the table to a multiple of 8, 64 or 128 rows, and DeBERTa-v3's has
    128,100 rows for 128,001 tokens. Therefore it may have up to 127 unused rows if its size is a
    multiple of 8 or of 100.

    Raises:
      UserError: the sizes differ; the message begins with `source` and ends with `next_step`.
    """
    num_unused = num_rows - vocab_size
    is_padded = num_rows % 8 == 0 or num_rows % 100 == 0
    if num_unused == 0 or (0 < num_unused < 128 and is_padded):
        return
    raise UserError(
        f"{source}: the vocabulary has {vocab_size:,} tokens, but the word-embedding table of the "
        f"model has {num_rows:,} rows; {next_step}"
    )


def check_pad_token_id(tokenizer: Tokenizer, required: int | None, source: str) -> None:
    """Checks that a tokenizer has the padding id that the model requires; None accepts any.

    Raises:
      UserError: the ids differ; the message begins with `source`.
    """
    if required is not None and tokenizer.pad_id != required:
        raise UserError(
            f"{source}: the tokenizer has the padding id {tokenizer.pad_id}, but the model counts "
            f"positions from the padding id {required}; use a tokenizer whose vocabulary begins "
            "with <s>, <pad>, </s>, as one from `bert-jax tokenizer train --kind bpe`"
        )


def check_end_token(tokenizer: Tokenizer, eos_token_id: int, source: str) -> None:
    """Checks that the end token of an encoder-decoder is a special token of its tokenizer.

    Raises:
      UserError: it is not, so that a generated text would end at an ordinary token, or never; the
        message begins with `source`.
    """
    if eos_token_id not in tokenizer.special_ids:
        token = (
            repr(tokenizer.id_to_token(eos_token_id))
            if eos_token_id < tokenizer.vocab_size
            else "not in the vocabulary"
        )
        raise UserError(
            f"{source}: the end token eos_token_id is {eos_token_id} ({token}), which is no "
            f"special token of the tokenizer; expected {tokenizer.sep_id}, its "
            f"{tokenizer.special_tokens.sep}; correct eos_token_id in config.json, or use the "
            "tokenizer that the model was trained with"
        )


def check_input_template(tokenizer: Tokenizer, type_vocab_size: int, source: str) -> None:
    """Checks that a tokenizer with RoBERTa's tokens does not use BERT's template for RoBERTa.

    Earlier versions of bert_jax had only BERT's template and did not save it with the tokenizer, so
    it is assumed for their folders. It is right for BERT models, which have two token types, even
    if their tokens are RoBERTa's: <s> A </s> B </s>. A model with one token type needs RoBERTa's.

    Raises:
      UserError: the model has too few token types; the message begins with `source`.
    """
    template, cls_token = tokenizer.template, tokenizer.special_tokens.cls
    if type_vocab_size == 0:  # the model does not read token types
        return
    # A token type that the model lacks would be read from beyond its table, which is no error in
    # JAX.
    if template.second_token_type < type_vocab_size or template == default_template(cls_token):
        return
    raise UserError(
        f"{source}: the tokenizer has the special tokens of RoBERTa but the input template "
        f"{template.name!r}, in which the second text of a pair has token type "
        f"{template.second_token_type}; the model has {type_vocab_size} token type. An earlier "
        "version of bert_jax saved the tokenizer without its template: set "
        f'"template": "{RobertaTemplate.name}" in its {TOKENIZER_INFO_FILE}'
    )
