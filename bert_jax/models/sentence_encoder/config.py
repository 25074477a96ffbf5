"""Defines the config of a sentence encoder: what turns hidden states of tokens into one vector.

Names are as in sentence-transformers. Imports no jax.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.layers.config import Activation

SENTENCE_HEAD = "sentence_head"
"""The name of pooling and what follows it in the parameters."""

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""How the hidden states of the tokens of a text, [CLS] and [SEP] included, become one vector.

cls                    the first token
max                    the maximum of each component
mean                   the mean
mean_sqrt_len_tokens   the sum, divided by the square root of the number of tokens
weightedmean           the mean, weighted with the position, from 1
lasttoken              the last token
"""
POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""The similarity of two vectors; of the two distances, the negative."""
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)

LARGEST_EMBEDDING = 2**16
"""A wider embedding than this is a mistake, which is refused before memory runs out."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Configures a dense layer over the pooled vector: linear, activation (None: identity)."""

    in_features: int  # components of the vector that it reads
    out_features: int  # components of its output
    bias: bool = True  # whether a bias is added
    activation: Activation | None = "tanh"  # after the linear layer; None: none

    def __post_init__(self) -> None:
        name = "sentence_encoder.modules: Dense"
        for field in ("in_features", "out_features"):
            size = getattr(self, field)
            check_range(f"{name}.{field}", size, at_least=1, at_most=LARGEST_EMBEDDING)


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Divides the vector by its Euclidean norm."""


SentenceModule = Dense | Normalize
"""A module after the pooling."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Names a text that is put before a text to embed, such as "query: "."""

    name: str  # as in "query", by which `prompt_name` chooses it
    text: str  # what is put before the text


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig:
    """Configures what follows the encoder, and how texts are given to it.

    Attributes:
      pooling: the vectors of several modes are concatenated in the order given.
      include_prompt: whether the tokens of the prompt are pooled like the text's tokens.
      modules: applied to the pooled vector in this order.
      max_seq_length: texts are truncated to so many tokens, special tokens included; None is the
        longest length of the encoder.
      prompts: the prompts that can be chosen by name.
      default_prompt_name: the prompt that is used if none is chosen; None is no prompt.
      similarity: how vectors of this model are compared.
      truncate_dim: the number of leading components of a vector that are used; None is all. The
        vector is not normalized again.
    """

    pooling: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True
    modules: tuple[SentenceModule, ...] = ()
    max_seq_length: int | None = None
    prompts: tuple[Prompt, ...] = ()
    default_prompt_name: str | None = None
    similarity: Similarity = "cosine"
    truncate_dim: int | None = None

    def __post_init__(self) -> None:
        if not self.pooling:
            raise ConfigError(
                f"sentence_encoder.pooling is empty, expected one of {', '.join(POOLING_MODES)}"
            )
        for mode in self.pooling:
            if mode not in POOLING_MODES:
                raise ConfigError(
                    f"sentence_encoder.pooling is {mode!r}, expected one of "
                    f"{', '.join(POOLING_MODES)}"
                )
        if self.max_seq_length is not None:
            check_range("sentence_encoder.max_seq_length", self.max_seq_length, at_least=3)
        if self.truncate_dim is not None:
            check_range("sentence_encoder.truncate_dim", self.truncate_dim, at_least=1)
        names = [prompt.name for prompt in self.prompts]
        if duplicates := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ConfigError(f"sentence_encoder.prompts has {duplicates[0]!r} more than once")
        if self.default_prompt_name is not None and self.default_prompt_name not in names:
            raise ConfigError(
                f"sentence_encoder.default_prompt_name is {self.default_prompt_name!r}, expected "
                f"one of {', '.join(map(repr, names)) or 'the prompts, of which there is none'}"
            )

    def embedding_size(self, hidden_size: int) -> int:
        """Returns the number of components of a vector before truncation to `truncate_dim`.

        Args:
          hidden_size: D of the encoder.

        Raises:
          ConfigError: a dense layer does not fit the vector that it reads, or `truncate_dim` is
            larger than the result.
        """
        size = len(self.pooling) * hidden_size
        for index, module in enumerate(self.modules):
            if isinstance(module, Dense):
                if module.in_features != size:
                    raise ConfigError(
                        f"sentence_encoder.modules[{index}]: Dense has in_features "
                        f"{module.in_features}, but its input has {size} components"
                    )
                size = module.out_features
        if self.truncate_dim is not None and self.truncate_dim > size:
            raise ConfigError(
                f"sentence_encoder.truncate_dim is {self.truncate_dim}, but vectors have {size} "
                "components"
            )
        return size
