"""Defines the Longformer encoder: RoBERTa's, with a window of keys and with global tokens."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, PostNormBlock
from bert_jax.models.layers.stack import run_layers
from bert_jax.models.longformer.attention import WindowAndGlobalAttention, make_global_mask
from bert_jax.models.longformer.config import LongformerConfig


class LongformerEncoder(nnx.Module):
    """Encodes token ids (Beltagy et al. 2020); pooler and heads are not part of it."""

    def __init__(self, config: LongformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        check_layer_loop(config.attention_window, compute)
        self.embeddings = Embeddings(config, compute, rngs)
        self.layers = nnx.List(
            [
                PostNormBlock(
                    config,
                    compute,
                    rngs,
                    WindowAndGlobalAttention(config, compute, rngs, radius=window // 2),
                )
                for window in config.attention_window
            ]
        )
        self.max_global_tokens = config.max_global_tokens
        self.compute = compute

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        global_attention_mask: jax.Array | None = None,
        causal: bool | jax.Array = False,
        dropout_key: jax.Array | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the other arguments.

        Args:
          global_attention_mask: int32 [B, L], 1 = the token attends to all tokens of its sequence
            or packed example, and they attend to it; None for local attention only.

        Raises:
          ConfigError: `causal` and global attention, which would read later tokens; or `causal` for
            some sequences only.
        """
        if not isinstance(causal, bool):
            raise ConfigError(
                "Longformer cannot read some sequences of a batch left to right "
                "(data.causal_fraction); expected 0, or another family"
            )
        if causal and global_attention_mask is not None:
            raise ConfigError("global attention cannot be causal; use no global_attention_mask")
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        mask = make_global_mask(
            attention_mask if packing_ids is None else packing_ids,
            causal,
            global_attention_mask,
            self.max_global_tokens,
        )
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(self.layers), NUM_DROPOUT_SITES
        )
        x_BLD = self.embeddings(input_ids, token_type_ids, position_ids, embedding_seed)
        return run_layers(
            self.layers,
            self.compute,
            x_BLD,
            mask,
            layer_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, D]."""
        return self.embeddings.word_embeddings.embedding[...]


def check_layer_loop(windows: Sequence[int], compute: ComputeConfig) -> None:
    """Raises a ConfigError for a scan over layers with different windows."""
    if compute.layer_loop == "scanned" and len(set(windows)) > 1:
        raise ConfigError(
            f"model.attention_window is {list(windows)}, but a scan compiles one layer for all; "
            "use the same window in all layers, or layer_loop unrolled"
        )


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    *((f"layers/*/attention/{name}_global/kernel", ("embed", "heads")) for name in
      ("query", "key", "value")),
    *((f"layers/*/attention/{name}_global/bias", ("heads",)) for name in
      ("query", "key", "value")),
]  # fmt: skip
