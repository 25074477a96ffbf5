"""Lists the logical axes of the parameters of the BigBird encoder: those of BERT's layers."""

from bert_jax.models.bert.sharding import PARAMETER_AXES as PARAMETER_AXES
