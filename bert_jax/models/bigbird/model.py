"""Defines the BigBird encoder: BERT's, with block-sparse attention for long sequences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bigbird.attention import block_counts, block_sparse_attention, random_blocks
from bert_jax.models.bigbird.config import BigBirdConfig, BlockSparseWhenLong
from bert_jax.models.layers.attention import AttentionMask, SelfAttention
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.matmul import attention_scores
from bert_jax.models.layers.post_norm import PostNormBlock
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder


class BigBirdEmbeddings(Embeddings):
    """Sums the embeddings, then applies dropout and norm: the reverse of BERT's order."""

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array | None,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """Maps int32 [B, L] ids to [B, L, D]."""
        x_BLD = self.sum_embeddings(input_ids, token_type_ids, position_ids)
        return self.norm(dropout(x_BLD, self.dropout_rate, dropout_seed))


class BigBirdAttention(SelfAttention):
    """Computes block-sparse attention for long sequences, and full attention for short ones."""

    def __init__(
        self, config: BigBirdConfig, compute: ComputeConfig, rngs: nnx.Rngs, *, layer: int
    ):
        """Initializes all projections; `layer` is the seed of the random blocks."""
        super().__init__(config, compute, rngs)
        self.pattern = config.attention
        self.max_position_embeddings = config.positions.max_position_embeddings
        self.layer = layer

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seed: DropoutSeed | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends within each sequence; a dropout seed means training, with random blocks.

        Returns:
          The output [B, L, D], and the attention weights before dropout, float32 [B, H, L, L], or
          None unless `return_attention_weights`. The weights cost L x L for each head.
        """
        B, L, D = x_BLD.shape
        pattern = self.pattern
        if not (isinstance(pattern, BlockSparseWhenLong) and pattern.max_full_length < L):
            return super().__call__(
                x_BLD, mask, dropout_seed, return_attention_weights=return_attention_weights
            )
        num_blocks = -(-L // pattern.block_size)
        plan = None
        if dropout_seed is not None and pattern.num_random_blocks:
            plan = _cached_random_blocks(
                num_blocks=num_blocks,
                block_size=pattern.block_size,
                num_heads=self.num_heads,
                num_random_blocks=pattern.num_random_blocks,
                max_position_embeddings=self.max_position_embeddings,
                seed=self.layer,
            )
        q, k, v = (
            x.reshape(B, L, self.num_heads, D // self.num_heads)
            for x in (self.query(x_BLD), self.key(x_BLD), self.value(x_BLD))
        )
        context = block_sparse_attention(
            q,
            k,
            v,
            mask.kv_segment_ids,
            block_size=pattern.block_size,
            num_random_blocks=pattern.num_random_blocks,
            plan=plan,
        )
        weights = None
        if return_attention_weights:
            counts = block_counts(num_blocks, pattern.num_random_blocks, plan)
            counts = np.repeat(np.repeat(counts, pattern.block_size, 1), pattern.block_size, 2)
            weights = _dense_weights(q, k, mask, jnp.asarray(counts[:, :L, :L]))
        return self.output(context.reshape(B, L, D)), weights


_cached_random_blocks = functools.cache(random_blocks)


def _dense_weights(
    q: jax.Array, k: jax.Array, mask: AttentionMask, counts_HLL: jax.Array
) -> jax.Array:
    """Returns the attention weights, float32 [B, H, L, L], with each key counted c times."""
    scores = attention_scores(q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype), k)
    scores += jnp.log(counts_HLL.astype(jnp.float32))
    scores = jnp.where(mask.mask_BHQK() & (counts_HLL > 0), scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1)


# Short sequences have full attention, but unlike Hugging Face's class, a model does not keep it
# after its first short batch. Packed and causal long sequences are refused, because the first and
# the last block of a row are global.
class BigBirdEncoder(TransformerEncoder):
    """Encodes token ids (Zaheer et al. 2020); pooler and heads are not part of it."""

    def __init__(self, config: BigBirdConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.pattern = config.attention
        if compute.layer_loop == "scanned" and isinstance(config.attention, BlockSparseWhenLong):
            raise ConfigError(
                "every layer of BigBird has random blocks of its own, but a scan compiles one "
                "layer for all; use layer_loop unrolled, or model.attention FullAttention()"
            )
        self.embeddings = BigBirdEmbeddings(config, compute, rngs)
        self.layers = nnx.List(
            [
                PostNormBlock(
                    config, compute, rngs, BigBirdAttention(config, compute, rngs, layer=layer)
                )
                for layer in range(config.num_hidden_layers)
            ]
        )
        self.compute = compute

    def attention_inputs(self, inputs: EncoderInputs) -> AttentionMask:
        """Returns the attention mask.

        Raises:
          ConfigError: a long sequence with packed examples, whose first and last blocks are not
            those of the row, or with causal attention.
        """
        pattern = self.pattern
        if isinstance(pattern, BlockSparseWhenLong) and inputs.length > pattern.max_full_length:
            is_packed = inputs.packing_ids is not None
            if is_packed or inputs.causal is not False:
                unsupported = "packed examples" if is_packed else "causal attention"
                raise ConfigError(
                    f"block-sparse attention has no {unsupported}: the first and the last block of "
                    f"a sequence attend to all others. The sequence length is {inputs.length}; use "
                    f"at most {pattern.max_full_length} tokens, or model.attention FullAttention()"
                )
        return inputs.mask()
