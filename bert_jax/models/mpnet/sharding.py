"""Lists the logical axes of the parameters of the MPNet encoder; see `models/sharding.py`."""

from bert_jax.models.bert.sharding import PARAMETER_AXES as _BERT_AXES

PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    ("relative_attention_bias/bias", (None, "heads")),
]
