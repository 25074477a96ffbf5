"""Lists the logical axes of the parameters of the ModernBERT encoder; see `models/sharding.py`."""

PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    ("embeddings/word_embeddings/embedding", ("vocab", "embed")),
    ("embeddings/norm/*", (None,)),
    ("layers/*/attention/query/kernel", ("embed", "heads")),
    ("layers/*/attention/key/kernel", ("embed", "heads")),
    ("layers/*/attention/value/kernel", ("embed", "heads")),
    ("layers/*/attention/output/kernel", ("heads", "embed")),
    ("layers/*/attention_norm/*", (None,)),
    ("layers/*/feed_forward/intermediate/kernel", ("embed", "mlp")),
    ("layers/*/feed_forward/gate/kernel", ("embed", "mlp")),
    ("layers/*/feed_forward/output/kernel", ("mlp", "embed")),
    ("layers/*/feed_forward_norm/*", (None,)),
    ("final_norm/*", (None,)),
]
