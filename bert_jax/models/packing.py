"""Encodes short texts in common rows: packs them on the device, and unpacks the hidden states.

The rows are planned with the batch (`data/sentence_embeddings/packed_rows.py`). A text attends to
its own tokens only and has its own positions, so without dropout its hidden states are those of a
row of its own. On several devices XLA gathers the states of all rows.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.encoder import EncoderOutput


def pack_texts(inputs: Mapping[str, jax.Array], packed_tokens_RL: jax.Array) -> dict[str, Any]:
    """Returns the encoder's fields of the packed rows, int32 [R, L].

    Args:
      inputs: the encoder's fields of the texts, int32 [B, L].
      packed_tokens_RL: int32 [R, L], for each position the text times L plus the position of the
        token in its text; -1 for padding.
    """
    is_token_RL = packed_tokens_RL >= 0
    length = inputs["input_ids"].shape[1]

    def where_token(values: jax.Array) -> jax.Array:
        return jnp.where(is_token_RL, values, 0)

    tokens_RL = where_token(packed_tokens_RL)
    fields = {
        name: where_token(jnp.take(inputs[name], tokens_RL, mode="clip"))
        for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    return {
        **fields,
        "position_ids": where_token(tokens_RL % length),
        "packing_ids": where_token(tokens_RL // length + 1),
    }


def unpack_texts(
    output: EncoderOutput, packed_tokens_RL: jax.Array, shape: tuple[int, int]
) -> EncoderOutput:
    """Returns the hidden states of the texts, [B, L, D]; those of padding have no meaning.

    Args:
      output: the hidden states of the rows, [R, L, D].
      shape: B and L.
    """
    tokens = packed_tokens_RL.reshape(-1)
    num_tokens = shape[0] * shape[1]
    positions = jnp.zeros(num_tokens, jnp.int32)
    positions = positions.at[jnp.where(tokens >= 0, tokens, num_tokens)].set(
        jnp.arange(tokens.size, dtype=jnp.int32), mode="drop"
    )

    def unpack(states_RLD: jax.Array) -> jax.Array:
        width = states_RLD.shape[-1]
        return states_RLD.reshape(-1, width)[positions].reshape(*shape, width)

    return EncoderOutput(unpack(output.last_hidden_state), tuple(map(unpack, output.hidden_states)))
