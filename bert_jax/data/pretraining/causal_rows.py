"""Lets a fraction of the sequences of a batch be read left to right (GPT-BERT).

Charpentier and Samuel 2024 train one model on masked and on unmasked sequences. In both, a token is
predicted at the position before it: the masked ones with attention to both sides, and each token of
the unmasked ones with causal attention (`objectives/pretraining.py`). Their processes have batches
of one kind each; here every batch has both, evenly spread over it.
"""

import numpy as np

from bert_jax.data.pretraining.masking import Selection, masked_lm_fields
from bert_jax.data.pretraining.rng import Stream, evenly_spread


def is_causal_row(fraction: float, seed: int, global_rows: np.ndarray) -> np.ndarray:
    """Returns which rows are read left to right, [B] bool.

    Args:
      global_rows: [B], the position of the batch in the stream of examples plus the number of the
        row in the whole batch.
    """
    return evenly_spread(seed, Stream.IS_CAUSAL, global_rows) < fraction


def add_causal_rows(
    fields: dict[str, np.ndarray],
    unmasked_ids: np.ndarray,
    keys: np.ndarray,
    is_causal: np.ndarray,
) -> dict[str, np.ndarray]:
    """Returns the fields of a batch in which some rows are unmasked and predict every next token.

    Args:
      fields: the batch with masks, and L predictions for each row.
      unmasked_ids: int32 [B, L], the ids before masking.
      keys: uint64 random keys of the examples, [B] or [B, L].
      is_causal: bool [B].
    """
    shape = unmasked_ids.shape
    is_predicted = np.zeros(shape, bool)
    is_predicted[:, 1:] = fields["attention_mask"][:, 1:] > 0
    if "packing_ids" in fields:
        # The first token of a packed example cannot be predicted from the example before it.
        is_predicted[:, 1:] &= fields["packing_ids"][:, 1:] == fields["packing_ids"][:, :-1]
    positions = fields["position_ids"] if "position_ids" in fields else np.arange(shape[1])[None]
    selection = Selection.of(is_predicted, draw_once_per_span=False)
    keys_2d = keys[:, None] if keys.ndim == 1 else keys
    unmasked = masked_lm_fields(unmasked_ids, selection, keys_2d, positions, shape)
    unmasked["input_ids"] = unmasked_ids
    merged = {
        name: np.where(is_causal[:, None], field, fields[name]) for name, field in unmasked.items()
    }
    return {**fields, **merged, "is_causal": is_causal.astype(np.int32)}
