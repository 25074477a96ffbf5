"""Defines the Transformer over the windows of a long text (hierarchical classification)."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import WindowEncoder
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_dropout_seeds
from bert_jax.models.layers.linear import initializer, layer_norm
from bert_jax.models.layers.transformer import NUM_DROPOUT_SITES, PostNormBlock, apply_layers


# One vector for each window goes in and one vector comes out, which the family's ordinary
# classifier reads: losses, labels, metrics and sharding are those of classification. The number of
# windows is fixed, which costs computation for short texts but compiles one step. Hugging Face has
# no such class, so the run folder is the model.
class WindowEncoderModule(nnx.Module):
    """Encodes the vectors of the windows of a text into one vector.

    Position embeddings are added to the vectors of the windows, and after a LayerNorm they pass
    through post-norm layers with the sizes of the encoder's (Pappagari et al. 2019). The result is
    the mean over the windows. Its config is `WindowEncoder`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        window_encoder: WindowEncoder,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        # A few windows need neither the fused kernel nor a scan over layers.
        self.compute = ComputeConfig(dtype=compute.dtype)
        self.position_embeddings = nnx.Embed(
            window_encoder.num_windows,
            config.hidden_size,
            param_dtype=jnp.float32,
            embedding_init=initializer(config),
            rngs=rngs,
        )
        self.norm = layer_norm(config, self.compute)
        self.layers = nnx.List(
            [PostNormBlock(config, self.compute, rngs) for _ in range(window_encoder.num_layers)]
        )

    def __call__(
        self, vectors: jax.Array, window_mask_BA: jax.Array, dropout_key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps one vector for each of A windows to one vector for each text.

        Args:
          vectors: [B x A, 1, D], what the head reads of each window.
          window_mask_BA: int32 [B, A], 1 = a window, 0 = padding, which has no effect.
          dropout_key: applies the dropouts of the layers; None for none.

        Returns:
          The vectors of the texts as sequences of one token, [B, 1, D], and their attention mask,
          ones [B, 1].
        """
        vectors_BAD = vectors.reshape(*window_mask_BA.shape, -1)
        positions = self.position_embeddings.embedding[...].astype(vectors.dtype)
        seeds = None
        if dropout_key is not None:
            # The classifier uses the key itself.
            dropout_key = jax.random.fold_in(dropout_key, 1)
            seeds = make_dropout_seeds(dropout_key, (len(self.layers), NUM_DROPOUT_SITES))
        encoded_BAD, _, _ = apply_layers(
            self.layers,
            self.compute,
            self.norm(vectors_BAD + positions),
            make_attention_mask(window_mask_BA, None, causal=False),
            seeds,
            output_hidden_states=False,
            output_attentions=False,
        )
        weights_BA1 = window_mask_BA[..., None].astype(jnp.float32)
        total_BD = jnp.sum(encoded_BAD.astype(jnp.float32) * weights_BA1, axis=1)
        mean_BD = (total_BD / jnp.sum(weights_BA1, axis=1)).astype(vectors.dtype)
        return mean_BD[:, None], jnp.ones_like(window_mask_BA[:, :1])
