"""Describes the Hugging Face format of the ModernBERT decoder: config.json fields, tensor names.

The fields are ModernBERT's. Queries, keys and values have tensors of their own.
"""

import functools
from typing import Any

from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import HuggingFaceFormat, ReadField
from bert_jax.models.layers.config import Activation
from bert_jax.models.modernbert import huggingface as modernbert
from bert_jax.models.modernbert_decoder.config import ModernBertDecoderConfig
from bert_jax.params.name_table import Ignored, NameMapping, NameTable, Packed

_MASKED_LM = modernbert.MASKED_LM
_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "model.layers.*"
_KERNELS = {
    "attention/query": "attn.q_proj",
    "attention/key": "attn.k_proj",
    "attention/value": "attn.v_proj",
    "attention/output": "attn.Wo",
    "feed_forward/output": "mlp.Wo",
}
_NAMES: list[NameMapping | Packed] = [
    NameMapping("encoder/embeddings/word_embeddings/embedding", _MASKED_LM.token_embeddings),
    NameMapping("encoder/embeddings/norm/scale", "model.embeddings.norm.weight"),
    NameMapping(f"{_LAYER}/attention_norm/scale", f"{_EXTERNAL_LAYER}.attn_norm.weight"),
    *(
        NameMapping(
            f"{_LAYER}/{internal}/kernel", f"{_EXTERNAL_LAYER}.{name}.weight", transposed=True
        )
        for internal, name in _KERNELS.items()
    ),
    NameMapping(f"{_LAYER}/feed_forward_norm/scale", f"{_EXTERNAL_LAYER}.mlp_norm.weight"),
    # The activation is applied to the first half of Wi.
    Packed(
        (f"{_LAYER}/feed_forward/intermediate/kernel", f"{_LAYER}/feed_forward/gate/kernel"),
        f"{_EXTERNAL_LAYER}.mlp.Wi.weight",
        transposed=True,
    ),
    NameMapping("encoder/final_norm/scale", "model.final_norm.weight"),
    NameMapping("prediction_head/dense/kernel", "lm_head.dense.weight", transposed=True),
    NameMapping("prediction_head/norm/scale", "lm_head.norm.weight"),
    *_MASKED_LM.mappings(),
]


@functools.cache
def _table(tied: bool) -> NameTable:
    if tied:
        copy = Ignored(_MASKED_LM.decoder, f"a second copy of {_MASKED_LM.token_embeddings}")
        return NameTable("Hugging Face ModernBERT decoder", _NAMES, [copy], separator=".")
    rows = [*_NAMES, NameMapping("masked_lm/decoder", _MASKED_LM.decoder)]
    return NameTable("Hugging Face ModernBERT decoder, untied", rows, [], separator=".")


def _names(config: ModernBertDecoderConfig, head: TaskHead | None) -> NameTable:
    del head  # there is none
    return _table(config.tie_word_embeddings)


def _read_config(activation: Activation, read: ReadField) -> ModernBertDecoderConfig:
    fields = modernbert.read_fields(activation, read)
    del fields["classifier_pooling"]  # heads on a whole sequence are ModernBERT's
    return ModernBertDecoderConfig(**fields)


def _config_fields(config: ModernBertDecoderConfig) -> dict[str, Any]:
    fields = modernbert.config_fields(config)
    del fields["classifier_pooling"]
    return fields


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"modernbert-decoder": "ModernBertDecoder"},
    heads={"Model": (), "ForCausalLM": ("prediction_head", "masked_lm")},
    fixed_fields=modernbert.HUGGING_FACE.fixed_fields,
    read_config=_read_config,
    config_fields=_config_fields,
    field_names=modernbert.HUGGING_FACE.field_names,
    names=_names,
    canonical=modernbert.HUGGING_FACE.canonical,
    masked_lm=_MASKED_LM,
)
