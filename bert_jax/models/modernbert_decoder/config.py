"""Defines the config of the ModernBERT decoder, which reads left to right (Ettin). No jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.models.modernbert.config import ModernBertConfig


@dataclass(frozen=True, kw_only=True)
class ModernBertDecoderConfig(ModernBertConfig):
    """Configures a ModernBERT decoder (Weller et al. 2025, Ettin): ModernBERT with a causal mask.

    Default values are those of 150m; `from_size` has the sizes of the encoders.
    """

    family: ClassVar[str] = "ModernBERT decoder"
    is_decoder: ClassVar[bool] = True

    local_rope_theta: float = 160_000.0

    @property
    def radius(self) -> int:
        """Returns the largest distance of a token before another to which it attends locally.

        Half of the window counts the token itself, as in Hugging Face's class.
        """
        return self.local_attention // 2 - 1
