"""Lists the logical axes of the parameters of the BERT encoder; see `models/sharding.py`."""

PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    ("embeddings/word_embeddings/embedding", ("vocab", "embed")),
    ("embeddings/position_embeddings/embedding", (None, "embed")),
    # In place of these tables; see `GradientDisentangledEmbeddings`.
    ("embeddings/word_embeddings/difference", ("vocab", "embed")),
    ("embeddings/position_embeddings/difference", (None, "embed")),
    ("embeddings/token_type_embeddings/embedding", (None, "embed")),
    ("embeddings/norm/*", (None,)),
    ("embedding_projection/kernel", (None, "embed")),
    ("embedding_projection/bias", (None,)),
    ("layers/*/attention/query/kernel", ("embed", "heads")),
    ("layers/*/attention/key/kernel", ("embed", "heads")),
    ("layers/*/attention/value/kernel", ("embed", "heads")),
    ("layers/*/attention/query/bias", ("heads",)),
    ("layers/*/attention/key/bias", ("heads",)),
    ("layers/*/attention/value/bias", ("heads",)),
    ("layers/*/attention/output/kernel", ("heads", "embed")),
    ("layers/*/attention/output/bias", (None,)),
    ("layers/*/attention_norm/*", (None,)),
    ("layers/*/feed_forward/intermediate/kernel", ("embed", "mlp")),
    ("layers/*/feed_forward/intermediate/bias", ("mlp",)),
    ("layers/*/feed_forward/output/kernel", ("mlp", "embed")),
    ("layers/*/feed_forward/output/bias", (None,)),
    ("layers/*/feed_forward_norm/*", (None,)),
]
