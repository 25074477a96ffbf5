"""Names in checkpoints of Google's original BERT release. A table, no code.

Kernels are [in, out] as ours; the next-sentence classifier alone is stored [classes, in].
"""

from bert_jax.interop.names import Dropped, NameTable, Row

_LAYER, _THEIR_LAYER = "encoder/layers/*", "bert/encoder/layer_*"


def _dense(ours: str, theirs: str) -> list[Row]:
    return [Row(f"{ours}/kernel", f"{theirs}/kernel"), Row(f"{ours}/bias", f"{theirs}/bias")]


def _norm(ours: str, theirs: str) -> list[Row]:
    return [Row(f"{ours}/scale", f"{theirs}/gamma"), Row(f"{ours}/bias", f"{theirs}/beta")]


def _embedding(name: str) -> Row:
    return Row(f"encoder/embeddings/{name}/embedding", f"bert/embeddings/{name}")


TF1 = NameTable(
    "Google TF1 BERT",
    [
        _embedding("word_embeddings"),
        _embedding("position_embeddings"),
        _embedding("token_type_embeddings"),
        *_norm("encoder/embeddings/norm", "bert/embeddings/LayerNorm"),
        *_dense(f"{_LAYER}/attention/query", f"{_THEIR_LAYER}/attention/self/query"),
        *_dense(f"{_LAYER}/attention/key", f"{_THEIR_LAYER}/attention/self/key"),
        *_dense(f"{_LAYER}/attention/value", f"{_THEIR_LAYER}/attention/self/value"),
        *_dense(f"{_LAYER}/attention/output", f"{_THEIR_LAYER}/attention/output/dense"),
        *_norm(f"{_LAYER}/attention_norm", f"{_THEIR_LAYER}/attention/output/LayerNorm"),
        *_dense(f"{_LAYER}/feed_forward/intermediate", f"{_THEIR_LAYER}/intermediate/dense"),
        *_dense(f"{_LAYER}/feed_forward/output", f"{_THEIR_LAYER}/output/dense"),
        *_norm(f"{_LAYER}/feed_forward_norm", f"{_THEIR_LAYER}/output/LayerNorm"),
        *_dense("pooler/dense", "bert/pooler/dense"),
        *_dense("masked_lm/transform", "cls/predictions/transform/dense"),
        *_norm("masked_lm/norm", "cls/predictions/transform/LayerNorm"),
        Row("masked_lm/bias", "cls/predictions/output_bias"),
        Row("next_sentence/kernel", "cls/seq_relationship/output_weights", transposed=True),
        Row("next_sentence/bias", "cls/seq_relationship/output_bias"),
    ],
    [
        Dropped("**/adam_m", "first moments of the optimizer"),
        Dropped("**/adam_v", "second moments of the optimizer"),
        Dropped("global_step", "number of updates made"),
    ],
    separator="/",
)
