"""Packs sources and targets into rows; a source and its target have the same packing id."""

from collections.abc import Sequence

import numpy as np

from bert_jax.data.pretraining.denoising.examples import SourceAndTarget
from bert_jax.data.pretraining.packing import PackingPlan, pack


def pack_sources_and_targets(
    examples: Sequence[SourceAndTarget], num_rows: int, capacities: tuple[int, int]
) -> PackingPlan:
    """Packs as many of the first examples as fit.

    Args:
      capacities: (L, T), the tokens of a row for sources and for targets.
    """
    return pack(np.array([[len(ids) for ids in each] for each in examples]), num_rows, capacities)


def collate_packed_rows(
    examples: Sequence[SourceAndTarget],
    packing_plan: PackingPlan,
    num_rows: int,
    capacities: tuple[int, int],
    pad_id: int,
) -> dict[str, np.ndarray]:
    """Builds the fields of `num_rows` rows (B) from examples and the plan of where each goes.

    Args:
      capacities: (L, T), the tokens of a row for sources and for targets.

    Returns:
      `input_ids`, `attention_mask`, `position_ids` (from 0 in each example) and `packing_ids`
      (1, 2, ... along a row, 0 = padding), int32 [B, L]; `decoder_target_ids`,
      `decoder_position_ids` and `decoder_packing_ids`, int32 [B, T], and `decoder_target_weights`,
      float32 [B, T]. Padding is `pad_id` in sources, and 0 with the weight 0 in targets.
    """
    tokens = [np.full((num_rows, capacities[0]), pad_id, np.int32)]
    tokens += [np.zeros((num_rows, capacities[1]), np.int32)]
    position_ids, packing_ids = ([np.zeros_like(each) for each in tokens] for _ in range(2))
    num_packed = np.zeros(num_rows, np.int32)
    for index in np.argsort(packing_plan.offsets[:, 0], kind="stable").tolist():
        row = packing_plan.rows[index]
        num_packed[row] += 1
        # Side 0 is the source, side 1 the target.
        for side, (ids, begin) in enumerate(
            zip(examples[index], packing_plan.offsets[index], strict=True)
        ):
            slot = row, slice(begin, begin + len(ids))
            tokens[side][slot] = ids
            position_ids[side][slot] = np.arange(len(ids))
            packing_ids[side][slot] = num_packed[row]
    return {
        "input_ids": tokens[0],
        "attention_mask": (packing_ids[0] > 0).astype(np.int32),
        "position_ids": position_ids[0],
        "packing_ids": packing_ids[0],
        "decoder_target_ids": tokens[1],
        "decoder_target_weights": (packing_ids[1] > 0).astype(np.float32),
        "decoder_position_ids": position_ids[1],
        "decoder_packing_ids": packing_ids[1],
    }
