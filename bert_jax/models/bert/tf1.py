"""Lists the variable names of Google's original BERT checkpoints by parameter path.

Kernels are [in, out], as here, except that of the next-sentence classifier, [classes, in].
"""

from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "bert/encoder/layer_*"


def _dense(internal: str, external: str) -> list[NameMapping]:
    return [
        NameMapping(f"{internal}/kernel", f"{external}/kernel"),
        NameMapping(f"{internal}/bias", f"{external}/bias"),
    ]


def _norm(internal: str, external: str) -> list[NameMapping]:
    return [
        NameMapping(f"{internal}/scale", f"{external}/gamma"),
        NameMapping(f"{internal}/bias", f"{external}/beta"),
    ]


def _embedding(name: str) -> NameMapping:
    return NameMapping(f"encoder/embeddings/{name}/embedding", f"bert/embeddings/{name}")


TF1 = NameTable(
    "Google TF1 BERT",
    [
        _embedding("word_embeddings"),
        _embedding("position_embeddings"),
        _embedding("token_type_embeddings"),
        *_norm("encoder/embeddings/norm", "bert/embeddings/LayerNorm"),
        *_dense(f"{_LAYER}/attention/query", f"{_EXTERNAL_LAYER}/attention/self/query"),
        *_dense(f"{_LAYER}/attention/key", f"{_EXTERNAL_LAYER}/attention/self/key"),
        *_dense(f"{_LAYER}/attention/value", f"{_EXTERNAL_LAYER}/attention/self/value"),
        *_dense(f"{_LAYER}/attention/output", f"{_EXTERNAL_LAYER}/attention/output/dense"),
        *_norm(f"{_LAYER}/attention_norm", f"{_EXTERNAL_LAYER}/attention/output/LayerNorm"),
        *_dense(f"{_LAYER}/feed_forward/intermediate", f"{_EXTERNAL_LAYER}/intermediate/dense"),
        *_dense(f"{_LAYER}/feed_forward/output", f"{_EXTERNAL_LAYER}/output/dense"),
        *_norm(f"{_LAYER}/feed_forward_norm", f"{_EXTERNAL_LAYER}/output/LayerNorm"),
        *_dense("pooler/dense", "bert/pooler/dense"),
        *_dense("masked_lm/transform", "cls/predictions/transform/dense"),
        *_norm("masked_lm/norm", "cls/predictions/transform/LayerNorm"),
        NameMapping("masked_lm/bias", "cls/predictions/output_bias"),
        NameMapping("next_sentence/kernel", "cls/seq_relationship/output_weights", transposed=True),
        NameMapping("next_sentence/bias", "cls/seq_relationship/output_bias"),
    ],
    [
        Ignored("**/adam_m", "first moments of the optimizer"),
        Ignored("**/adam_v", "second moments of the optimizer"),
        Ignored("global_step", "number of updates made"),
    ],
    separator="/",
)
