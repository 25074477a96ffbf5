"""Defines the DeBERTa encoder: BERT's layers with disentangled attention.

He et al. 2021, section 3.1, and 2023, section 3. The score of query i and key j is a sum of three
products: content with content, content of the query with the relative position of the key, and
content of the key with the relative position of the query. Relative positions are i - j, sorted
into buckets that grow with the distance. All layers read one table of relative embeddings,
projected by their own query and key layers.

The input has no positions and no token types. Hugging Face also sets the embeddings of padding to
zero; this is left out, because no real token attends to padding.
"""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import embedding, layer_norm, linear
from bert_jax.models.layers.matmul import attention_scores, position_scores, softmax_attention
from bert_jax.models.layers.post_norm import PostNormBlock
from bert_jax.models.layers.relative_bias import skew
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("q_segment_ids", "kv_segment_ids", "bias", "rotary", "causal_rows"),
        "relative_embeddings",
    ),
    meta_fields=("causal", "radius"),
)
@dataclass(frozen=True)
class RelativeAttentionMask(AttentionMask):
    """Holds an attention mask and the relative embeddings, which all layers read.

    Attributes:
      relative_embeddings: [R, D], the rows of the table that a sequence of length L uses.
    """

    relative_embeddings: jax.Array = field(kw_only=True)


# Differs from Hugging Face's code only in what no result depends on: embeddings of padding are not
# set to zero, and only the rows of the relative table that the length uses are normalized and
# projected.
class DisentangledAttention(nnx.Module):
    """Computes disentangled attention with H heads of width K = D / H."""

    def __init__(self, config: DebertaV2Config, compute: ComputeConfig, rngs: nnx.Rngs):
        width = config.hidden_size
        self.query = linear(width, width, config, compute, rngs)
        self.key = linear(width, width, config, compute, rngs)
        self.value = linear(width, width, config, compute, rngs)
        self.output = linear(width, width, config, compute, rngs)
        self.config = config

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: RelativeAttentionMask,
        dropout_seed: DropoutSeed | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends within each sequence; `dropout_seed` None applies no dropout.

        Returns:
          The output [B, L, D], and the attention weights before dropout, float32 [B, H, L, L], or
          None unless `return_attention_weights`.
        """
        B, L, D = x_BLD.shape
        H = self.config.num_attention_heads
        q, k, v = (p(x_BLD).reshape(B, L, H, D // H) for p in (self.query, self.key, self.value))
        relative_RD = dropout(
            mask.relative_embeddings, self.config.hidden_dropout_prob, _second_seed(dropout_seed)
        )
        # Expanding the rows to all 2L - 1 differences costs larger products than gathering scores
        # of the R rows, but a gather of single elements is slow on TPUs.
        rows = relative_rows(L, self.config)
        rows -= rows[0]
        relative_k, relative_q = (
            jnp.take(p(relative_RD).reshape(-1, H, D // H), rows, axis=0)
            for p in (self.key, self.query)
        )
        # The three terms have variance 3K instead of K.
        scale = jnp.asarray((3 * D // H) ** -0.5, q.dtype)
        q = q * scale
        scores = attention_scores(q, k)
        # `rows` is in ascending order of i - j. `skew` needs the order of j - i for rows of
        # queries, and the ascending one for rows of keys.
        scores += skew(position_scores(q, relative_k[::-1]))
        scores += jnp.swapaxes(skew(position_scores(k, relative_q * scale)), -1, -2)
        rate = self.config.attention_probs_dropout_prob
        context, attention_weights = softmax_attention(
            scores, mask.mask_BHQK(), v, rate, dropout_seed
        )
        return self.output(
            context.reshape(B, L, D)
        ), attention_weights if return_attention_weights else None


def _second_seed(seed: DropoutSeed | None) -> DropoutSeed | None:
    """Derives the seed for the relative embeddings from the one for the attention weights."""
    return None if seed is None else seed ^ jnp.array([0xB5297A4D, 0x68E31DA4], jnp.uint32)


def relative_rows(length: int, config: DebertaV2Config) -> np.ndarray:
    """Returns the row of the relative table for each difference query - key position.

    Returns:
      int32 [2L - 1], for the differences -(L - 1) to L - 1; the rows ascend.
    """
    buckets = config.position_buckets
    found = log_buckets(np.arange(1 - length, length), buckets, config.max_relative_positions)
    return np.clip(found + buckets, 0, 2 * buckets - 1).astype(np.int32)


def log_buckets(differences: np.ndarray, num_buckets: int, max_position: int) -> np.ndarray:
    """Sorts differences of positions into buckets, as `make_log_bucket_position` does.

    A difference r with |r| <= `num_buckets` / 2 is its own bucket. Larger ones share buckets, whose
    sizes grow so that the last one, sign(r) * (`num_buckets` - 1), ends at `max_position` - 1.
    """
    middle = num_buckets // 2
    # In float32, as in Hugging Face's code: the logarithms are rounded up to an integer.
    ratio = np.maximum(np.abs(differences), middle).astype(np.float32) / np.float32(middle)
    largest = np.log(np.float32((max_position - 1) / middle))
    logarithm = np.log(ratio) / largest * np.float32(middle - 1)
    large = np.sign(differences) * (np.ceil(logarithm) + middle)
    return np.where(np.abs(differences) <= middle, differences, large).astype(np.int32)


class DebertaV2Encoder(TransformerEncoder):
    """Encodes token ids; heads are not part of it.

    Attributes:
      relative_embeddings: a vector for each bucket of relative positions, [2 buckets, D].
      relative_norm: the LayerNorm that is applied to them once for all layers.
    """

    def __init__(self, config: DebertaV2Config, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs)
        self.layers = nnx.List(
            [
                PostNormBlock(config, compute, rngs, DisentangledAttention(config, compute, rngs))
                for _ in range(config.num_hidden_layers)
            ]
        )
        self.relative_embeddings = embedding(2 * config.position_buckets, config, rngs)
        self.relative_norm = layer_norm(config, compute)
        self.config, self.compute = config, compute

    def attention_inputs(self, inputs: EncoderInputs) -> RelativeAttentionMask:
        """Returns the attention mask with the relative embeddings of the length."""
        mask = inputs.mask()
        # Within a packed example the distance of two tokens is the difference of their indices in
        # the row, so packed rows need nothing else.
        rows = relative_rows(inputs.length, self.config)
        table = self.relative_embeddings.embedding[...][rows[0] : rows[-1] + 1]
        return RelativeAttentionMask(
            mask.q_segment_ids,
            mask.kv_segment_ids,
            mask.causal,
            causal_rows=mask.causal_rows,
            relative_embeddings=self.relative_norm(table),
        )


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    ("relative_embeddings/embedding", (None, "embed")),
    ("relative_norm/*", (None,)),
]
