"""Lists the logical axes of the parameters of the Longformer encoder; see `models/sharding.py`."""

from bert_jax.models.bert.sharding import PARAMETER_AXES as _BERT_AXES

PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    *((f"layers/*/attention/{name}_global/kernel", ("embed", "heads")) for name in
      ("query", "key", "value")),
    *((f"layers/*/attention/{name}_global/bias", ("heads",)) for name in
      ("query", "key", "value")),
]  # fmt: skip
