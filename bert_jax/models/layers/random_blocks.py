"""Draws the random blocks of BigBird's block-sparse attention, as Hugging Face does in training.

The draws of `numpy.random` are those of the original code (`bigbird/core/attention.py`), with the
index of the layer as seed: layers and heads have different blocks, training steps the same.
"""

import numpy as np

_LENGTHS_OF_THE_PAPER = (1024, 3072, 4096)
"""Lengths for which the original code draws blocks in another way, that of the paper."""


# NumPy's generator with the layer as seed, because Hugging Face draws the blocks so: a model that
# was trained with these blocks has to keep them.
def random_blocks(
    *,
    num_blocks: int,
    block_size: int,
    num_heads: int,
    num_random_blocks: int,
    max_position_embeddings: int,
    seed: int,
) -> np.ndarray:
    """Returns the key blocks that each query block but the first and last attends to at random.

    Args:
      num_blocks: the number of blocks of the sequence, padded to whole blocks.

    Returns:
      int32 [H, num_blocks - 2, num_random_blocks].
    """
    generator = np.random.RandomState(seed)
    if num_blocks * block_size in _LENGTHS_OF_THE_PAPER:
        per_head = [
            _blocks_of_the_paper(
                generator, max_position_embeddings // block_size, block_size, num_random_blocks
            )[: num_blocks - 2]
            for _ in range(num_heads)
        ]
        return np.stack(per_head)
    blocks = np.zeros((num_heads, num_blocks, num_random_blocks), np.int32)
    # One more row than needed, as in the original; the order of the draws decides on the result.
    for row in range(1, num_blocks):
        for head in range(num_heads):
            blocks[head, row] = _blocks_of_one_row(generator, row, num_random_blocks)
    return blocks[:, 1:-1]


def _blocks_of_one_row(
    generator: np.random.RandomState, row: int, num_random_blocks: int
) -> np.ndarray:
    """Draws from the first blocks, 5 + 2 for each random block, without window and global ones."""
    end = 2 * num_random_blocks + 5
    illegal = {row - 1, row, row + 1, 0, end - 1}
    if row == 1:
        illegal.add(end - 2)
    if row == end - 2:
        illegal.add(1)
    permuted = generator.permutation(np.arange(end, dtype=np.int32))
    return np.array([block for block in permuted if block not in illegal][:num_random_blocks])


def _blocks_of_the_paper(
    generator: np.random.RandomState, num_blocks: int, block_size: int, num_random_blocks: int
) -> np.ndarray:
    """Draws the blocks of one head for the longest sequence; shorter ones use the first rows."""
    middle = np.arange(1, num_blocks - 1, dtype=np.int32)
    last = 1024 // block_size - 1 if 2 * block_size < 1024 else num_blocks - 1
    rows: list[np.ndarray] = []
    for row in range(1, num_blocks - 1):
        if row in (1, 2):
            allowed = middle[row + 1 : last]
        elif row in (num_blocks - 3, num_blocks - 2) or row - 2 > last:
            allowed = middle[:last]
        elif row + 1 == last:
            allowed = middle[: row - 2]
        else:
            allowed = np.concatenate((middle[: row - 2], middle[row + 1 : last]))
        rows.append(generator.permutation(allowed)[:num_random_blocks])
    return np.stack(rows)
