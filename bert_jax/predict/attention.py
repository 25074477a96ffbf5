"""Computes the attention weights of a text: how much each token attends to every other token."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead, task_parts
from bert_jax.models.model import build_network
from bert_jax.predict.batches import encode_texts, padded_batches, params_to_device
from bert_jax.pretrained.load import (
    AnyModel,
    LoadedModel,
    require_encoder,
    require_no_adapter,
    require_tokenizer,
)


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

    The weights of 512 tokens in 12 layers with 12 heads take 151 MB.

    The weights equal those of Hugging Face's `output_attentions`, before dropout. For families with
    local attention they are the complete matrix, with 0 for tokens that are not attended to.
    """

    def __init__(self, model: AnyModel):
        """Moves the parameters of the encoder to the device.

        Raises:
          UserError: the model has no tokenizer, or an adapter that cannot be merged into it.
        """
        model = require_encoder(model, "show attention weights")
        self._tokenizer = require_tokenizer(model)
        require_no_adapter(model, "show attention weights")
        self._max_length = model.config.max_length
        self._params = params_to_device(model, attention_parts(model))
        self._compute = jax.jit(functools.partial(attention_weights, model.config, model.head))

    def __call__(self, text: str) -> TextAttention:
        """Returns the tokens of a text and their attention weights.

        Raises:
          UserError: the text has more tokens than the model reads.
        """
        (ids,) = encode_texts([text], self._tokenizer, self._max_length)
        if len(ids) > self._max_length:
            raise UserError(
                f"the text has {len(ids)} tokens with special tokens; expected at most "
                f"{self._max_length}, the maximum of this model, so shorten the text"
            )
        ((_, batch),) = padded_batches(
            [ids], pad_id=self._tokenizer.pad_id, max_length=self._max_length
        )
        weights = np.asarray(self._compute(self._params, batch))[0]
        length = len(ids)
        tokens = [self._tokenizer.id_to_token(token_id) for token_id in ids]
        # Padding is not attended to, so rows of real tokens sum to 1 without it.
        return TextAttention(tokens, weights[..., :length, :length])


def attention_parts(model: LoadedModel) -> tuple[str, ...]:
    """Returns the parts of a model's parameters that `attention_weights` needs."""
    return ("encoder", *(task_parts(model.head, model.config) if model.head is not None else ()))


def attention_weights(
    config: EncoderConfig,
    head: TaskHead | None,
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
) -> jax.Array:
    """Computes the attention weights of a padded batch, float32 [B, N, H, L, L].

    In some families, the head decides which tokens have global attention.
    """
    model = build_network(config, (), head).merge(dict(params))
    return jnp.stack(model.encode(batch, output_attentions=True).attentions, axis=1)
