"""Lists the logical axes of the parameters of the EuroBERT encoder: ModernBERT's."""

from bert_jax.models.modernbert.sharding import PARAMETER_AXES as MODERNBERT_AXES

# The embeddings have no norm.
PARAMETER_AXES = [row for row in MODERNBERT_AXES if row[0] != "embeddings/norm/*"]
