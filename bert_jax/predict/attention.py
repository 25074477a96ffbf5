"""Computes the attention weights of a text: how much each token attends to every other token."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.heads.config import task_parts
from bert_jax.models.model import build_network
from bert_jax.predict.batching import (
    MIN_LENGTH,
    encode_texts,
    padded_batches,
    params_to_device,
    require_tokenizer,
)
from bert_jax.pretrained.load import LoadedModel, require_no_adapter


class TextAttention(NamedTuple):
    """Holds the tokens of a text and their attention weights.

    Attributes:
      tokens: the L tokens as the vocabulary spells them, special tokens included.
      attentions: float32 [N, H, L, L], the weights of N layers with H heads. Row i has the weights
        with which token i attends to each token, and its sum is 1.
    """

    tokens: list[str]
    attentions: np.ndarray


class AttentionExtractor:
    """Extracts attention weights: `AttentionExtractor(load_model("exported"))("A text.")`.

    The weights equal those of Hugging Face's `output_attentions`, before dropout. For families with
    local attention they are the complete matrix, with 0 for tokens that are not attended to.
    """

    def __init__(self, model: LoadedModel, *, max_length: int | None = None):
        """Moves the parameters of the encoder to the device.

        Args:
          model: a model with a tokenizer.
          max_length: maximum number of tokens of a text; None for the maximum of the model. The
            weights of 512 tokens in 12 layers with 12 heads take 151 MB.

        Raises:
          UserError: the model has no tokenizer, or `max_length` is out of range.
        """
        self._tokenizer = require_tokenizer(model)
        require_no_adapter(model, "show attention weights")
        longest = model.config.max_length
        if max_length is not None and not 3 <= max_length <= longest:
            raise UserError(
                f"max_length is {max_length}; expected 3 to {longest}, the maximum of this model"
            )
        self.max_length = longest if max_length is None else max_length
        # The head decides which tokens have global attention in some families.
        head = model.head
        parts = ("encoder", *(task_parts(head, model.config) if head is not None else ()))
        self._params = {part: params_to_device(model, part) for part in parts}
        network = build_network(model.config, (), head)

        def compute(params: Mapping[str, Any], batch: Mapping[str, jax.Array]) -> jax.Array:
            output = network.merge(dict(params)).encode(batch, output_attentions=True)
            return jnp.stack(output.attentions, axis=1)

        self._compute = jax.jit(compute)

    def __call__(self, text: str) -> TextAttention:
        """Returns the tokens of a text and their attention weights.

        Raises:
          UserError: the text has more than `max_length` tokens.
        """
        (ids,) = encode_texts([text], self._tokenizer, self.max_length)
        if len(ids) > self.max_length:
            raise UserError(
                f"the text has {len(ids)} tokens with special tokens; attention weights are "
                f"computed for at most {self.max_length}, so shorten the text"
            )
        ((_, batch),) = padded_batches(
            [ids], pad_id=self._tokenizer.pad_id, max_length=self.max_length
        )
        weights = np.asarray(self._compute(self._params, batch))[0]
        length = len(ids)
        tokens = [self._tokenizer.id_to_token(token_id) for token_id in ids]
        # Padding is not attended to, so rows of real tokens sum to 1 without it.
        return TextAttention(tokens, weights[..., :length, :length])

    def compile_all(self) -> None:
        """Compiles the programs of all padded lengths, so that no text waits for a compilation."""
        length = min(MIN_LENGTH, self.max_length)
        while True:
            pad_id = self._tokenizer.pad_id
            ((_, batch),) = padded_batches(
                [[pad_id] * length], pad_id=pad_id, max_length=self.max_length
            )
            jax.block_until_ready(self._compute(self._params, batch))
            if length == self.max_length:
                return
            length = min(2 * length, self.max_length)
