"""What making examples needs to know of a vocabulary, as arrays that travel to workers cheaply."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bert_jax.text.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTable:
    """Special ids, and facts about each of the V ids.

    special: [V] bool, never masked and never drawn as a replacement.
    ordinary: [V - specials] int32, the ids that a replacement is drawn from.
    word_starts: [V] bool, the piece begins a word.
    """

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special: np.ndarray
    ordinary: np.ndarray
    word_starts: np.ndarray

    @classmethod
    def from_vocabulary(cls, vocabulary: "Vocabulary") -> "TokenTable":
        special = np.zeros(vocabulary.size, dtype=bool)
        special[sorted(vocabulary.special_ids)] = True
        return cls(
            pad_id=vocabulary.pad_id,
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            mask_id=vocabulary.mask_id,
            special=special,
            ordinary=np.flatnonzero(~special).astype(np.int32),
            word_starts=np.asarray(vocabulary.word_starts, dtype=bool),
        )

    @property
    def size(self) -> int:
        """V, the number of ids."""
        return len(self.special)
