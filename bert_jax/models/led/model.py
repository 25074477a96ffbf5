"""Defines the LED network: BART with windows and a global token in the encoder's attention."""

from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bart.model import BartStack
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig, GlobalFirstToken
from bert_jax.models.led.config import LedConfig
from bert_jax.models.longformer.attention import (
    GlobalAttentionMask,
    WindowAndGlobalAttention,
    global_attention_mask,
    make_global_mask,
)
from bert_jax.models.longformer.model import check_layer_loop
from bert_jax.models.seq2seq.network import EncoderDecoder


class LedEncoderStack(BartStack):
    """Runs the layers of LED's encoder, in which the first token of a source is global."""

    # Hugging Face's classes have global tokens only where `global_attention_mask` says so. The
    # first token is what the paper's models have (section 7), and the published folders' examples.
    def mask(self, mask: AttentionMask, length: int) -> GlobalAttentionMask:
        """Returns the mask of the windows and of the first token.

        Raises:
          ConfigError: the sources are packed.
        """
        segment_ids = mask.kv_segment_ids
        if mask.q_segment_ids.shape[1] == length > 1:
            raise ConfigError(
                "data.packing is True, but LED has one global token in each row, so that packed "
                "sources would have none; expected False"
            )
        first = global_attention_mask(GlobalFirstToken(), segment_ids)
        return make_global_mask(segment_ids, False, first, max_global_tokens=1)


def build_led(config: LedConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> EncoderDecoder:
    """Builds LED with initialized parameters."""
    check_layer_loop(config.attention_window, compute)
    sizes = TransformerConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        attention_probs_dropout_prob=config.attention_dropout,
        initializer_range=config.init_std,
    )

    def attention(layer: int) -> WindowAndGlobalAttention:
        radius = config.attention_window[layer] // 2
        return WindowAndGlobalAttention(sizes, compute, rngs, radius=radius)

    return EncoderDecoder(
        config,
        compute,
        LedEncoderStack(config, compute, rngs, is_decoder=False, attention=attention),
        BartStack(config, compute, rngs, is_decoder=True),
        table_init=nnx.initializers.normal(config.init_std),
        rngs=rngs,
    )
