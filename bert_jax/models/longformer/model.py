"""Defines the Longformer encoder: RoBERTa's, with a window of keys and with global tokens."""

from collections.abc import Sequence

from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.post_norm import PostNormBlock
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder
from bert_jax.models.longformer.attention import (
    GlobalAttentionMask,
    WindowAndGlobalAttention,
    make_global_mask,
)
from bert_jax.models.longformer.config import LongformerConfig


class LongformerEncoder(TransformerEncoder):
    """Encodes token ids (Beltagy et al. 2020); pooler and heads are not part of it."""

    has_global_tokens = True

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

    def attention_inputs(self, inputs: EncoderInputs) -> GlobalAttentionMask:
        """Returns the attention mask, with the global tokens of `global_attention_mask`.

        Raises:
          ConfigError: causal and global attention, which would read later tokens; or causal
            attention for some sequences only.
        """
        if not isinstance(inputs.causal, bool):
            raise ConfigError(
                "Longformer cannot read some sequences of a batch left to right "
                "(data.causal_fraction); expected 0, or another family"
            )
        if inputs.causal and inputs.global_attention_mask is not None:
            raise ConfigError("global attention cannot be causal; use no global_attention_mask")
        return make_global_mask(
            inputs.attention_mask if inputs.packing_ids is None else inputs.packing_ids,
            inputs.causal,
            inputs.global_attention_mask,
            self.max_global_tokens,
        )


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
