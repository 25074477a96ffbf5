"""Masks tokens for masked diffusion: each example at a rate of its own, drawn uniformly.

Sahoo et al. 2024 (MDLM, section 3.4 and appendix C) and Nie et al. 2025 (LLaDA, section 2.1) mask
each token of a sequence independently with the probability t, which is uniform over sequences. The
rates of MDLM's batches are evenly spread, as here (its `antithetic_sampling`), and those of LLaDA
are independent. Both begin at 0.001.

Differs from their code: special tokens are never masked, as for masked LM (`masking.py`).
"""

import numpy as np

from bert_jax.config.data import DiffusionMasking
from bert_jax.data.pretraining.masking import Selection, masked_lm_fields
from bert_jax.data.pretraining.rng import Stream, evenly_spread, random_bits
from bert_jax.data.pretraining.vocab_arrays import VocabArrays


# The rate is a function of the position of the example in the stream and not of its key, so that
# the examples of any batch have rates of all sizes, whatever the size of the batch is.
def masking_rates(config: DiffusionMasking, seed: int, global_indices: np.ndarray) -> np.ndarray:
    """Returns the rates of global examples, [n] float64 in [min_rate, 1)."""
    uniform = evenly_spread(seed, Stream.MASKING_RATE, global_indices)
    return config.min_rate + (1 - config.min_rate) * uniform


def mask_for_diffusion(
    input_ids: np.ndarray,
    attention_mask: np.ndarray,
    keys: np.ndarray,
    rates: np.ndarray,
    vocab_arrays: VocabArrays,
    position_ids: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks each token that is not special independently, with the rate of its example.

    Args:
      input_ids, attention_mask: [B, L] int32.
      keys: uint64 random keys of the examples: [B], or [B, L] (one for each token) if rows are
        packed.
      rates: float64 probabilities, of the shape of `keys`.
      position_ids: [B, L] positions within the example if rows are packed; else 0 to L - 1.

    Returns:
      The fields of `mask_tokens` for P = L predictions, and `DIFFUSION_FIELDS` of
      `bert_jax/batch.py`.
    """
    shape = input_ids.shape
    positions = np.arange(shape[1])[None, :] if position_ids is None else position_ids
    keys_2d, rates_2d = (x[:, None] if x.ndim == 1 else x for x in (keys, rates))
    is_maskable = (attention_mask != 0) & ~vocab_arrays.is_special[input_ids]
    bits = random_bits(keys_2d, Stream.MASK_SELECTION, positions)
    is_selected = is_maskable & ((bits >> np.uint64(11)) * 2.0**-53 < rates_2d)
    selection = Selection.of(is_selected, draw_once_per_span=False)
    fields = masked_lm_fields(input_ids, selection, keys_2d, positions, shape)
    selected_rates = np.zeros(shape, np.float32)
    selected_rates[selection.rows, selection.prediction_indices] = np.broadcast_to(rates_2d, shape)[
        selection.rows, selection.columns
    ]
    return {
        **fields,
        "input_ids": np.where(is_selected, vocab_arrays.mask_id, input_ids).astype(np.int32),
        "masking_rates": selected_rates,
        "num_maskable_tokens": is_maskable.sum(axis=1, dtype=np.int32),
    }
