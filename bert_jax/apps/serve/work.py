"""Defines `Work`: the token sequences of a request and how their outputs become its answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from bert_jax.apps.serve.engine import Arrays, Engine, TokenSequence
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.requests import TextInput
from bert_jax.text.tokenizer import Tokenizer, check_unicode

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Work(Generic[T]):
    """Holds what a request needs from the device.

    Attributes:
      engine: the engine that computes it.
      sequences: the rows to compute.
      decode: converts the outputs of the sequences, in their order, to the result.
      num_characters: number of characters of all texts.
      num_truncated: number of texts that were not read completely.
    """

    engine: Engine
    sequences: Sequence[TokenSequence]
    decode: Callable[[Sequence[Arrays]], T]
    num_characters: int = 0
    num_truncated: int = 0

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens of all sequences."""
        return sum(map(len, self.sequences))


def refuse_long(
    number: int,
    max_length: int,
    *,
    param: str = "inputs",
    advice: str = 'send "truncate": true to read only a part of each',
) -> None:
    """Raises a RequestError if texts were truncated, although the request or route forbids it.

    Args:
      param: the field of the request that has the texts.
      advice: what a client can do that does not want to shorten them.
    """
    if number:
        raise RequestError(
            "validation",
            f"{number} of the texts have more than {max_length} tokens, which is the maximum of "
            f"this model; shorten them, or {advice}",
            param,
        )


def encode_inputs(
    items: Sequence[TextInput],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    prompt: str = "",
    keep_end: bool = False,
) -> tuple[list[np.ndarray], int]:
    """Tokenizes texts with special tokens; longer ones lose tokens.

    Token ids are taken as they are if they begin and end with special tokens; otherwise special
    tokens are added.

    Args:
      prompt: a text in front of each text; token ids get none.
      keep_end: whether long texts lose their beginning, after the prompt, instead of their end.

    Returns:
      int32 ids of each text, and the number of texts that were cut.

    Raises:
      RequestError: a token id is not in the vocabulary.
      UserError: a text is not valid Unicode.
    """
    texts = [prompt + item for item in items if isinstance(item, str)]
    check_unicode(texts)
    encoded = iter(tokenizer.encode_ids(texts))
    max_tokens = max_length - tokenizer.template.num_single_special_tokens
    num_prompt_tokens = min(len(tokenizer.encode_ids([prompt])[0]), max_tokens) if prompt else 0
    sequences: list[np.ndarray] = []
    num_truncated = 0
    for item in items:
        ids = next(encoded) if isinstance(item, str) else _checked_ids(item, tokenizer)
        num_removed = max(len(ids) - max_tokens, 0)
        num_truncated += num_removed > 0
        first_removed = max_tokens
        if keep_end:
            first_removed = num_prompt_tokens if isinstance(item, str) else 0
        ids = np.concatenate([ids[:first_removed], ids[first_removed + num_removed :]])
        sequences.append(tokenizer.build_inputs_with_special_tokens(ids))
    return sequences, num_truncated


def _checked_ids(ids: list[int], tokenizer: Tokenizer) -> np.ndarray:
    """Returns token ids without the special tokens around them."""
    for token_id in ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise RequestError(
                "validation",
                f"the token id {token_id} is not in the vocabulary; expected 0 to "
                f"{tokenizer.vocab_size - 1}",
                "inputs",
            )
    if len(ids) >= 2 and ids[0] == tokenizer.cls_id and ids[-1] == tokenizer.sep_id:
        ids = ids[1:-1]
    return np.array(ids, np.int32)


def count_characters(items: Sequence[TextInput]) -> int:
    """Returns the number of characters of all texts; token ids have none."""
    return sum(len(item) for item in items if isinstance(item, str))
