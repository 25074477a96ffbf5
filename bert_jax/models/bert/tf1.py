"""Lists the variable names of Google's original BERT checkpoints by parameter path.

Kernels are [in, out], as here, except in the next-sentence classifier, [classes, in].
"""

from bert_jax.params.name_table import Ignored, NameMapping, NameTable


def dense_names(internal: str, external: str) -> list[NameMapping]:
    """Maps the kernel and bias of a linear layer."""
    return [
        NameMapping(f"{internal}/kernel", f"{external}/kernel"),
        NameMapping(f"{internal}/bias", f"{external}/bias"),
    ]


def norm_names(internal: str, external: str) -> list[NameMapping]:
    """Maps the scale and bias of a LayerNorm."""
    return [
        NameMapping(f"{internal}/scale", f"{external}/gamma"),
        NameMapping(f"{internal}/bias", f"{external}/beta"),
    ]


def embedding_names(external: str) -> list[NameMapping]:
    """Maps the three embedding tables and their LayerNorm, whose names start with `external`."""
    internal = "encoder/embeddings"
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return [
        *(NameMapping(f"{internal}/{name}/embedding", f"{external}/{name}") for name in tables),
        *norm_names(f"{internal}/norm", f"{external}/LayerNorm"),
    ]


def layer_names(external: str) -> list[NameMapping]:
    """Maps the layers, whose names start with `external`, such as "bert/encoder/layer_*"."""
    layer = "encoder/layers/*"
    return [
        *dense_names(f"{layer}/attention/query", f"{external}/attention/self/query"),
        *dense_names(f"{layer}/attention/key", f"{external}/attention/self/key"),
        *dense_names(f"{layer}/attention/value", f"{external}/attention/self/value"),
        *dense_names(f"{layer}/attention/output", f"{external}/attention/output/dense"),
        *norm_names(f"{layer}/attention_norm", f"{external}/attention/output/LayerNorm"),
        *dense_names(f"{layer}/feed_forward/intermediate", f"{external}/intermediate/dense"),
        *dense_names(f"{layer}/feed_forward/output", f"{external}/output/dense"),
        *norm_names(f"{layer}/feed_forward_norm", f"{external}/output/LayerNorm"),
    ]


TF1 = NameTable(
    "Google TF1 BERT",
    [
        *embedding_names("bert/embeddings"),
        *layer_names("bert/encoder/layer_*"),
        *dense_names("pooler/dense", "bert/pooler/dense"),
        *dense_names("masked_lm/transform", "cls/predictions/transform/dense"),
        *norm_names("masked_lm/norm", "cls/predictions/transform/LayerNorm"),
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
