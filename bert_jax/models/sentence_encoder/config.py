"""Defines what turns hidden states of tokens into vectors of a text: dense, sparse or multi-vector.

    SentenceEncoderConfig       one dense vector: pooling, dense layers, normalization
    SparseEncoderConfig         a weight for each token of the vocabulary (SPLADE)
    MultiVectorEncoderConfig    a vector for each token of the text (ColBERT)

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

TextRole = Literal["query", "document"]
"""What a text is in a search, for encoders that treat queries and documents differently."""
TEXT_ROLES: tuple[TextRole, ...] = get_args(TextRole)

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
class TextEncoderConfig:
    """Configures how texts are given to an encoder of texts of any kind.

    Attributes:
      max_seq_length: texts are truncated to so many tokens, special tokens included; None is the
        longest length of the encoder.
      prompts: the prompts that can be chosen by name.
      default_prompt_name: the prompt that is used if none is chosen; None is no prompt.
    """

    max_seq_length: int | None = None
    prompts: tuple[Prompt, ...] = ()
    default_prompt_name: str | None = None

    def __post_init__(self) -> None:
        if self.max_seq_length is not None:
            check_range("sentence_encoder.max_seq_length", self.max_seq_length, at_least=3)
        names = [prompt.name for prompt in self.prompts]
        if duplicates := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ConfigError(f"sentence_encoder.prompts has {duplicates[0]!r} more than once")
        if self.default_prompt_name is not None and self.default_prompt_name not in names:
            raise ConfigError(
                f"sentence_encoder.default_prompt_name is {self.default_prompt_name!r}, expected "
                f"one of {', '.join(map(repr, names)) or 'the prompts, of which there is none'}"
            )

    def prompt_of_role(self, role: TextRole) -> str:
        """Returns the prompt of queries or documents; "" if the model has none for them."""
        # sentence-transformers uses the first of these names that a model has.
        names = ("query",) if role == "query" else ("document", "passage", "corpus")
        texts = {prompt.name: prompt.text for prompt in self.prompts}
        found = next((name for name in names if name in texts), self.default_prompt_name)
        return texts[found] if found is not None else ""


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig(TextEncoderConfig):
    """Configures one dense vector for each text: what follows the encoder.

    Attributes:
      pooling: the vectors of several modes are concatenated in the order given.
      include_prompt: whether the tokens of the prompt are pooled like the text's tokens.
      modules: applied to the pooled vector in this order.
      similarity: how vectors of this model are compared.
      truncate_dim: the number of leading components of a vector that are used; None is all. The
        vector is not normalized again.
    """

    pooling: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True
    modules: tuple[SentenceModule, ...] = ()
    similarity: Similarity = "cosine"
    truncate_dim: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.truncate_dim is not None:
            check_range("sentence_encoder.truncate_dim", self.truncate_dim, at_least=1)

    def embedding_size(self, hidden_size: int) -> int:
        """Returns the number of components of a vector before truncation to `truncate_dim`.

        Args:
          hidden_size: D of the encoder.

        Raises:
          ConfigError: a dense layer does not fit the vector that it reads, or `truncate_dim` is
            larger than the result.
        """
        size = _size_after_modules(self.modules, len(self.pooling) * hidden_size)
        if self.truncate_dim is not None and self.truncate_dim > size:
            raise ConfigError(
                f"sentence_encoder.truncate_dim is {self.truncate_dim}, but vectors have {size} "
                "components"
            )
        return size


def _size_after_modules(modules: tuple[SentenceModule, ...], size: int) -> int:
    """Returns the components of a vector of `size` after the modules; ConfigError if none fits."""
    for index, module in enumerate(modules):
        if isinstance(module, Dense):
            if module.in_features != size:
                raise ConfigError(
                    f"sentence_encoder.modules[{index}]: Dense has in_features "
                    f"{module.in_features}, but its input has {size} components"
                )
            size = module.out_features
    return size


SparsePooling = Literal["max", "sum"]
"""How the weights of a vocabulary's token at all positions of a text become one.

max    the maximum (SPLADE v2, Formal et al. 2021, "SPLADE v2: Sparse Lexical and Expansion Model")
sum    the sum (SPLADE, Formal et al. 2021)
"""
SPARSE_POOLINGS: tuple[SparsePooling, ...] = get_args(SparsePooling)

SparseActivation = Literal["relu", "log1p_relu"]
"""What saturates a masked-LM logit x before the pooling.

relu          log(1 + relu(x)) (SPLADE)
log1p_relu    log(1 + log(1 + relu(x))) (Geng et al. 2025, "Exploring l0 Sparsification for
              Inference-free Sparse Retrievers")
"""
SPARSE_ACTIVATIONS: tuple[SparseActivation, ...] = get_args(SparseActivation)


@dataclass(frozen=True, kw_only=True)
class SparseEncoderConfig(TextEncoderConfig):
    """Configures a weight for each token of the vocabulary, from the masked-LM head (SPLADE).

    Attributes:
      pooling: how the positions of a text are combined.
      activation: what saturates the logits.
      has_static_queries: whether a query has a learned weight for each of its tokens, independent
        of the other tokens, instead of running the encoder (inference-free queries).
      query_length: static queries are truncated to so many tokens; None is `max_seq_length`.
      max_active_dims: the number of largest weights that are kept; None is all.
      similarity: how vectors of this model are compared.
    """

    pooling: SparsePooling = "max"
    activation: SparseActivation = "relu"
    has_static_queries: bool = False
    query_length: int | None = None
    max_active_dims: int | None = None
    similarity: Similarity = "dot"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_active_dims is not None:
            check_range("sentence_encoder.max_active_dims", self.max_active_dims, at_least=1)


ExpansionStrategy = Literal["fixed", "min"]
"""Which queries are extended with expansion tokens, and which are truncated.

fixed    every query has exactly the length of the expansion
min      shorter queries are extended to that length, longer ones are not truncated to it
"""
EXPANSION_STRATEGIES: tuple[ExpansionStrategy, ...] = get_args(ExpansionStrategy)

LateInteraction = Literal["maxsim", "meanmaxsim"]
"""How the vectors of a query and of a document are compared.

maxsim        for each vector of the query the largest dot product with a vector of the document,
              summed (Khattab and Zaharia 2020, "ColBERT", section 3.3)
meanmaxsim    the same, divided by the number of vectors of the query
"""
LATE_INTERACTIONS: tuple[LateInteraction, ...] = get_args(LateInteraction)


@dataclass(frozen=True, kw_only=True)
class QueryExpansion:
    """Configures the tokens that follow a query, whose vectors count like those of its own tokens.

    Attributes:
      length: tokens of a query after the expansion.
      token_id: the token, usually the mask.
      is_attended: whether the other tokens attend to the expansion; it attends to them always.
    """

    length: int
    token_id: int
    is_attended: bool = False
    strategy: ExpansionStrategy = "fixed"  # see `ExpansionStrategy`

    def __post_init__(self) -> None:
        check_range("sentence_encoder.expansion.length", self.length, at_least=3)
        check_range("sentence_encoder.expansion.token_id", self.token_id, at_least=0)


@dataclass(frozen=True, kw_only=True)
class MultiVectorEncoderConfig(TextEncoderConfig):
    """Configures a vector for each token of a text (ColBERT, Khattab and Zaharia 2020).

    Attributes:
      modules: applied to each hidden state in this order.
      query_length: queries are truncated to so many tokens; None is `max_seq_length`.
      document_length: documents are truncated to so many tokens; None is `max_seq_length`.
      expansion: the tokens that follow queries; None for none.
      has_prefix_tokens: whether a prompt that is a token of the vocabulary is read as this token,
        even if the tokenizer would split it, such as "[unused0]" before queries.
      skip_token_ids: tokens without a vector, such as punctuation.
      skip_roles: the texts in which these tokens have no vector.
      similarity: how vectors of this model are compared.
    """

    modules: tuple[SentenceModule, ...] = (Normalize(),)
    query_length: int | None = None
    document_length: int | None = None
    expansion: QueryExpansion | None = None
    has_prefix_tokens: bool = False
    skip_token_ids: tuple[int, ...] = ()
    skip_roles: tuple[TextRole, ...] = ("document",)
    similarity: LateInteraction = "maxsim"

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("query_length", "document_length"):
            if (length := getattr(self, field)) is not None:
                check_range(f"sentence_encoder.{field}", length, at_least=3)

    def embedding_size(self, hidden_size: int) -> int:
        """Returns the components of a vector; ConfigError if a dense layer does not fit."""
        return _size_after_modules(self.modules, hidden_size)

    def length_of_role(self, role: TextRole, longest: int) -> int:
        """Returns to how many tokens queries or documents are truncated.

        Args:
          longest: the longest length of the encoder.
        """
        length = self.query_length if role == "query" else self.document_length
        length = length or self.max_seq_length or longest
        if role == "query" and self.expansion is not None:
            fixed = self.expansion.strategy == "fixed"
            length = self.expansion.length if fixed else max(length, self.expansion.length)
        return min(length, longest)


EmbeddingConfig = SentenceEncoderConfig | SparseEncoderConfig | MultiVectorEncoderConfig
"""The kinds of encoders of texts."""
