"""Texts as vectors: pooled hidden states of chosen layers."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.config import BertConfig
from bert_jax.predict.batching import batches
from bert_jax.predict.model import encode, on_device, require_vocabulary
from bert_jax.programs import parts
from bert_jax.train.pretrained import LoadedModel

Pooling = Literal["cls", "mean", "max"]
"""The state of [CLS], or the mean or maximum over all tokens, [CLS] and [SEP] among them."""
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


class Embedding(NamedTuple):
    """A text's vector, float32 [D x number of layers], and whether its end was cut off."""

    vector: np.ndarray
    truncated: bool


class Embedder:
    """Embeds texts: `Embedder(load_model("exported"))(["A text.", "Another."])`."""

    def __init__(
        self, model: LoadedModel, *, pooling: Pooling = "mean", layers: Sequence[int] = (-1,)
    ):
        """Puts the encoder on the device.

        Args:
          model: one with a vocabulary.
          pooling: how the states of a text's tokens become one vector.
          layers: whose states; 0 is the embeddings, N the last layer, negative ones count from the
            end. The vectors of several layers are set one after another, as in Devlin et al. 2019,
            section 5.3.

        Raises:
          UserError: no vocabulary, a pooling or a layer that does not exist.
        """
        self._vocabulary = require_vocabulary(model)
        count = model.config.num_hidden_layers
        for layer in layers:
            if not -count - 1 <= layer <= count:
                raise UserError(
                    f"there is no layer {layer}: this model has the embeddings, 0, and layers 1 to "
                    f"{count} (or -1 to -{count} from the end)"
                )
        if not layers:
            raise UserError("no layer is chosen; expected at least one, such as -1")
        if pooling not in POOLINGS:
            raise UserError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
        self._longest = model.config.positions.max_length
        self._params = on_device(model, "encoder")
        self._embed = jax.jit(
            functools.partial(_embed, config=model.config, pooling=pooling, layers=tuple(layers))
        )

    def __call__(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text; what is beyond the position table is left out."""
        longest, sep_id = self._longest, self._vocabulary.sep_id
        whole = encode(texts, self._vocabulary, longest)
        rows = [row if len(row) <= longest else [*row[: longest - 1], sep_id] for row in whole]
        found: dict[int, Embedding] = {}
        for indices, batch in batches(rows, pad_id=self._vocabulary.pad_id, max_length=longest):
            vectors = np.asarray(self._embed(self._params, batch))
            for place, index in enumerate(indices):
                found[index] = Embedding(vectors[place], len(whole[index]) > longest)
        return [found[index] for index in range(len(texts))]


def _embed(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    *,
    config: BertConfig,
    pooling: Pooling,
    layers: tuple[int, ...],
) -> jax.Array:
    encoder = parts.network("encoder", config).bind(dict(params))
    fields = ("input_ids", "token_type_ids", "attention_mask")
    states = encoder(*(batch[name] for name in fields), output_hidden_states=True).hidden_states
    mask = batch["attention_mask"] > 0
    pooled = [_pool(states[layer], mask, pooling) for layer in layers]
    return jnp.concatenate(pooled, axis=-1)


def _pool(states_BLD: jax.Array, mask_BL: jax.Array, pooling: Pooling) -> jax.Array:
    """[B, L, D] -> [B, D]."""
    mask = mask_BL[..., None]
    match pooling:
        case "cls":
            return states_BLD[:, 0]
        case "mean":
            total = jnp.sum(jnp.where(mask, states_BLD, 0.0), axis=1)
            return total / jnp.sum(mask, axis=1).astype(total.dtype)
        case "max":
            return jnp.max(jnp.where(mask, states_BLD, -jnp.inf), axis=1)
