"""Lists the logical axes of the parameters of the ALBERT encoder: those of BERT's layers."""

from bert_jax.models.bert.sharding import PARAMETER_AXES as _BERT_AXES

PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    (f"groups/*/{pattern}" if pattern.startswith("layers/") else pattern, axes)
    for pattern, axes in _BERT_AXES
]
