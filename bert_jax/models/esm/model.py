"""Defines the ESM-2 encoder of protein sequences: pre-norm layers with biases, rotary positions."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.esm.config import EsmConfig
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import initializer, layer_norm, output_stddev
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, FeedForward
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder

# 80 % of the 15 % of tokens that pretraining predicts are masks. A constant in the original code.
_PRETRAINING_MASKS = 0.15 * 0.8
_EOS_TOKEN_ID = 2  # of the contact head, a constant in Hugging Face's code


class EsmBlock(nnx.Module):
    """Computes x + sublayer(norm(x)) for attention and for feed-forward, with biases."""

    num_dropout_sites = NUM_DROPOUT_SITES

    def __init__(self, config: EsmConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.attention_norm = layer_norm(config, compute)
        self.attention = SelfAttention(config, compute, rngs, output_stddev=output_stddev(config))
        self.feed_forward_norm = layer_norm(config, compute)
        self.feed_forward = FeedForward(config, compute, rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns what `PostNormBlock` returns."""
        attn_seed, residual_seed, ffn_seed = (
            (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        )
        attn_out, attention_weights = self.attention(
            self.attention_norm(x_BLD),
            mask,
            attn_seed,
            return_attention_weights=return_attention_weights,
        )
        x_BLD = x_BLD + dropout(attn_out, self.dropout_rate, residual_seed)
        ffn_out = self.feed_forward(self.feed_forward_norm(x_BLD))
        return x_BLD + dropout(ffn_out, self.dropout_rate, ffn_seed), attention_weights


class UntrainedParameters(nnx.Module):
    """Holds parameters of published files that no objective trains, and that must not decay.

    Attributes:
      inverse_frequencies: the angles between adjacent positions, float32 [K / 2]. Files have those
        with which the model was trained, which may have been rounded to 16 bits.
      contact_kernel, contact_bias: the logistic regression of `predict_contacts`, float32
        [N x H, 1] and [1].
    """

    def __init__(self, config: EsmConfig, rngs: nnx.Rngs):
        frequencies = inverse_frequencies(config.head_width, config.rope_theta)
        self.inverse_frequencies = nnx.Param(jnp.asarray(frequencies))
        shape = (config.num_hidden_layers * config.num_attention_heads, 1)
        self.contact_kernel = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        self.contact_bias = nnx.Param(jnp.zeros((1,), jnp.float32))


class EsmEncoder(TransformerEncoder):
    """Encodes amino acids (Lin et al. 2023); the masked-LM head is not part of it."""

    def __init__(self, config: EsmConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs, has_norm=False)
        self.layers = nnx.List(
            [EsmBlock(config, compute, rngs) for _ in range(config.num_hidden_layers)]
        )
        self.final_norm = layer_norm(config, compute)
        self.untrained = UntrainedParameters(config, rngs)
        self.config, self.compute = config, compute

    def attention_inputs(self, inputs: EncoderInputs) -> AttentionMask:
        """Returns the attention mask with the rotations of the files' frequencies."""
        frequencies = jax.lax.stop_gradient(self.untrained.inverse_frequencies[...])
        table = rotary_table(inputs.length, frequencies, inputs.position_ids)
        return dataclasses.replace(inputs.mask(), rotary=table)

    def embed(self, inputs: EncoderInputs, dropout_seed: DropoutSeed | None) -> jax.Array:
        """Returns the input of the first layer, [B, L, D]: there is neither norm nor dropout."""
        del dropout_seed
        ids = inputs.input_ids
        x_BLD = self.embeddings.sum_embeddings(ids, inputs.token_type_ids, inputs.position_ids)
        is_real = inputs.attention_mask[..., None].astype(jnp.float32)
        if not self.config.token_dropout:
            return (x_BLD * is_real).astype(self.compute.dtype)
        is_mask = ids == self.config.mask_token_id
        # Masks are inputs that were dropped. As dropout does, this keeps the scale of the sum of
        # all inputs, whether a sequence has the masks of pretraining or none.
        shares = _shares_in_example(is_mask, inputs.attention_mask, inputs.packing_ids)
        scale = jnp.where(is_mask, 0.0, (1.0 - _PRETRAINING_MASKS) / (1.0 - shares))
        return (x_BLD * scale[..., None] * is_real).astype(self.compute.dtype)

    def predict_contacts(self, input_ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Returns the probability that two amino acids touch, float32 [B, L - 2, L - 2].

        Logistic regression on the symmetrized attention weights of all heads, of which the average
        product is subtracted (Rao et al. 2021). The published files have its parameters.

        Args:
          input_ids: int32 [B, L], each sequence with <cls> and <eos>.
          attention_mask: int32 [B, L], 1 = real token.
        """
        output = self(input_ids, None, attention_mask, output_attentions=True)
        weights = jnp.concatenate(output.attentions, axis=1)
        is_read = ((attention_mask > 0) & (input_ids != _EOS_TOKEN_ID)).astype(weights.dtype)
        weights *= is_read[:, None, :, None] * is_read[:, None, None, :]
        # The first token is <cls>. The last one is <eos> or padding.
        weights = weights[..., 1:-1, 1:-1]
        weights += jnp.swapaxes(weights, -1, -2)
        rows, columns = (jnp.sum(weights, axis, keepdims=True) for axis in (-1, -2))
        weights -= rows * columns / jnp.sum(rows, -2, keepdims=True)
        kernel, bias = self.untrained.contact_kernel[...], self.untrained.contact_bias[...]
        return jax.nn.sigmoid(jnp.einsum("bhql,ho->bql", weights, kernel) + bias)


def _shares_in_example(
    is_mask: jax.Array, attention_mask: jax.Array, packing_ids: jax.Array | None
) -> jax.Array:
    """Returns the share of masks in the sequence of each token, float32 [B, L] or [B, 1]."""
    counts = jnp.stack([is_mask & (attention_mask > 0), attention_mask > 0], axis=-1)
    counts = counts.astype(jnp.float32)
    if packing_ids is None:
        totals = jnp.sum(counts, axis=1, keepdims=True)
    else:
        is_same = packing_ids[:, :, None] == packing_ids[:, None, :]
        totals = jnp.einsum("blm,bmc->blc", is_same.astype(jnp.float32), counts)
    return totals[..., 0] / jnp.maximum(totals[..., 1], 1.0)


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    ("final_norm/*", (None,)),
    ("untrained/inverse_frequencies", (None,)),
    ("untrained/contact_kernel", (None, None)),
    ("untrained/contact_bias", (None,)),
]
