"""Defines the Longformer encoder: RoBERTa's, with a window of keys and with global tokens."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.transformer import PostNormBlock
from bert_jax.models.longformer.attention import WindowAndGlobalAttention, make_global_mask
from bert_jax.models.longformer.config import LongformerConfig


class LongformerEncoder(BertEncoder):
    """Encodes token ids (Beltagy et al. 2020); pooler and heads are not part of it."""

    def __init__(self, config: LongformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        if compute.layer_loop == "scanned" and len(set(config.attention_window)) > 1:
            raise ConfigError(
                f"model.attention_window is {list(config.attention_window)}, but a scan compiles "
                "one layer for all; use the same window in all layers, or layer_loop unrolled"
            )
        self.max_global_tokens = config.max_global_tokens
        self.windows = config.attention_window
        super().__init__(config, compute, rngs)

    def make_blocks(
        self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs
    ) -> list[PostNormBlock]:
        """Builds the layers, each with its own window."""
        return [
            PostNormBlock(
                config,
                compute,
                rngs,
                WindowAndGlobalAttention(config, compute, rngs, radius=window // 2),
            )
            for window in self.windows
        ]

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        global_attention_mask: jax.Array | None = None,
        causal: bool = False,
        dropout_key: jax.Array | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the other arguments.

        Args:
          global_attention_mask: int32 [B, L], 1 = the token attends to all tokens of its sequence
            or packed example, and they attend to it; None for local attention only.

        Raises:
          ConfigError: `causal` and global attention, which would read later tokens.
        """
        if causal and global_attention_mask is not None:
            raise ConfigError("global attention cannot be causal; use no global_attention_mask")
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        return self.encode(
            input_ids,
            token_type_ids,
            position_ids,
            make_global_mask(
                attention_mask if packing_ids is None else packing_ids,
                causal,
                global_attention_mask,
                self.max_global_tokens,
            ),
            dropout_key,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    *((f"layers/*/attention/{name}_global/kernel", ("embed", "heads")) for name in
      ("query", "key", "value")),
    *((f"layers/*/attention/{name}_global/bias", ("heads",)) for name in
      ("query", "key", "value")),
]  # fmt: skip
