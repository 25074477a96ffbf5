"""Lists the logical axes of the parameters of BART; see `models/sharding.py`."""

from bert_jax.models.t5.sharding import LogicalAxes, stack_axes

PARAMETER_AXES: list[tuple[str, LogicalAxes]] = [
    ("shared/embedding", ("vocab", "embed")),
    ("lm_head/embedding", ("vocab", "embed")),
    *stack_axes("encoder"),
    *stack_axes("decoder"),
    ("encoder/position_embeddings/embedding", (None, "embed")),
    ("decoder/position_embeddings/embedding", (None, "embed")),
    ("encoder/embedding_norm/*", (None,)),
    ("decoder/embedding_norm/*", (None,)),
]
