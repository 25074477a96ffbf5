"""Re-exports `gather_positions` until its importers name `heads/modules.py`."""

from bert_jax.models.heads.modules import gather_positions as gather_positions
