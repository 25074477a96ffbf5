"""Describes BART's Hugging Face format: config.json fields and tensor names.

mBART and Pegasus have the same tensors, but norms in other places, which config.json shows.
"""

from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.huggingface import (
    ACTIVATIONS,
    ReadField,
    SupportedValues,
    dense_names,
    norm_names,
)
from bert_jax.models.seq2seq.config import DenseFeedForward
from bert_jax.models.seq2seq.huggingface import Seq2SeqFormat, read_forced_token
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_SHARED, _LM_HEAD = "model.shared.weight", "lm_head.weight"
_OTHER_FAMILIES = "models with it are mBART, Pegasus or their like, which compute other layers"


def attention_names(internal: str, external: str) -> list[NameMapping]:
    """Maps the four projections of an attention."""
    return [
        row
        for kernel_name, name in (
            ("query", "q_proj"),
            ("key", "k_proj"),
            ("value", "v_proj"),
            ("output", "out_proj"),
        )
        for row in dense_names(f"{internal}/{kernel_name}", f"{external}.{name}")
    ]


def stack_names(stack: str, prefix: str) -> list[NameMapping]:
    """Maps the parameters of a stack besides its attentions; `prefix` begins the tensors' names."""
    internal, external = f"{stack}/layers/*", f"{prefix}.{stack}.layers.*"
    return [
        NameMapping(
            f"{stack}/position_embeddings/embedding", f"{prefix}.{stack}.embed_positions.weight"
        ),
        *norm_names(f"{stack}/embedding_norm", f"{prefix}.{stack}.layernorm_embedding"),
        *norm_names(f"{internal}/attention_norm", f"{external}.self_attn_layer_norm"),
        *dense_names(f"{internal}/feed_forward/intermediate", f"{external}.fc1"),
        *dense_names(f"{internal}/feed_forward/output", f"{external}.fc2"),
        *norm_names(f"{internal}/feed_forward_norm", f"{external}.final_layer_norm"),
    ]


def decoder_names(prefix: str) -> list[NameMapping]:
    """Maps the parameters of the decoder, which LED has, too."""
    internal, external = "decoder/layers/*", f"{prefix}.decoder.layers.*"
    return [
        *stack_names("decoder", prefix),
        *attention_names(f"{internal}/attention", f"{external}.self_attn"),
        *attention_names(f"{internal}/cross_attention", f"{external}.encoder_attn"),
        *norm_names(f"{internal}/cross_attention_norm", f"{external}.encoder_attn_layer_norm"),
    ]


_NAMES = NameTable(
    "Hugging Face BART",
    [
        NameMapping("shared/embedding", _SHARED),
        NameMapping("lm_head/embedding", _LM_HEAD),
        *stack_names("encoder", "model"),
        *attention_names("encoder/layers/*/attention", "model.encoder.layers.*.self_attn"),
        *decoder_names("model"),
    ],
    [
        Ignored(f"model.{stack}.{name}", "a version or buffer of fairseq, in old files")
        for stack in ("encoder", "decoder")
        for name in ("version", "embed_positions._float_tensor")
    ],
    separator=".",
)


def _canonical_name(name: str) -> str:
    """Adds the prefix that tensors of the bare model lack."""
    is_bare = name.split(".")[0] in ("shared", "encoder", "decoder")
    return f"model.{name}" if is_bare else name


def _read_equal(read: ReadField, suffix: str, default: int) -> int:
    """Reads a size that encoder and decoder must have in common."""
    encoder, decoder = (read(f"{stack}_{suffix}", default) for stack in ("encoder", "decoder"))
    if encoder != decoder:
        raise ConfigError(
            f"encoder_{suffix} is {encoder} and decoder_{suffix} is {decoder}; only equal sizes "
            "are supported"
        )
    return encoder


def read_fields(read: ReadField, *, forced_eos_token_id: int) -> dict[str, Any]:
    """Reads the fields that BART and LED have, all but those of the positions.

    Args:
      forced_eos_token_id: the token if the file has no such field; NO_TOKEN for none.
    """
    # A field that is absent has the default of Hugging Face's class, which is BART-large.
    activation = read("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"activation_function is {activation!r}; supported are {', '.join(ACTIVATIONS)}"
        )
    return {
        "vocab_size": read("vocab_size", 50265),
        "hidden_size": read("d_model", 1024),
        "intermediate_size": _read_equal(read, "ffn_dim", 4096),
        "num_encoder_layers": read("encoder_layers", 12),
        "num_decoder_layers": read("decoder_layers", 12),
        "num_attention_heads": _read_equal(read, "attention_heads", 16),
        "feed_forward": DenseFeedForward(activation=ACTIVATIONS[activation]),
        "dropout_rate": read("dropout", 0.1),
        "attention_dropout": read("attention_dropout", 0.0),
        "activation_dropout": read("activation_dropout", 0.0),
        "init_std": read("init_std", 0.02),
        "pad_token_id": read("pad_token_id", 1),
        "bos_token_id": read("bos_token_id", 0),
        "eos_token_id": read("eos_token_id", 2),
        "decoder_start_token_id": read("decoder_start_token_id", 2),
        "forced_bos_token_id": read_forced_token(read, "forced_bos_token_id"),
        "forced_eos_token_id": read_forced_token(read, "forced_eos_token_id", forced_eos_token_id),
    }


def _read_config(read: ReadField) -> BartConfig:
    return BartConfig(
        max_position_embeddings=read("max_position_embeddings", 1024),
        **read_fields(read, forced_eos_token_id=2),
    )


def config_fields(config: BartConfig) -> dict[str, Any]:
    """Returns the fields of config.json that `read_fields` reads."""
    if not isinstance(config.feed_forward, DenseFeedForward):
        raise ConfigError(
            f"model.feed_forward is gated, which Hugging Face's {config.family} does not have"
        )
    activation = config.feed_forward.activation
    sizes = {
        "layers": (config.num_encoder_layers, config.num_decoder_layers),
        "ffn_dim": (config.intermediate_size,) * 2,
        "attention_heads": (config.num_attention_heads,) * 2,
    }
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        **{
            f"{stack}_{name}": size
            for name, pair in sizes.items()
            for stack, size in zip(("encoder", "decoder"), pair, strict=True)
        },
        "activation_function": next(n for n, kind in ACTIVATIONS.items() if kind == activation),
        "dropout": config.dropout_rate,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "init_std": config.init_std,
        "tie_word_embeddings": config.tie_word_embeddings,
        "pad_token_id": config.pad_token_id,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "decoder_start_token_id": config.decoder_start_token_id,
        "forced_bos_token_id": config.forced_bos_token_id,
        "forced_eos_token_id": config.forced_eos_token_id,
        "is_encoder_decoder": True,
    }


NO_LAYER_DROP = {
    f"{stack}_layerdrop": SupportedValues(
        (0.0, 0), default=0.0, reason="LayerDrop is not supported"
    )
    for stack in ("encoder", "decoder")
}

HUGGING_FACE = Seq2SeqFormat(
    model_type="bart",
    architectures=("BartForConditionalGeneration", "BartModel"),
    read_config=_read_config,
    config_fields=lambda config: {
        **config_fields(config),
        "max_position_embeddings": config.max_position_embeddings,
        "scale_embedding": False,
    },
    names=lambda config: _NAMES,
    shared=_SHARED,
    lm_head=_LM_HEAD,
    copies=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
    canonical=_canonical_name,
    # Another value is refused: no published BART has one.
    zeros=("final_logits_bias",),
    fixed_fields={
        "is_encoder_decoder": SupportedValues((True,), default=True, reason="a decoder alone"),
        **{
            name: SupportedValues((value,), default=value, reason=_OTHER_FAMILIES)
            for name, value in (
                ("scale_embedding", False),
                ("normalize_before", False),
                ("add_final_layer_norm", False),
                ("normalize_embedding", True),
                ("static_position_embeddings", False),
            )
        },
        **NO_LAYER_DROP,
    },
    refused_model_types={
        "mbart": "its layers are pre-norm",
        "pegasus": "its layers are pre-norm, with fixed positions",
        "marian": "its positions are fixed, and its logits have a bias",
        "blenderbot": "its layers are pre-norm",
    },
)
