"""Describes LED's Hugging Face format: config.json fields and tensor names.

The fields and the decoder are BART's; the attention of the encoder is Longformer's.
"""

from typing import Any

from bert_jax.models.bart.huggingface import (
    NO_LAYER_DROP,
    config_fields,
    decoder_names,
    read_fields,
    stack_names,
)
from bert_jax.models.huggingface import ReadField, SupportedValues, dense_names
from bert_jax.models.led.config import LedConfig
from bert_jax.models.longformer.huggingface import read_windows
from bert_jax.models.seq2seq.huggingface import NO_TOKEN, Seq2SeqFormat
from bert_jax.params.name_table import NameMapping, NameTable

_SHARED, _LM_HEAD = "led.shared.weight", "lm_head.weight"
_ATTENTION, _EXTERNAL_ATTENTION = "encoder/layers/*/attention", "led.encoder.layers.*.self_attn"
_NAMES = NameTable(
    "Hugging Face LED",
    [
        NameMapping("shared/embedding", _SHARED),
        NameMapping("lm_head/embedding", _LM_HEAD),
        *stack_names("encoder", "led"),
        *(
            row
            for kind in ("query", "key", "value")
            for name in (kind, f"{kind}_global")
            for row in dense_names(
                f"{_ATTENTION}/{name}", f"{_EXTERNAL_ATTENTION}.longformer_self_attn.{name}"
            )
        ),
        *dense_names(f"{_ATTENTION}/output", f"{_EXTERNAL_ATTENTION}.output"),
        *decoder_names("led"),
    ],
    [],
    separator=".",
)


def _canonical_name(name: str) -> str:
    """Adds the prefix that tensors of the bare model lack."""
    return f"led.{name}" if name.split(".")[0] in ("shared", "encoder", "decoder") else name


def _read_config(read: ReadField) -> LedConfig:
    fields = read_fields(read, forced_eos_token_id=NO_TOKEN)
    return LedConfig(
        **fields,
        max_position_embeddings=read("max_encoder_position_embeddings", 16_384),
        max_decoder_position_embeddings=read("max_decoder_position_embeddings", 1024),
        attention_window=read_windows(read, fields["num_encoder_layers"]),
    )


def _config_fields(config: LedConfig) -> dict[str, Any]:
    return {
        **config_fields(config),
        "max_encoder_position_embeddings": config.max_position_embeddings,
        "max_decoder_position_embeddings": config.max_decoder_position_embeddings,
        "attention_window": list(config.attention_window),
    }


HUGGING_FACE = Seq2SeqFormat(
    model_type="led",
    architectures=("LEDForConditionalGeneration", "LEDModel"),
    read_config=_read_config,
    config_fields=_config_fields,
    names=lambda config: _NAMES,
    shared=_SHARED,
    lm_head=_LM_HEAD,
    copies=("led.encoder.embed_tokens.weight", "led.decoder.embed_tokens.weight"),
    canonical=_canonical_name,
    # Another value is refused: no published LED has one.
    zeros=("final_logits_bias",),
    fixed_fields={
        "is_encoder_decoder": SupportedValues((True,), default=True, reason="a decoder alone"),
        **NO_LAYER_DROP,
    },
)
