"""Defines the config of Longformer and its published sizes. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    SequenceClassifier,
    TaskHead,
)
from bert_jax.models.layers.config import (
    Activation,
    GlobalAfterSeparator,
    GlobalBeforeSeparator,
    GlobalFirstToken,
    GlobalTokens,
    PaddingOffsetPositions,
)

LongformerSize = Literal["base", "large"]

# Layers, hidden size and heads: Beltagy et al. 2020, section 5 (as RoBERTa).
_SIZES: dict[LongformerSize, tuple[int, int, int]] = {
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class LongformerConfig(TransformerConfig):
    """Configures a Longformer encoder (Beltagy et al. 2020); default values are Longformer-base.

    They are the published models' values. Hugging Face's `LongformerConfig()` has others: BERT's
    vocabulary, 512 positions, 2 token types and an epsilon of 1e-12.

    Attributes:
      attention_window: the number of tokens in the window of each layer, the query itself not
        counted: a query attends to half as many tokens before it and after it.
      max_global_tokens: the largest number of tokens of a sequence with global attention. More are
        local: those that come last. It is static because shapes are; Hugging Face takes the
        largest number in the batch instead.
      sep_token_id: the token between question and context, and between context and choice.
    """

    family: ClassVar[str] = "Longformer"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier()

    vocab_size: int = 50265
    positions: PaddingOffsetPositions = PaddingOffsetPositions(max_position_embeddings=4098)
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    attention_window: tuple[int, ...] = (512,) * 12
    max_global_tokens: int = 128
    sep_token_id: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attention_window(self.attention_window, self.num_hidden_layers, self.max_length)
        for name in ("max_global_tokens", "sep_token_id"):
            value, smallest = getattr(self, name), int(name == "max_global_tokens")
            if type(value) is not int or value < smallest:
                raise ConfigError(f"model.{name} is {value!r}, expected an integer >= {smallest}")

    @classmethod
    def from_size(
        cls, size: LongformerSize, *, vocab_size: int = 50265, max_position_embeddings: int = 4098
    ) -> Self:
        """Returns the config of a published size: base or large.

        `max_position_embeddings` counts the rows of the table, which are two more than the tokens
        of the longest sequence.
        """
        layers, hidden, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            positions=PaddingOffsetPositions(max_position_embeddings=max_position_embeddings),
            attention_window=(512,) * layers,
        )

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the exact GELU whatever `hidden_act` is, as in RoBERTa's masked-LM head."""
        return "gelu"

    @property
    def global_token_limit(self) -> int:
        """Returns `max_global_tokens`."""
        return self.max_global_tokens

    # The tokens depend on the task, so tasks with different global tokens cannot share one run.
    def global_tokens(self, head: TaskHead | None) -> GlobalTokens | None:
        """Returns the tokens that Hugging Face's classes give global attention for each task."""
        match head and head.scope:
            case "sequence":
                return GlobalFirstToken()
            case "span":
                return GlobalBeforeSeparator(sep_token_id=self.sep_token_id)
            case "choices":
                return GlobalAfterSeparator(sep_token_id=self.sep_token_id)
            case _:
                return None

    def attended_keys(self, seq_length: int) -> tuple[float, ...]:
        """Returns the number of keys of each layer's window.

        Global attention is not counted, because pretraining has none. In fine-tuning it adds about
        a sixth of the FLOPs: the global keys and values of all tokens, 4 D x D for each layer.
        """
        return tuple(min(window + 1, seq_length) for window in self.attention_window)


def check_attention_window(windows: tuple[int, ...], num_layers: int, longest: int) -> None:
    """Raises a ConfigError unless each layer has a window that fits into the longest sequence."""
    if len(windows) != num_layers:
        raise ConfigError(
            f"model.attention_window has {len(windows)} values, expected one for each of the "
            f"{num_layers} layers"
        )
    for layer, window in enumerate(windows):
        # `type` and not `isinstance`: True is an instance of int.
        if type(window) is not int or window < 2 or window % 2:
            raise ConfigError(
                f"model.attention_window has {window!r} for layer {layer}, expected an even "
                "number of tokens, at least 2"
            )
        if window > longest:
            raise ConfigError(
                f"model.attention_window has {window} for layer {layer}, but the position "
                f"table has room for {longest} tokens (max_position_embeddings of the model); "
                "use a smaller window"
            )
