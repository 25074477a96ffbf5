"""Lists the logical axes of the parameters of T5 and BART; see `models/sharding.py`.

The paths begin at the root of the network.
"""

LogicalAxes = tuple[str | None, ...]


def _stack_axes(stack: str) -> list[tuple[str, LogicalAxes]]:
    """Returns the rows of the layers of an encoder or a decoder."""
    attentions = ("attention",) if stack == "encoder" else ("attention", "cross_attention")
    layers = f"{stack}/layers/*"
    return [
        *(
            row
            for attention in attentions
            for row in (
                *(
                    (f"{layers}/{attention}/{name}/kernel", ("embed", "heads"))
                    for name in ("query", "key", "value")
                ),
                *(
                    (f"{layers}/{attention}/{name}/bias", ("heads",))
                    for name in ("query", "key", "value")
                ),
                (f"{layers}/{attention}/output/kernel", ("heads", "embed")),
                (f"{layers}/{attention}/output/bias", (None,)),
                (f"{layers}/{attention}_norm/*", (None,)),
            )
        ),
        (f"{layers}/feed_forward/intermediate/kernel", ("embed", "mlp")),
        (f"{layers}/feed_forward/intermediate/bias", ("mlp",)),
        (f"{layers}/feed_forward/gate/kernel", ("embed", "mlp")),
        (f"{layers}/feed_forward/output/kernel", ("mlp", "embed")),
        (f"{layers}/feed_forward/output/bias", (None,)),
        (f"{layers}/feed_forward_norm/*", (None,)),
    ]


PARAMETER_AXES: list[tuple[str, LogicalAxes]] = [
    ("shared/embedding", ("vocab", "embed")),
    ("lm_head/embedding", ("vocab", "embed")),
    *_stack_axes("encoder"),
    *_stack_axes("decoder"),
    ("encoder/relative_attention_bias/bias", (None, "heads")),
    ("decoder/relative_attention_bias/bias", (None, "heads")),
    ("encoder/final_norm/*", (None,)),
    ("decoder/final_norm/*", (None,)),
    ("encoder/position_embeddings/embedding", (None, "embed")),
    ("decoder/position_embeddings/embedding", (None, "embed")),
    ("encoder/embedding_norm/*", (None,)),
    ("decoder/embedding_norm/*", (None,)),
]
