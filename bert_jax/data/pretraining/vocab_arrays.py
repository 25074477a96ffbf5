"""Holds what batch building needs of a tokenizer, as arrays that are cheap to send to workers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.text.input_template import InputTemplate

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class VocabArrays:
    """Holds special token ids and properties of all V token ids.

    Attributes:
      is_special: [V] bool, True for ids that are never masked.
      maskable_ids: int32, the ids that are not special; random replacements are drawn from them.
      word_starts: [V] bool, True where the token begins a word.
      template: where special tokens are added around a text or a pair.
      sentinel_ids: int32 [S], the ids of <extra_id_0>, <extra_id_1>, ...
    """

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_special: np.ndarray
    maskable_ids: np.ndarray
    word_starts: np.ndarray
    template: InputTemplate
    sentinel_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def from_tokenizer(cls, tokenizer: "Tokenizer") -> "VocabArrays":
        """Reads the arrays from a tokenizer."""
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
            template=tokenizer.template,
            sentinel_ids=np.array(tokenizer.sentinel_ids, np.int32),
        )

    @property
    def vocab_size(self) -> int:
        """Returns V, the number of token ids."""
        return len(self.is_special)
