"""Lists the variable names of Google's ALBERT checkpoints by parameter path.

Kernels are [in, out], as here, except in the sentence-order classifier, [classes, in].
"""

from bert_jax.models.bert.tf1 import dense_names, embedding_names, norm_names
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_LAYER = "encoder/groups/*/layers/*"
_EXTERNAL = "bert/encoder/transformer/group_*/inner_group_*"

TF1 = NameTable(
    "Google TF1 ALBERT",
    [
        *embedding_names("bert/embeddings"),
        *dense_names("encoder/embedding_projection", "bert/encoder/embedding_hidden_mapping_in"),
        *dense_names(f"{_LAYER}/attention/query", f"{_EXTERNAL}/attention_1/self/query"),
        *dense_names(f"{_LAYER}/attention/key", f"{_EXTERNAL}/attention_1/self/key"),
        *dense_names(f"{_LAYER}/attention/value", f"{_EXTERNAL}/attention_1/self/value"),
        *dense_names(f"{_LAYER}/attention/output", f"{_EXTERNAL}/attention_1/output/dense"),
        *norm_names(f"{_LAYER}/attention_norm", f"{_EXTERNAL}/LayerNorm"),
        *dense_names(
            f"{_LAYER}/feed_forward/intermediate", f"{_EXTERNAL}/ffn_1/intermediate/dense"
        ),
        *dense_names(
            f"{_LAYER}/feed_forward/output", f"{_EXTERNAL}/ffn_1/intermediate/output/dense"
        ),
        *norm_names(f"{_LAYER}/feed_forward_norm", f"{_EXTERNAL}/LayerNorm_1"),
        *dense_names("pooler/dense", "bert/pooler/dense"),
        *dense_names("masked_lm/transform", "cls/predictions/transform/dense"),
        *norm_names("masked_lm/norm", "cls/predictions/transform/LayerNorm"),
        NameMapping("masked_lm/bias", "cls/predictions/output_bias"),
        NameMapping(
            "sentence_order/kernel", "cls/seq_relationship/output_weights", transposed=True
        ),
        NameMapping("sentence_order/bias", "cls/seq_relationship/output_bias"),
    ],
    [
        Ignored("**/adam_m", "first moments of AdamW"),
        Ignored("**/adam_v", "second moments of AdamW"),
        Ignored("**/lamb_m", "first moments of LAMB"),
        Ignored("**/lamb_v", "second moments of LAMB"),
        Ignored("global_step", "number of updates made"),
    ],
    separator="/",
)
