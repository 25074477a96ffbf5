"""Computes the attention weights of a text for the server: those of all layers and heads."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.engine import Arrays, Buckets, Engine, JaxBackend, TokenSequence
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.work import Work, encode_inputs
from bert_jax.predict.attention import attention_parts, attention_weights
from bert_jax.predict.batching import require_tokenizer
from bert_jax.pretrained.load import LoadedModel

MAX_TOKENS = 128
"""Maximum number of tokens: the JSON of 128 tokens in 12 layers with 12 heads has 11 MB."""
_DECIMALS = 3


class AttentionService:
    """Returns the attention weights of all heads for one text.

    Attributes:
      engine: computes the weights of one text at a time.
      max_length: maximum number of tokens of a text.
    """

    def __init__(self, name: str, model: LoadedModel, config: ServerConfig):
        """Makes an engine on the parameters of the encoder."""
        self._tokenizer = require_tokenizer(model)
        self.max_length = min(MAX_TOKENS, config.max_length or MAX_TOKENS, model.config.max_length)

        def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            return {"attentions": attention_weights(model.config, model.head, params, batch)}

        self.engine = Engine(
            f"the attention weights of {name}",
            JaxBackend(compute, {part: model.params[part] for part in attention_parts(model)}),
            Buckets(self.max_length, max_tokens=self.max_length, max_rows=1),
            pad_id=self._tokenizer.pad_id,
        )

    def attend(self, text: str) -> Work[dict[str, Any]]:
        """Tokenizes a text; the result is its tokens and the weights [N, H, L, L].

        Raises:
          RequestError: the text has more than `max_length` tokens.
        """
        (ids,), _ = encode_inputs([text], self._tokenizer, 10**9)
        if len(ids) > self.max_length:
            raise RequestError(
                "validation",
                f"`inputs` has {len(ids)} tokens; attention is shown for at most "
                f"{self.max_length}, so shorten the text",
                "inputs",
            )

        def decode(outputs: Sequence[Arrays]) -> dict[str, Any]:
            weights = outputs[0]["attentions"][..., : len(ids), : len(ids)]
            # Layer by layer, so that other threads of the server run in between.
            layers = [
                msgspec.json.encode(np.round(layer.astype(np.float64), _DECIMALS).tolist())
                for layer in weights
            ]
            return {
                "tokens": [self._tokenizer.id_to_token(int(token_id)) for token_id in ids],
                "attentions": msgspec.Raw(b"[" + b",".join(layers) + b"]"),
            }

        sequence = TokenSequence(
            input_ids=ids, token_type_ids=np.zeros_like(ids), outputs=("attentions",)
        )
        return Work(
            engine=self.engine, sequences=[sequence], decode=decode, num_characters=len(text)
        )
