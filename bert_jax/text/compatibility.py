"""Compares tokenizers where a model, a corpus or labeled data meet.

Token ids mean something only with the tokenizer that made them. With another tokenizer, training
runs without an error and learns nothing that can be used.
"""

from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.text.input_template import RobertaTemplate, default_template
from bert_jax.text.tokenizer import Tokenizer


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
            f"{first.path} and {second.path} have different vocabularies: {first}; {second}. "
            f"{next_step}"
        )


def check_embedding_rows(vocab_size: int, num_rows: int, source: str, next_step: str) -> None:
    """Raises unless `vocab_size` tokens fit a word-embedding table of `num_rows` rows.

    The table may have fewer than 128 unused rows if its size is a multiple of 8, because some
    training programs pad it.

    Raises:
      UserError: it does not fit; the message begins with `source` and ends with `next_step`.
    """
    num_unused = num_rows - vocab_size
    if num_unused == 0 or (0 < num_unused < 128 and num_rows % 8 == 0):
        return
    raise UserError(
        f"{source}: the vocabulary has {vocab_size:,} tokens, but the word-embedding table of the "
        f"model has {num_rows:,} rows. {next_step}"
    )


def check_input_template(tokenizer: Tokenizer, type_vocab_size: int, source: str) -> None:
    """Raises if an old RoBERTa tokenizer would put a pair into BERT's template.

    Versions that had BERT's template only wrote tokenizers without one. BERT models of that time
    need BERT's template also with RoBERTa's tokens, <s> A </s> B </s>. A model with one token type
    cannot be one of them.

    Raises:
      UserError: the template does not fit the model; the message begins with `source`.
    """
    template, cls_token = tokenizer.template, tokenizer.special_tokens.cls
    if template.second_token_type < type_vocab_size or template == default_template(cls_token):
        return
    raise UserError(
        f"{source}: the tokenizer has the special tokens of RoBERTa but the template "
        f"{template.name!r}, whose second text has token type {template.second_token_type}; the "
        f"model has {type_vocab_size} token type. The tokenizer was saved by a version that had no "
        f'other template: set "template": "{RobertaTemplate.name}" in its vocabulary.json'
    )
