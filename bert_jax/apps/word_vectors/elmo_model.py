"""Defines ELMo (Peters et al. 2018): characters to words, and language models in both directions.

Differences from the authors' program: words are in lower case, there is no dropout, and cells are
not clipped. C is the number of cells, P the size of projections, M the characters of a word.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError, check_range
from bert_jax.losses import WeightedMean, cross_entropy
from bert_jax.objectives.base import Batch, LossOutput, Objective
from bert_jax.params.functional import Network, Params

NUM_LAYERS = 2


@dataclass(frozen=True, kw_only=True)
class ElmoConfig:
    """Configures the network; the paper's has 512 for P and 4,096 for C.

    Attributes:
      vocab_size: V, the words that the language models predict.
      num_characters: rows of the table of characters.
      character_size: components of the vector of a character.
      filters: (width, number) of the convolutions over characters.
      num_highway_layers: layers between convolutions and projection.
      projection_size: P, the size of a word and of the state of one direction.
      cell_size: C.
      max_word_length: M, with the two marks at the ends of a word.
    """

    vocab_size: int
    num_characters: int
    character_size: int = 16
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 64), (5, 64))
    num_highway_layers: int = 2
    projection_size: int = 128
    cell_size: int = 512
    max_word_length: int = 20

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_characters", "projection_size", "cell_size"):
            check_range(name, getattr(self, name), at_least=1)
        if not self.filters or max(width for width, _ in self.filters) > self.max_word_length:
            raise ConfigError(
                f"filters is {self.filters}; expected widths up to {self.max_word_length}, the "
                "characters of a word"
            )


class Dense(nnx.Module):
    """Computes x @ kernel + bias in float32; `bias` is its initial value, None for no bias."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs, bias: float | None = 0.0):
        init = jax.nn.initializers.lecun_normal()
        self.kernel = nnx.Param(init(rngs.params(), (inputs, outputs), jnp.float32))
        self.has_bias = bias is not None
        if bias is not None:
            self.bias = nnx.Param(jnp.full((outputs,), bias, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        product = x @ self.kernel[...]
        return product + self.bias[...] if self.has_bias else product


class CharacterEncoder(nnx.Module):
    """Computes the vectors of words from their characters (Kim et al. 2016, with ReLU).

    Convolutions, maximum over positions, highway layers, projection.
    """

    def __init__(self, config: ElmoConfig, rngs: nnx.Rngs):
        size, total = config.character_size, sum(number for _, number in config.filters)
        init = jax.nn.initializers.normal(1.0)
        shape = config.num_characters, size
        self.embedding = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.convolutions = nnx.List(
            [Dense(width * size, number, rngs) for width, number in config.filters]
        )
        # A gate that is almost closed at first lets a word through unchanged, as in the original.
        self.gates = nnx.List(
            [Dense(total, total, rngs, bias=-2.0) for _ in range(config.num_highway_layers)]
        )
        self.transforms = nnx.List(
            [Dense(total, total, rngs) for _ in range(config.num_highway_layers)]
        )
        self.projection = Dense(total, config.projection_size, rngs)
        self.widths = tuple(width for width, _ in config.filters)

    def __call__(self, characters: jax.Array) -> jax.Array:
        """Maps character ids, int32 [..., M], to vectors of words, [..., P]."""
        embedded = self.embedding[...][characters]
        length, pooled = characters.shape[-1], list[jax.Array]()
        for width, convolution in zip(self.widths, self.convolutions, strict=True):
            shifted = [embedded[..., i : length - width + 1 + i, :] for i in range(width)]
            pooled.append(convolution(jnp.concatenate(shifted, axis=-1)).max(axis=-2))
        x = jax.nn.relu(jnp.concatenate(pooled, axis=-1))
        for gate, transform in zip(self.gates, self.transforms, strict=True):
            opening = jax.nn.sigmoid(gate(x))
            x = opening * jax.nn.relu(transform(x)) + (1.0 - opening) * x
        return self.projection(x)


class ProjectedLSTM(nnx.Module):
    """Runs an LSTM with a projection of its output (Sak et al. 2014) over a sequence."""

    def __init__(self, config: ElmoConfig, rngs: nnx.Rngs, *, backward: bool):
        size, cells = config.projection_size, config.cell_size
        self.gates = Dense(2 * size, 4 * cells, rngs)
        self.projection = Dense(cells, size, rngs, bias=None)
        self.backward = backward

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps [B, L, P] to [B, L, P]; where the mask, int32 [B, L], is 0, the state is zero.

        The order of the gates is input, forget, candidate, output.
        """

        def step(
            state: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            (hidden, cells), (word, is_word) = state, inputs
            gates = self.gates(jnp.concatenate([word, hidden], axis=-1))
            enter, forget, candidate, output = jnp.split(gates, 4, axis=-1)
            # One more for the forget gate: a new network remembers.
            cells = jax.nn.sigmoid(forget + 1.0) * cells
            cells = (cells + jax.nn.sigmoid(enter) * jnp.tanh(candidate)) * is_word
            hidden = self.projection(jax.nn.sigmoid(output) * jnp.tanh(cells)) * is_word
            return (hidden, cells), hidden

        by_time = jnp.swapaxes(x, 0, 1), jnp.swapaxes(mask, 0, 1)[..., None].astype(jnp.float32)
        size = x.shape[0], self.projection.kernel.shape[0]
        start = jnp.zeros_like(x[:, 0]), jnp.zeros(size, jnp.float32)
        _, outputs = jax.lax.scan(step, start, by_time, reverse=self.backward)
        return jnp.swapaxes(outputs, 0, 1)


class Elmo(nnx.Module):
    """Computes the layers of ELMo, and the logits of both language models.

    Both directions share the encoder of characters and the softmax.
    """

    def __init__(self, config: ElmoConfig, rngs: nnx.Rngs):
        self.characters = CharacterEncoder(config, rngs)
        lstm = functools.partial(ProjectedLSTM, config, rngs)
        self.forward_layers = nnx.List([lstm(backward=False) for _ in range(NUM_LAYERS)])
        self.backward_layers = nnx.List([lstm(backward=True) for _ in range(NUM_LAYERS)])
        self.softmax = Dense(config.projection_size, config.vocab_size, rngs)

    def __call__(self, characters: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes the layers of both directions.

        Args:
          characters: int32 [B, L, M].
          mask: int32 [B, L], 1 for words and 0 for padding at the end.

        Returns:
          The states of the forward and of the backward model, each [B, L, 3, P]; layer 0 is the
          vectors of words. The second LSTM is added to the first, a residual connection.
        """
        words = self.characters(characters)
        directions = list[jax.Array]()
        for first, second in (self.forward_layers, self.backward_layers):
            lower = first(words, mask)
            directions.append(jnp.stack([words, lower, lower + second(lower, mask)], axis=2))
        return directions[0], directions[1]

    def losses(self, batch: Batch) -> jax.Array:
        """Returns -log P of each next and each previous word, float32 [2, B, L - 1]."""
        forward, backward = self(batch["characters"], batch["attention_mask"])
        labels = batch["labels"]
        following = cross_entropy(self.softmax(forward[:, :-1, -1]), labels[:, 1:])
        previous = cross_entropy(self.softmax(backward[:, 1:, -1]), labels[:, :-1])
        return jnp.stack([following, previous])


def scalar_mix(layers: jax.Array, weights: jax.Array, gamma: jax.Array) -> jax.Array:
    """Returns gamma * sum_j softmax(weights)_j layers_j, equation 1 of the paper.

    Args:
      layers: [..., N, D].
      weights: [N].
      gamma: scalar.
    """
    return gamma * jnp.einsum("...nd,n->...d", layers, jax.nn.softmax(weights))


class ElmoObjective(Objective):
    """Minimizes the mean of -log P over the words that both language models predict.

    The softmax is over all V words, not over samples as in the paper.
    """

    makes_encoder = False

    def __init__(self, config: ElmoConfig):
        self.config = config
        self.network = Network(lambda rngs: Elmo(config, rngs))

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields: characters [B, L, M], attention_mask and labels [B, L]."""
        return ("characters", "attention_mask", "labels")

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of predictions."""
        return {"lm": _prediction_mask(batch).sum(dtype=jnp.float32)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss; there is no dropout."""
        del dropout_key
        mask = _prediction_mask(batch)
        total = jnp.sum(self.network.merge(params).losses(batch) * mask)
        mean = WeightedMean(total, mask.sum(dtype=jnp.float32))
        return LossOutput(total / loss_denominators["lm"], {"lm_loss": mean})


def _prediction_mask(batch: Batch) -> jax.Array:
    """Returns 1 where both neighbors are words, float32 [2, B, L - 1]."""
    mask = batch["attention_mask"].astype(jnp.float32)
    pair = mask[:, 1:] * mask[:, :-1]
    return jnp.stack([pair, pair])
