"""What making examples needs to know of a vocabulary, as arrays that travel to workers cheaply."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class VocabArrays:
    """Special ids, and facts about each of the V ids.

    special: [V] bool, never masked and never drawn as a replacement.
    ordinary: [V - specials] int32, the ids that a replacement is drawn from.
    word_starts: [V] bool, the piece begins a word.
    """

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_special: np.ndarray
    maskable_ids: np.ndarray
    word_starts: np.ndarray

    @classmethod
    def from_tokenizer(cls, tokenizer: "Tokenizer") -> "VocabArrays":
        is_special = np.zeros(tokenizer.vocab_size, dtype=bool)
        is_special[sorted(tokenizer.special_ids)] = True
        return cls(
            pad_id=tokenizer.pad_id,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            mask_id=tokenizer.mask_id,
            is_special=is_special,
            maskable_ids=np.flatnonzero(~is_special).astype(np.int32),
            word_starts=np.asarray(tokenizer.word_starts, dtype=bool),
        )

    @property
    def vocab_size(self) -> int:
        """V, the number of ids."""
        return len(self.is_special)
