"""Lists the logical axes of the parameters of the DeBERTa encoder; see `models/sharding.py`."""

from bert_jax.models.bert.sharding import PARAMETER_AXES as _BERT_AXES

PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    ("relative_embeddings/embedding", (None, "embed")),
    ("relative_norm/*", (None,)),
]
