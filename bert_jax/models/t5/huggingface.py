"""Describes T5's Hugging Face format: config.json fields and tensor names."""

from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.models.huggingface import ACTIVATIONS, ReadField, SupportedValues
from bert_jax.models.layers.config import Activation
from bert_jax.models.seq2seq.config import DenseFeedForward, FeedForward, GatedFeedForward
from bert_jax.models.seq2seq.huggingface import (
    Seq2SeqFormat,
    kernel,
    read_forced_token,
    scale,
)
from bert_jax.models.t5.config import T5Config
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_GATED = "gated-"


def _attention(internal: str, external: str) -> list[NameMapping]:
    names = {"query": "q", "key": "k", "value": "v", "output": "o"}
    return [
        kernel(f"{internal}/{kernel_name}", f"{external}.{name}")
        for kernel_name, name in names.items()
    ]


def _stack(stack: str, feed_forward: int) -> list[NameMapping]:
    """Maps a stack whose feed-forward layer has this number in the list of sublayers."""
    internal, external = f"{stack}/layers/*", f"{stack}.block.*.layer"
    dense = f"{external}.{feed_forward}.DenseReluDense"
    return [
        *_attention(f"{internal}/attention", f"{external}.0.SelfAttention"),
        scale(f"{internal}/attention_norm", f"{external}.0.layer_norm"),
        kernel(f"{internal}/feed_forward/output", f"{dense}.wo"),
        scale(f"{internal}/feed_forward_norm", f"{external}.{feed_forward}.layer_norm"),
        # All layers of a stack use the bias that the file has in the first one.
        NameMapping(
            f"{stack}/relative_attention_bias/bias",
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        scale(f"{stack}/final_norm", f"{stack}.final_layer_norm"),
    ]


def _feed_forward_inputs(stack: str, feed_forward: int, *, gated: bool) -> list[NameMapping]:
    internal = f"{stack}/layers/*/feed_forward"
    dense = f"{stack}.block.*.layer.{feed_forward}.DenseReluDense"
    if not gated:
        return [kernel(f"{internal}/intermediate", f"{dense}.wi")]
    return [
        kernel(f"{internal}/intermediate", f"{dense}.wi_0"),
        kernel(f"{internal}/gate", f"{dense}.wi_1"),
    ]


_STACKS = (("encoder", 1), ("decoder", 2))
_SHARED, _LM_HEAD = "shared.weight", "lm_head.weight"


def _names(*, gated: bool) -> NameTable:
    return NameTable(
        "Hugging Face T5",
        [
            NameMapping("shared/embedding", _SHARED),
            NameMapping("lm_head/embedding", _LM_HEAD),
            *(row for stack, number in _STACKS for row in _stack(stack, number)),
            *_attention(
                "decoder/layers/*/cross_attention", "decoder.block.*.layer.1.EncDecAttention"
            ),
            scale("decoder/layers/*/cross_attention_norm", "decoder.block.*.layer.1.layer_norm"),
            *(
                row
                for stack, number in _STACKS
                for row in _feed_forward_inputs(stack, number, gated=gated)
            ),
        ],
        [
            Ignored(
                "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
                "not used: cross-attention has no relative bias; in old files",
            )
        ],
        separator=".",
    )


_DENSE_NAMES, _GATED_NAMES = _names(gated=False), _names(gated=True)


def _table(config: T5Config) -> NameTable:
    is_gated = isinstance(config.feed_forward, GatedFeedForward)
    return _GATED_NAMES if is_gated else _DENSE_NAMES


def _read_feed_forward(value: str) -> FeedForward:
    """Reads `feed_forward_proj`, such as "relu" or "gated-gelu"."""
    name = value.removeprefix(_GATED)
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"feed_forward_proj is {value!r}; supported are {', '.join(ACTIVATIONS)}, each also "
            f"after {_GATED!r}"
        )
    if not value.startswith(_GATED):
        return DenseFeedForward(activation=ACTIVATIONS[name])
    # "gated-gelu" is the tanh form in T5, which Hugging Face otherwise calls "gelu_new".
    activation = "gelu_tanh" if name == "gelu" else ACTIVATIONS[name]
    return GatedFeedForward(activation=activation)


def _feed_forward_name(feed_forward: FeedForward) -> str:
    activation: Activation = feed_forward.activation
    name = next(name for name, kind in ACTIVATIONS.items() if kind == activation)
    if isinstance(feed_forward, DenseFeedForward):
        return name
    if activation == "gelu":
        raise ConfigError(
            "model.feed_forward is a gated layer with the exact GELU, which Hugging Face's T5 does "
            "not have; its 'gated-gelu' is the tanh form ('gelu_tanh')"
        )
    return f"{_GATED}gelu" if activation == "gelu_tanh" else f"{_GATED}{name}"


# Whether the head is tied is read from the weights: transformers 5 reads `tie_word_embeddings:
# false` of T5 1.1 as "do not scale the logits" and then ties every new model. Only a file in which
# `lm_head` differs from `shared` is untied.
def _read_config(read: ReadField) -> T5Config:
    layers = read("num_layers", 6)
    # Both fields exist in files of transformers 5; before, an untied head meant unscaled outputs.
    scale_outputs = read("scale_decoder_outputs", read("tie_word_embeddings", True))
    return T5Config(
        vocab_size=read("vocab_size", 32128),
        hidden_size=read("d_model", 512),
        d_kv=read("d_kv", 64),
        intermediate_size=read("d_ff", 2048),
        num_encoder_layers=layers,
        num_decoder_layers=read("num_decoder_layers", layers),
        num_attention_heads=read("num_heads", 8),
        feed_forward=_read_feed_forward(read("feed_forward_proj", "relu")),
        relative_attention_num_buckets=read("relative_attention_num_buckets", 32),
        relative_attention_max_distance=read("relative_attention_max_distance", 128),
        dropout_rate=read("dropout_rate", 0.1),
        layer_norm_epsilon=read("layer_norm_epsilon", 1e-6),
        initializer_factor=read("initializer_factor", 1.0),
        scale_decoder_outputs=scale_outputs,
        pad_token_id=read("pad_token_id", 0),
        eos_token_id=read("eos_token_id", 1),
        decoder_start_token_id=read("decoder_start_token_id", 0),
        forced_bos_token_id=read_forced_token(read, "forced_bos_token_id"),
        forced_eos_token_id=read_forced_token(read, "forced_eos_token_id"),
    )


def _config_fields(config: T5Config) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        "d_kv": config.d_kv,
        "d_ff": config.intermediate_size,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "num_heads": config.num_attention_heads,
        "feed_forward_proj": _feed_forward_name(config.feed_forward),
        "relative_attention_num_buckets": config.relative_attention_num_buckets,
        "relative_attention_max_distance": config.relative_attention_max_distance,
        "dropout_rate": config.dropout_rate,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "initializer_factor": config.initializer_factor,
        # transformers 5 reads the first; earlier versions read the second, and then tie or untie.
        # With transformers 5 the tensors in the file decide whether the head is tied.
        "scale_decoder_outputs": config.scale_decoder_outputs,
        "tie_word_embeddings": config.scale_decoder_outputs,
        "pad_token_id": config.pad_token_id,
        "eos_token_id": config.eos_token_id,
        "decoder_start_token_id": config.decoder_start_token_id,
        "forced_bos_token_id": config.forced_bos_token_id,
        "forced_eos_token_id": config.forced_eos_token_id,
        "is_encoder_decoder": True,
    }


HUGGING_FACE = Seq2SeqFormat(
    model_type="t5",
    architectures=("T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"),
    read_config=_read_config,
    config_fields=_config_fields,
    names=_table,
    shared=_SHARED,
    lm_head=_LM_HEAD,
    copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    fixed_fields={
        "is_decoder": False,
        "is_encoder_decoder": SupportedValues((True,), default=True, reason="an encoder alone"),
    },
    refused_model_types={
        "mt5": "mT5 is T5 1.1 with classes of its own",
        "umt5": "each of its layers has a relative bias of its own",
        "longt5": "its encoder has local and global attention",
        "switch_transformers": "its feed-forward layers are mixtures of experts",
    },
)
