"""Computes prefix tuning: trained keys and values in front of the text's in each layer.

The parameters are `prefix_key` and `prefix_value` [n, D] under the path of each attention, whose H
heads follow one another in D. With reparametrization they come from a `prefix_encoder` that
computes keys and values: `embedding` [n, D], `down/...` D -> M, tanh, `up/...` M -> 2 N x D. Its
outputs are the key of layer 0, the value of layer 0, the key of layer 1 and so on, as in peft.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.adapters.config import PrefixEncoder, PrefixTuning
from bert_jax.models.adapters.modules import (
    Implementation,
    Leaves,
    Modules,
    Shapes,
    replace_submodule,
    submodule,
)
from bert_jax.models.adapters.prompt import check_prompt_length, refuse_packing
from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.dropout import DropoutSeed
from bert_jax.models.layers.matmul import attention_scores, softmax_attention
from bert_jax.params.paths import LAYER_PREFIX

_PREFIX_ENCODER = "encoder/prefix_encoder"


def _prefix_shapes(method: PrefixTuning, modules: Modules, config: TransformerConfig) -> Shapes:
    check_prompt_length(method.length, config)
    attentions = _attentions(modules)
    width = config.hidden_size
    if isinstance(method.reparametrization, PrefixEncoder):
        size, outputs = method.reparametrization.size, 2 * len(attentions) * width
        return {
            _PREFIX_ENCODER: {
                "embedding": (method.length, width),
                "down/kernel": (width, size),
                "down/bias": (size,),
                "up/kernel": (size, outputs),
                "up/bias": (outputs,),
            }
        }
    shape = (method.length, width)
    return {path: {"prefix_key": shape, "prefix_value": shape} for path in attentions}


def _attentions(modules: Modules) -> list[str]:
    """Returns the paths of the attentions of all layers, from the lowest to the highest."""
    found = {
        path.rpartition("/")[0]
        for path in modules
        if (match := LAYER_PREFIX.match(path)) and path[match.end() :] == "attention/query"
    }
    return sorted(found, key=lambda path: [int(n) for n in path.split("/") if n.isdigit()])


def _init_prefix(
    method: PrefixTuning, shapes: Mapping[str, tuple[int, ...]], key: jax.Array
) -> dict[str, jax.Array]:
    del method
    values: dict[str, jax.Array] = {}
    for index, (name, shape) in enumerate(shapes.items()):
        stddev = 0.0 if name.endswith("bias") else 0.02
        values[name] = stddev * jax.random.normal(jax.random.fold_in(key, index), shape)
    return values


def _compute_prefix(adapter: Modules, base: Modules) -> Modules:
    """Returns keys and values of each attention; with reparametrization, an MLP computes them."""
    if _PREFIX_ENCODER not in adapter:
        return adapter
    leaves = adapter[_PREFIX_ENCODER]
    # With an adapter for each row of a batch, a bias is [B, M] and its product [B, n, M].
    down_bias, up_bias = (leaves[name][..., None, :] for name in ("down/bias", "up/bias"))
    hidden = jnp.tanh(leaves["embedding"] @ leaves["down/kernel"] + down_bias)
    outputs = hidden @ leaves["up/kernel"] + up_bias
    attentions = _attentions(base)
    split = jnp.split(outputs, 2 * len(attentions), axis=-1)
    return {
        path: {"prefix_key": split[2 * index], "prefix_value": split[2 * index + 1]}
        for index, path in enumerate(attentions)
    }


def _install_prefix(method: PrefixTuning, network: Any, adapter: Modules) -> None:
    for path, leaves in adapter.items():
        attention = submodule(network, path)
        if type(attention) is not SelfAttention:
            raise ConfigError(
                f"train.tuning.method is PrefixTuning, but the attention of "
                f"{type(network.encoder).__name__} is {type(attention).__name__}; prefixes are "
                "implemented for the attention of BERT, RoBERTa, ALBERT, ELECTRA and DistilBERT; "
                "expected another method, such as LoRA"
            )
        replace_submodule(network, path, PrefixAttention(attention, leaves))
    network.encoder = PrefixedEncoder(network.encoder, method.length, network.config)


class PrefixAttention(nnx.Module):
    """Attends to trained keys and values besides the text's."""

    def __init__(self, base: SelfAttention, leaves: Leaves):
        self.base = base
        self.prefix_key = nnx.Param(leaves["prefix_key"])
        self.prefix_value = nnx.Param(leaves["prefix_value"])

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seed: DropoutSeed | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns what `SelfAttention` returns; the weights are [B, H, L, n + L]."""
        if any(x is not None for x in (mask.bias, mask.radius, mask.rotary)):
            raise ConfigError(
                "train.tuning.method is PrefixTuning, which is not implemented for attention with "
                "relative or rotary positions or windows; expected another method, such as LoRA"
            )
        base, (B, L, D) = self.base, x_BLD.shape
        H, n = base.num_heads, self.prefix_key[...].shape[-2]

        def with_prefix(prefix: jax.Array, text_BLD: jax.Array) -> jax.Array:
            prefix = jnp.broadcast_to(prefix, (B, n, D)).astype(text_BLD.dtype)
            return jnp.concatenate([prefix, text_BLD], axis=1).reshape(B, n + L, H, D // H)

        q = base.query(x_BLD).reshape(B, L, H, D // H)
        k = with_prefix(self.prefix_key[...], base.key(x_BLD))
        v = with_prefix(self.prefix_value[...], base.value(x_BLD))
        scores = attention_scores(q * jnp.asarray((D // H) ** -0.5, q.dtype), k)
        attended = mask.mask_BHQK()
        in_prefix = jnp.ones((*attended.shape[:-1], n), bool)
        attended = jnp.concatenate([in_prefix, attended], axis=-1)
        context, weights = softmax_attention(scores, attended, v, base.dropout_rate, dropout_seed)
        output = base.output(context.reshape(B, L, D))
        return output, weights if return_attention_weights else None


# Positions of the text start after the prefix, as in Hugging Face. peft drops `token_type_ids` in
# question answering with a prefix, which is not followed here.
class PrefixedEncoder(nnx.Module):
    """Encodes a text whose positions begin after the prefix's, as in Hugging Face."""

    def __init__(self, base: Any, length: int, config: TransformerConfig):
        self.base, self.length, self.max_length = base, length, config.max_length

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        **options: Any,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] fields; see `Encoder` in `models/encoder.py` for the arguments."""
        refuse_packing("PrefixTuning", position_ids, packing_ids, options)
        length = input_ids.shape[1]
        # Checked here because XLA clamps an index beyond the table without an error.
        if length + self.length > self.max_length:
            raise ConfigError(
                f"the sequence length is {length} and train.tuning.method.length is {self.length}, "
                f"but the model has positions for {self.max_length} tokens; expected at most "
                f"{self.max_length - self.length} tokens of text"
            )
        positions = jnp.arange(length, dtype=jnp.int32) + self.length
        positions = jnp.broadcast_to(positions, input_ids.shape)
        return self.base(
            input_ids, token_type_ids, attention_mask, position_ids=positions, **options
        )

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, E]."""
        return self.base.token_embeddings()


IMPLEMENTATION = Implementation(
    _prefix_shapes, _init_prefix, _install_prefix, prepare=_compute_prefix
)
