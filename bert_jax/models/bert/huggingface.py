"""Hugging Face's names of BERT's parameters, and what older files call them. A table, no code.

Their dense kernels are [out, in], ours [in, out]; everything else has the same shape.
"""

from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "bert.encoder.layer.*"


def _dense(internal: str, external: str) -> list[NameMapping]:
    return [
        NameMapping(f"{internal}/kernel", f"{external}.weight", transposed=True),
        NameMapping(f"{internal}/bias", f"{external}.bias"),
    ]


def _norm(internal: str, external: str) -> list[NameMapping]:
    return [
        NameMapping(f"{internal}/scale", f"{external}.weight"),
        NameMapping(f"{internal}/bias", f"{external}.bias"),
    ]


def _embedding(name: str) -> NameMapping:
    return NameMapping(f"encoder/embeddings/{name}/embedding", f"bert.embeddings.{name}.weight")


_ROWS = [
    _embedding("word_embeddings"),
    _embedding("position_embeddings"),
    _embedding("token_type_embeddings"),
    *_norm("encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
    *_dense(f"{_LAYER}/attention/query", f"{_EXTERNAL_LAYER}.attention.self.query"),
    *_dense(f"{_LAYER}/attention/key", f"{_EXTERNAL_LAYER}.attention.self.key"),
    *_dense(f"{_LAYER}/attention/value", f"{_EXTERNAL_LAYER}.attention.self.value"),
    *_dense(f"{_LAYER}/attention/output", f"{_EXTERNAL_LAYER}.attention.output.dense"),
    *_norm(f"{_LAYER}/attention_norm", f"{_EXTERNAL_LAYER}.attention.output.LayerNorm"),
    *_dense(f"{_LAYER}/feed_forward/intermediate", f"{_EXTERNAL_LAYER}.intermediate.dense"),
    *_dense(f"{_LAYER}/feed_forward/output", f"{_EXTERNAL_LAYER}.output.dense"),
    *_norm(f"{_LAYER}/feed_forward_norm", f"{_EXTERNAL_LAYER}.output.LayerNorm"),
    *_dense("pooler/dense", "bert.pooler.dense"),
    *_dense("masked_lm/transform", "cls.predictions.transform.dense"),
    *_norm("masked_lm/norm", "cls.predictions.transform.LayerNorm"),
    NameMapping("masked_lm/bias", "cls.predictions.bias"),
    *_dense("next_sentence", "cls.seq_relationship"),
    *_dense("classifier", "classifier"),
    *_dense("span", "qa_outputs"),
]

DECODER = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"
DECODER_TABLE = "bert.embeddings.word_embeddings.weight"
LM_BIAS = "cls.predictions.bias"

_IGNORED = [
    Ignored("bert.embeddings.position_ids", "0, 1, 2, ... as a buffer, in old files"),
    Ignored("bert.embeddings.token_type_ids", "zeros as a buffer, in old files"),
    Ignored(DECODER_BIAS, f"a second copy of {LM_BIAS}"),
]

TIED = NameTable(
    "Hugging Face BERT",
    _ROWS,
    [*_IGNORED, Ignored(DECODER, f"a second copy of {DECODER_TABLE}")],
    separator=".",
)
"""With the word embeddings as the table of the masked-LM head (`tie_word_embeddings`)."""

UNTIED = NameTable(
    "Hugging Face BERT, untied",
    [*_ROWS, NameMapping("masked_lm/decoder", DECODER)],
    _IGNORED,
    separator=".",
)
"""With a table of the head's own."""

PREFIXED = {"embeddings.": "bert.", "encoder.": "bert.", "pooler.": "bert."}
"""Files of the bare encoder (`BertModel`) leave out the prefix."""

OLD_SUFFIXES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names in files converted from TensorFlow by the first releases."""


def canonical(name: str) -> str:
    """A name as today's classes with heads have it."""
    for start, prefix in PREFIXED.items():
        if name.startswith(start):
            name = prefix + name
    for old, new in OLD_SUFFIXES.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name
