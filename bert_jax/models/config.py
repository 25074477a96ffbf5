"""Defines the fields that the configs of all families share, and checks their values.

Imports no jax.
"""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.heads.config import (
    LinearClassifier,
    MaskedLMTransform,
    PoolerClassifier,
    Pooling,
    ReplacedTokenDetector,
    SequenceClassifier,
    SpanClassifier,
    TaskHead,
    TokenClassifier,
)
from bert_jax.models.layers.config import (
    Activation,
    GlobalTokens,
    LearnedPositions,
    Norm,
    PaddingOffsetPositions,
    Positions,
    RotaryPositions,
    check_dropout,
)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Configures a Transformer encoder; the config of each family extends it.

    Field names are Hugging Face's, default values BERT-base's. The layers read this class,
    so that every family can use them. A family sets its own default values and adds its own fields.

    Attributes:
      family: the name of the family in text.
      pretraining_heads: names of the heads that `Pretraining` trains, see `models/model.py`.
      sequence_classifier: the layers for classifying a sequence, also used for regression.
      multiple_choice_classifier: the layers for scoring one of several choices.
      span_classifier: the layers for answering questions.
      missing_masked_lm_reason: why files of the family have no masked-LM head, if they have none.
      token_classifier: the layers for labeling every token, also used for answer spans.
      masked_lm_transform: the layers between the encoder and the masked-LM logits.
      replaced_token_detector: the layers for detecting replaced tokens; None for families that are
        not pretrained in this way.
      norm: the norm of all layers.
      is_decoder: whether a token attends only to itself and the tokens before it, in every use.
      drops_tokens: whether the middle layers can read some of the tokens only (token dropping).
      num_feed_forward_kernels: the number of D x F kernels in a feed-forward layer; 3 with a gate.
    """

    family: ClassVar[str]
    pretraining_heads: ClassVar[tuple[str, ...]]
    sequence_classifier: ClassVar[SequenceClassifier]
    multiple_choice_classifier: ClassVar[SequenceClassifier] = PoolerClassifier()
    span_classifier: ClassVar[SpanClassifier] = "linear"
    missing_masked_lm_reason: ClassVar[str] = ""
    token_classifier: ClassVar[TokenClassifier] = LinearClassifier()
    masked_lm_transform: ClassVar[MaskedLMTransform] = "own"
    replaced_token_detector: ClassVar[ReplacedTokenDetector | None] = None
    norm: ClassVar[Norm] = "layer_norm"
    is_decoder: ClassVar[bool] = False
    drops_tokens: ClassVar[bool] = False
    num_feed_forward_kernels: ClassVar[int] = 2

    vocab_size: int  # V, the ids of the tokenizer
    hidden_size: int = 768  # D, the width of hidden states
    num_hidden_layers: int = 12  # N, the number of layers
    num_attention_heads: int = 12  # H, the heads of each layer; a divisor of D
    intermediate_size: int = 3072  # F, the width inside a feed-forward layer
    # How the model knows the order of tokens, and its maximum length.
    positions: Positions = LearnedPositions()
    hidden_act: Activation = "gelu"  # the activation of feed-forward layers
    type_vocab_size: int = 2  # token types, which mark the two texts of a pair; 0: none
    hidden_dropout_prob: float = 0.1  # dropout of embeddings and sublayer outputs
    attention_probs_dropout_prob: float = 0.1  # dropout of attention weights
    layer_norm_eps: float = 1e-12  # added to the variance in each norm
    initializer_range: float = 0.02  # the standard deviation of random kernels and tables
    # Whether masked-LM logits use the table of the token embeddings.
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        validate_transformer(self)

    @property
    def max_length(self) -> int:
        """Returns the maximum sequence length in tokens, special tokens included."""
        return self.positions.max_length

    @property
    def head_width(self) -> int:
        """Returns K, the width of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def required_pad_token_id(self) -> int | None:
        """Returns the padding id from which positions are counted; None if any id will do."""
        positions = self.positions
        return positions.pad_token_id if isinstance(positions, PaddingOffsetPositions) else None

    @property
    def layers_at_depth(self) -> tuple[int, ...]:
        """Returns how many layers are applied at each depth, from the lowest.

        A depth is one layer, or all layers that share their parameters (see `tuning/freezing.py`).
        """
        return (1,) * self.num_hidden_layers

    @property
    def num_applied_layers(self) -> int:
        """Returns how many layers the forward pass applies."""
        return sum(self.layers_at_depth)

    @property
    def word_embedding_size(self) -> int:
        """Returns E, the width of the token embeddings, which is D unless they are factorized."""
        return self.hidden_size

    @property
    def sequence_pooling(self) -> Pooling:
        """Returns which vector of a sequence its heads read, unless they have a pooler."""
        return "first_token"

    def encoder_flops(self, seq_length: int) -> float:
        """Returns the forward FLOPs for one token: 2 for each multiply-add, matrix products only.

        The layers' parameters, and the projection E x D of factorized embeddings.
        """
        width, embedding_width = self.hidden_size, self.word_embedding_size
        projection = 0 if embedding_width == width else 2 * embedding_width * width
        return projection + self.layers_flops(seq_length)

    def layers_flops(self, seq_length: int) -> float:
        """Returns the forward FLOPs of all layers for one token.

        The kernels' FLOPs, and for attention 2 D each for the score and the context of every key
        (Chowdhery et al. 2022, appendix B, without the causal half).
        """
        kernels = 2 * self.num_applied_layers * self.kernel_params_per_layer
        return kernels + 4 * self.hidden_size * sum(self.attended_keys(seq_length))

    @property
    def kernel_params_per_layer(self) -> int:
        """Returns the number of parameters of the kernels by which a layer multiplies each token.

        The projections of queries and outputs, D x D, of keys and values, and the D x F
        kernels, without biases and norms.
        """
        width = self.hidden_size
        feed_forward = self.num_feed_forward_kernels * width * self.intermediate_size
        return 2 * width * (width + self.key_value_width) + feed_forward

    @property
    def key_value_width(self) -> int:
        """Returns the width of keys and values: D, less if several heads share each of them."""
        return self.hidden_size

    def attended_keys(self, seq_length: int) -> tuple[float, ...]:
        """Returns for each applied layer to how many keys a query attends, on average."""
        return (seq_length,) * self.num_applied_layers

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the activation of the masked-LM head: as in the feed-forward layers."""
        return self.hidden_act

    @property
    def masked_lm_size(self) -> int:
        """Returns the width between the two layers of a masked-LM head with "two_layers"."""
        return self.hidden_size

    @property
    def global_token_limit(self) -> int | None:
        """Returns how many tokens of a sequence can be global; None without such a limit."""
        return None

    def global_tokens(self, head: TaskHead | None) -> GlobalTokens | None:
        """Returns the tokens with global attention for a task head, or for pretraining if None.

        None is for families without global attention, and for tasks without such tokens.
        """
        del head
        return None


# A larger size is a mistake, which is better refused than found when memory runs out.
_LARGEST_SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "num_hidden_layers": 1000,
    "num_attention_heads": 2**16,
    "intermediate_size": 2**22,
}
_LARGEST_SEQUENCE = 2**24
_LARGEST_MODEL = 10**13


def validate_transformer(config: TransformerConfig) -> None:
    """Raises a ConfigError that names the first size or dropout rate that cannot be used."""
    for name, limit in _LARGEST_SIZES.items():
        check_size(f"model.{name}", getattr(config, name), limit)
    # A family without token types has a table of 0 rows, which is none.
    check_size("model.type_vocab_size", config.type_vocab_size, 2**16, smallest=0)
    check_size(
        "model.positions.max_position_embeddings",
        config.positions.max_position_embeddings,
        _LARGEST_SEQUENCE,
    )
    if config.positions.max_length < 1:
        raise ConfigError(
            "model.positions.max_position_embeddings is "
            f"{config.positions.max_position_embeddings}, which leaves no position for a token"
        )
    layer_params = config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    num_params = config.num_hidden_layers * layer_params + config.vocab_size * config.hidden_size
    if num_params > _LARGEST_MODEL:
        raise ConfigError(
            f"the model has {num_params:.2g} parameters, expected at most {_LARGEST_MODEL:.0e}; "
            "check model.hidden_size, intermediate_size, num_hidden_layers and vocab_size"
        )
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"model.hidden_size {config.hidden_size} is not a multiple of "
            f"model.num_attention_heads {config.num_attention_heads}"
        )
    if isinstance(config.positions, RotaryPositions):
        check_rotary_heads(config)
    check_dropout("model.hidden_dropout_prob", config.hidden_dropout_prob)
    check_dropout("model.attention_probs_dropout_prob", config.attention_probs_dropout_prob)
    for name in ("layer_norm_eps", "initializer_range"):
        check_range(f"model.{name}", getattr(config, name), at_least=0)


def check_rotary_heads(config: TransformerConfig) -> None:
    """Raises a ConfigError if rotary positions cannot rotate the heads in pairs of elements."""
    if config.head_width % 2:
        raise ConfigError(
            f"model.hidden_size {config.hidden_size} over {config.num_attention_heads} heads gives "
            "heads of an odd width, but rotary positions rotate pairs of elements"
        )


def check_key_value_heads(num_attention_heads: int, num_key_value_heads: int) -> None:
    """Raises a ConfigError unless equally many heads of queries share each head of keys."""
    check_size("model.num_key_value_heads", num_key_value_heads, num_attention_heads)
    if num_attention_heads % num_key_value_heads:
        raise ConfigError(
            f"model.num_key_value_heads is {num_key_value_heads}, expected a divisor of "
            f"model.num_attention_heads, which is {num_attention_heads}"
        )


def check_token_id(field: str, token_id: int, vocab_size: int) -> None:
    """Raises a ConfigError unless a token id is one of a model's vocabulary."""
    if not 0 <= token_id < vocab_size:
        raise ConfigError(
            f"{field} {token_id} is not an id below objective.model.vocab_size {vocab_size}"
        )


def check_size(field: str, value: object, limit: int, smallest: int = 1) -> None:
    """Raises a ConfigError unless a value is an integer in a range."""
    # `type` and not `isinstance`: True is an instance of int.
    if type(value) is not int or not smallest <= value <= limit:
        raise ConfigError(f"{field} is {value!r}, expected an integer from {smallest} to {limit:,}")
