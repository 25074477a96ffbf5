"""Computes embeddings of texts: pooled hidden states of chosen layers."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, overload

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.model import build_network
from bert_jax.predict.batching import (
    encode_texts,
    padded_batches,
    params_to_device,
    require_tokenizer,
)
from bert_jax.pretrained.load import LoadedModel, require_no_adapter

Pooling = Literal["cls", "mean", "max"]
"""The hidden state of [CLS], or the mean or maximum over all tokens, including [CLS] and [SEP]."""
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


class Embedding(NamedTuple):
    """Holds a text's vector, float32 [D x number of layers], and whether the text was truncated."""

    vector: np.ndarray
    truncated: bool


class Embedder:
    """Embeds texts: `Embedder(load_model("exported"))("A text.").vector`."""

    def __init__(
        self, model: LoadedModel, *, pooling: Pooling = "mean", layers: Sequence[int] = (-1,)
    ):
        """Moves the parameters of the encoder to the device.

        Args:
          model: a model with a tokenizer.
          pooling: how the hidden states of a text's tokens are reduced to one vector.
          layers: the layers whose hidden states are pooled; 0 is the embeddings, N the last layer,
            and negative numbers count from the end. The vectors of several layers are
            concatenated, as in Devlin et al. 2019, section 5.3.

        Raises:
          UserError: the model has no tokenizer, or the pooling or a layer does not exist.
        """
        self._tokenizer = require_tokenizer(model)
        require_no_adapter(model, "embed")
        num_layers = model.config.num_applied_layers
        for layer in layers:
            if not -num_layers - 1 <= layer <= num_layers:
                raise UserError(
                    f"there is no layer {layer}: this model has the embeddings, 0, and layers 1 to "
                    f"{num_layers} (or -1 to -{num_layers} from the end)"
                )
        if not layers:
            raise UserError("no layer is chosen; expected at least one, such as -1")
        if pooling not in POOLINGS:
            raise UserError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
        self._max_length = model.config.max_length
        self._params = params_to_device(model, "encoder")
        self._embed_batch = jax.jit(
            functools.partial(_embed, config=model.config, pooling=pooling, layers=tuple(layers))
        )

    @overload
    def __call__(self, texts: str) -> Embedding: ...

    @overload
    def __call__(self, texts: list[str] | tuple[str, ...]) -> list[Embedding]: ...

    def __call__(self, texts: str | Sequence[str]) -> Embedding | list[Embedding]:
        """Returns the embedding of one text, or a list with the embedding of each text of a list.

        Texts longer than `max_length` are truncated. The embedding of an empty text is that of
        [CLS] and [SEP] alone, as in Sentence Transformers.
        """
        if isinstance(texts, str):
            return self._embed_texts([texts])[0]
        return self._embed_texts(texts)

    def _embed_texts(self, texts: Sequence[str]) -> list[Embedding]:
        max_length, sep_id = self._max_length, self._tokenizer.sep_id
        encoded_texts = encode_texts(texts, self._tokenizer, max_length)
        sequences = [
            sequence if len(sequence) <= max_length else [*sequence[: max_length - 1], sep_id]
            for sequence in encoded_texts
        ]
        embeddings: dict[int, Embedding] = {}
        for indices, batch in padded_batches(
            sequences, pad_id=self._tokenizer.pad_id, max_length=max_length
        ):
            vectors = np.asarray(self._embed_batch(self._params, batch))
            for batch_index, index in enumerate(indices):
                embeddings[index] = Embedding(
                    vectors[batch_index], len(encoded_texts[index]) > max_length
                )
        return [embeddings[index] for index in range(len(texts))]


def _embed(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    *,
    config: EncoderConfig,
    pooling: Pooling,
    layers: tuple[int, ...],
) -> jax.Array:
    model = build_network(config).merge({"encoder": params})
    hidden_states = model.encode(batch, output_hidden_states=True).hidden_states
    mask = batch["attention_mask"] > 0
    pooled = [_pool(hidden_states[layer], mask, pooling) for layer in layers]
    return jnp.concatenate(pooled, axis=-1)


def _pool(states_BLD: jax.Array, mask_BL: jax.Array, pooling: Pooling) -> jax.Array:
    """Pools the hidden states of real tokens, [B, L, D] -> [B, D]."""
    mask = mask_BL[..., None]
    match pooling:
        case "cls":
            return states_BLD[:, 0]
        case "mean":
            total = jnp.sum(jnp.where(mask, states_BLD, 0.0), axis=1)
            return total / jnp.sum(mask, axis=1).astype(total.dtype)
        case "max":
            return jnp.max(jnp.where(mask, states_BLD, -jnp.inf), axis=1)
