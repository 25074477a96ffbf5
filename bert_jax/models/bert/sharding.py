"""Logical axes of every parameter, as a table over paths, and which mesh axis each lies on.

Logical names say what a dimension is: embed (D), heads (H x K), mlp (F), vocab (V); None is a
dimension that is never split.
"""

from bert_jax.params.paths import PathTable

LogicalAxes = tuple[str | None, ...]

PARAMETER_AXES: PathTable[LogicalAxes] = PathTable(
    "parameter axes",
    [
        ("encoder/embeddings/word_embeddings/embedding", ("vocab", "embed")),
        ("encoder/embeddings/position_embeddings/embedding", (None, "embed")),
        ("encoder/embeddings/token_type_embeddings/embedding", (None, "embed")),
        ("encoder/embeddings/norm/*", (None,)),
        ("encoder/layers/*/attention/query/kernel", ("embed", "heads")),
        ("encoder/layers/*/attention/key/kernel", ("embed", "heads")),
        ("encoder/layers/*/attention/value/kernel", ("embed", "heads")),
        ("encoder/layers/*/attention/query/bias", ("heads",)),
        ("encoder/layers/*/attention/key/bias", ("heads",)),
        ("encoder/layers/*/attention/value/bias", ("heads",)),
        ("encoder/layers/*/attention/output/kernel", ("heads", "embed")),
        ("encoder/layers/*/attention/output/bias", (None,)),
        ("encoder/layers/*/attention_norm/*", (None,)),
        ("encoder/layers/*/feed_forward/intermediate/kernel", ("embed", "mlp")),
        ("encoder/layers/*/feed_forward/intermediate/bias", ("mlp",)),
        ("encoder/layers/*/feed_forward/output/kernel", ("mlp", "embed")),
        ("encoder/layers/*/feed_forward/output/bias", (None,)),
        ("encoder/layers/*/feed_forward_norm/*", (None,)),
        ("pooler/dense/kernel", ("embed", None)),
        ("pooler/dense/bias", (None,)),
        ("masked_lm/transform/kernel", ("embed", None)),
        ("masked_lm/transform/bias", (None,)),
        ("masked_lm/norm/*", (None,)),
        ("masked_lm/bias", ("vocab",)),
        ("masked_lm/decoder", ("vocab", "embed")),
        ("next_sentence/kernel", ("embed", None)),
        ("next_sentence/bias", (None,)),
        ("classifier/kernel", ("embed", None)),
        ("classifier/bias", (None,)),
        ("span/kernel", ("embed", None)),
        ("span/bias", (None,)),
        ("heads/*/pooler/dense/kernel", ("embed", None)),
        ("heads/*/pooler/dense/bias", (None,)),
        ("heads/*/classifier/kernel", ("embed", None)),
        ("heads/*/classifier/bias", (None,)),
        ("heads/*/span/kernel", ("embed", None)),
        ("heads/*/span/bias", (None,)),
        ("heads/*/log_variance", ()),
    ],
)

LOGICAL_TO_MESH: dict[str, str] = {
    "embed": "fsdp",
    "heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
}
"""Where each logical axis lies. An axis of size 1 splits nothing, so one rule serves every mesh."""
