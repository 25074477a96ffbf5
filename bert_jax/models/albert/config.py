"""Defines the config of ALBERT and its published sizes. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig, check_size
from bert_jax.models.heads.config import PoolerClassifier, SequenceClassifier
from bert_jax.models.layers.config import Activation, LearnedPositions

AlbertSize = Literal["base", "large", "xlarge", "xxlarge"]
AlbertVersion = Literal["v1", "v2"]

# Layers, hidden size, heads and intermediate size: Lan et al. 2020, table 1, and the released
# files, from which the numbers of heads are.
_SIZES: dict[AlbertSize, tuple[int, int, int, int]] = {
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
    "xlarge": (24, 2048, 16, 8192),
    "xxlarge": (12, 4096, 64, 16384),
}


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(TransformerConfig):
    """Configures an ALBERT encoder (Lan et al. 2020); default values are ALBERT-base v2.

    Hugging Face's `AlbertConfig()` is xxlarge v2.

    Attributes:
      embedding_size: E, the width of the embedding tables; one dense layer maps E to D.
      num_hidden_groups: number of groups of layers. All layers of a group have the same
        parameters, so 1 means that all layers of the model share theirs.
      inner_group_num: layers with parameters of their own inside a group, which are applied one
        after another each time that the group is applied. `num_hidden_layers` counts applications
        of groups.
    """

    family: ClassVar[str] = "ALBERT"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("pooler", "masked_lm", "sentence_order")
    sequence_classifier: ClassVar[SequenceClassifier] = PoolerClassifier()

    vocab_size: int = 30000
    embedding_size: int = 128
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    positions: LearnedPositions = LearnedPositions()
    hidden_act: Activation = "gelu_tanh"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("model.embedding_size", self.embedding_size, 2**20)
        check_size("model.num_hidden_groups", self.num_hidden_groups, 1000)
        check_size("model.inner_group_num", self.inner_group_num, 1000)
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ConfigError(
                f"model.num_hidden_groups is {self.num_hidden_groups}, but the model has only "
                f"{self.num_hidden_layers} layers (model.num_hidden_layers); expected at most one "
                "group for each layer"
            )

    @classmethod
    def from_size(
        cls,
        size: AlbertSize,
        version: AlbertVersion = "v2",
        *,
        vocab_size: int = 30000,
        max_position_embeddings: int = 512,
    ) -> Self:
        """Returns the config of a published model: base, large, xlarge or xxlarge, v1 or v2.

        The values are as in Hugging Face's files. v1 has dropout 0.1 except for xxlarge, v2 has
        none.
        """
        layers, hidden, heads, intermediate = _SIZES[size]
        dropout = 0.1 if version == "v1" and size != "xxlarge" else 0.0
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=intermediate,
            positions=LearnedPositions(max_position_embeddings=max_position_embeddings),
            # Google trained v1 with the tanh form, too; Hugging Face's files of v1 say erf.
            hidden_act="gelu" if version == "v1" else "gelu_tanh",
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )

    @property
    def word_embedding_size(self) -> int:
        """Returns E, the width of the token embeddings."""
        return self.embedding_size

    @property
    def layers_at_depth(self) -> tuple[int, ...]:
        """Returns how many layers the applications of each group consist of."""
        return tuple(count * self.inner_group_num for count in self.group_applications())

    def group_applications(self) -> list[int]:
        """Returns how many times each group is applied; the sum is `num_hidden_layers`."""
        # Hugging Face's expression, in floating point, for numbers that do not divide evenly.
        layers_per_group = self.num_hidden_layers / self.num_hidden_groups
        groups = [int(layer / layers_per_group) for layer in range(self.num_hidden_layers)]
        return [groups.count(group) for group in range(self.num_hidden_groups)]

    def encoder_flops(self, seq_length: int) -> float:
        """Returns the forward FLOPs for one token: as BERT, and the projection from E to D.

        Shared parameters save no FLOPs: every layer is computed.
        """
        projection = 2 * self.embedding_size * self.hidden_size
        return projection + self.layers_flops(seq_length)
