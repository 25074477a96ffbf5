"""Defines how each parameter is sharded: logical axes by parameter path, mesh axes by logical axis.

A logical axis says what a dimension is: embed (D), heads (H x K), mlp (F), vocab (V). None is a
dimension that is never split. Each family lists the axes of its encoder in its `model.py`; the
heads, which all families share, are listed here.
"""

import functools
from collections.abc import Mapping

from bert_jax.models.bert.model import PARAMETER_AXES as BERT_AXES
from bert_jax.models.families import FAMILIES
from bert_jax.models.heads.config import WINDOW_ENCODER
from bert_jax.models.sentence_encoder.config import SENTENCE_HEAD
from bert_jax.models.seq2seq.network import PARAMETER_AXES as ENCODER_DECODER_AXES
from bert_jax.params.paths import ADAPTER, AUXILIARY_NETWORKS, STATISTICS, PathTable

LogicalAxes = tuple[str | None, ...]

LOGICAL_TO_MESH: dict[str, str] = {
    "embed": "fsdp",
    "heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
}
"""The mesh axis of each logical axis. A mesh axis of size 1 splits nothing: one rule for all."""

_POOLER_AND_TASK_HEADS: list[tuple[str, LogicalAxes]] = [
    ("pooler/dense/kernel", ("embed", None)),
    ("pooler/dense/bias", (None,)),
    ("prediction_head/dense/kernel", ("embed", None)),
    ("prediction_head/norm/*", (None,)),
    ("classifier/kernel", ("embed", None)),
    ("classifier/bias", (None,)),
    ("classifier/dense/kernel", ("embed", None)),
    ("classifier/dense/bias", (None,)),
    ("classifier/out_proj/kernel", ("embed", None)),
    ("classifier/out_proj/bias", (None,)),
    ("span/kernel", ("embed", None)),
    ("span/bias", (None,)),
    ("span/intermediate/kernel", ("embed", None)),
    ("span/output/kernel", (None, "embed")),
    ("span/out_proj/kernel", ("embed", None)),
    ("span/*/bias", (None,)),
    ("span/norm/scale", (None,)),
]
_WINDOW_ENCODER: list[tuple[str, LogicalAxes]] = [
    (f"{WINDOW_ENCODER}/position_embeddings/embedding", (None, "embed")),
    (f"{WINDOW_ENCODER}/norm/*", (None,)),
    # Its layers are as in BERT, whatever the family of the encoder.
    *((f"{WINDOW_ENCODER}/{name}", axes) for name, axes in BERT_AXES if name.startswith("layers/")),
]
_HEADS: list[tuple[str, LogicalAxes]] = [
    ("masked_lm/transform/kernel", ("embed", None)),
    ("masked_lm/transform/bias", (None,)),
    ("masked_lm/norm/*", (None,)),
    ("masked_lm/linear1/kernel", ("embed", None)),
    ("masked_lm/linear2/kernel", (None, "embed")),
    ("masked_lm/bias", ("vocab",)),
    ("masked_lm/decoder", ("vocab", "embed")),
    ("next_sentence/kernel", ("embed", None)),
    ("next_sentence/bias", (None,)),
    ("sentence_order/kernel", ("embed", None)),
    ("sentence_order/bias", (None,)),
    ("span_boundary/position_embeddings/embedding", (None, None)),
    ("span_boundary/linear1/kernel", (None, "embed")),
    ("span_boundary/linear1/bias", (None,)),
    ("span_boundary/linear2/kernel", ("embed", None)),
    ("span_boundary/linear2/bias", (None,)),
    ("span_boundary/layer_norm1/*", (None,)),
    ("span_boundary/layer_norm2/*", (None,)),
    ("span_boundary/bias", ("vocab",)),
    ("replaced_token/*/kernel", ("embed", None)),
    ("replaced_token/*/bias", (None,)),
    ("replaced_token/norm/scale", (None,)),
    (f"{SENTENCE_HEAD}/dense/*/kernel", ("embed", None)),
    (f"{SENTENCE_HEAD}/dense/*/bias", (None,)),
    (f"{SENTENCE_HEAD}/query_weights", ("vocab",)),
    *_POOLER_AND_TASK_HEADS,
    *_WINDOW_ENCODER,
    ("softmax_classifier/kernel", ("embed", None)),
    ("softmax_classifier/bias", (None,)),
    ("simcse_mlp/kernel", ("embed", None)),
    ("simcse_mlp/bias", (None,)),
    ("teacher_projection/kernel", ("embed", None)),
    ("teacher_projection/bias", (None,)),
    ("reconstruction/*/*/kernel", ("embed", None)),
    ("reconstruction/*/*/bias", (None,)),
    ("reconstruction/*/norm/scale", (None,)),
    # In a multi-task model each task has heads of its own.
    *((f"heads/*/{pattern}", axes) for pattern, axes in _POOLER_AND_TASK_HEADS),
    ("heads/*/log_variance", ()),
    (f"{STATISTICS}/token_losses", (None,)),
]


_PREFIX_ENCODER: list[tuple[str, LogicalAxes]] = [
    (f"{ADAPTER}/encoder/prefix_encoder/{name}", axes)
    for name, axes in (
        ("embedding", (None, "embed")),
        ("down/kernel", ("embed", None)),
        ("up/kernel", (None, "heads")),
        ("*/bias", (None,)),
    )
]
"""Computes the keys and values of prefix tuning."""


@functools.cache
def parameter_axes() -> PathTable[LogicalAxes]:
    """Returns the table of logical axes over the parameters of all families and their heads.

    Paths of encoder-decoders begin at the root of the network, paths of encoders at "encoder/".
    """
    rows: dict[tuple[str, LogicalAxes], None] = {}  # families may share rows; keeps the order
    for family in FAMILIES.values():
        rows |= dict.fromkeys(
            (f"encoder/{pattern}", axes) for pattern, axes in family.parameter_axes
        )
    rows |= dict.fromkeys(ENCODER_DECODER_AXES)
    adapter_rows = [row for pattern, axes in rows for row in _adapter_rows(pattern, axes)]
    adapter_rows = [*dict.fromkeys(adapter_rows), *_PREFIX_ENCODER]
    network_rows = [*rows, *_HEADS]
    auxiliary_rows = [
        (f"{network}/{pattern}", axes)
        for network in AUXILIARY_NETWORKS
        for pattern, axes in network_rows
    ]
    return PathTable("parameter axes", [*network_rows, *adapter_rows, *auxiliary_rows])


def _adapter_rows(pattern: str, axes: LogicalAxes) -> list[tuple[str, LogicalAxes]]:
    """Returns the rows of an adapter's parameters from the row of the parameter that it adapts.

    A matrix with an axis of the base is split as the base is; the rank is never split.
    """
    module, _, name = pattern.rpartition("/")
    match name:
        case "kernel":
            leaves = {
                "lora_a": (axes[0], None),
                "lora_b": (None, axes[1]),
                "magnitude": (axes[1],),
                "ia3": (None,),  # of the inputs or of the outputs
            }
            if module.endswith("attention/query"):
                prefix = f"{ADAPTER}/{module.removesuffix('/query')}/prefix_*"
                return [*_rows(module, leaves), (prefix, (None, axes[1]))]
        case "embedding" if module.endswith("/word_embeddings"):
            leaves = {
                "lora_embedding_a": (axes[0], None),
                "lora_embedding_b": (None, axes[1]),
                "prompt": (None, axes[1]),
            }
        case "*" if module.endswith(("attention_norm", "feed_forward_norm")):
            leaves = {
                "down/kernel": ("embed", None),
                "up/kernel": (None, "embed"),
                "*/bias": (None,),
            }
        case _:
            return []
    return _rows(module, leaves)


def _rows(module: str, leaves: Mapping[str, LogicalAxes]) -> list[tuple[str, LogicalAxes]]:
    return [(f"{ADAPTER}/{module}/{leaf}", leaf_axes) for leaf, leaf_axes in leaves.items()]
