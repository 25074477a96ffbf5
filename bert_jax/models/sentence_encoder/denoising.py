"""Reconstructs a text from its vector alone: the decoder of TSDAE (Wang et al. 2021).

The parameters are the encoder's, those of its masked-LM head and of `SentenceHead`, and
"reconstruction/<layer>/{value,output,norm}".
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import AlibiPositions, ComputeConfig, RotaryPositions
from bert_jax.models.layers.dropout import DropoutSeed, dropout, make_layer_dropout_seeds
from bert_jax.models.layers.linear import layer_norm, linear
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, PostNormBlock
from bert_jax.models.layers.transformer import EncoderInputs
from bert_jax.models.model import Batch
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.models.sentence_encoder.network import SentenceEncoder
from bert_jax.params.functional import Network


class VectorAttention(nnx.Module):
    """Attends from each token to one vector, with residual and norm.

    The softmax over a single key is 1, so queries and keys have no effect and no parameters.
    """

    def __init__(self, config: EncoderConfig, size: int, compute: ComputeConfig, rngs: nnx.Rngs):
        """Initializes all parameters; `size` is E."""
        D = config.hidden_size
        self.value = linear(size, D, config, compute, rngs)
        self.output = linear(D, D, config, compute, rngs)
        self.norm = layer_norm(config, compute)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self, x_BLD: jax.Array, vectors_BE: jax.Array, seed: DropoutSeed | None
    ) -> jax.Array:
        """Maps [B, L, D] to [B, L, D]."""
        out_BD = self.output(self.value(vectors_BE.astype(x_BLD.dtype)))
        out_BLD = jnp.broadcast_to(out_BD[:, None], x_BLD.shape)
        return self.norm.add(x_BLD, dropout(out_BLD, self.dropout_rate, seed))


class DenoisingAutoEncoder(SentenceEncoder):
    """Adds a decoder to a sentence encoder that has the weights of its layers."""

    def __init__(
        self,
        config: EncoderConfig,
        sentence_config: SentenceEncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        """Initializes all parameters; ConfigError if the encoder has not the layers of BERT."""
        super().__init__(config, sentence_config, compute, rngs, heads=("masked_lm",))
        if (
            not isinstance(self.encoder, BertEncoder)
            or type(self.encoder.layers[0]) is not PostNormBlock
            or isinstance(self.encoder.positions, AlibiPositions | RotaryPositions)
        ):
            raise ConfigError(
                f"objective.loss is DenoisingAutoEncoderLoss (--loss tsdae), whose decoder has the "
                f"layers and positions of BERT, but the model is a {type(config).__name__}; "
                "expected BERT, RoBERTa, ELECTRA or DistilBERT, or another loss"
            )
        size = sentence_config.embedding_size(config.hidden_size)
        self.reconstruction = nnx.List(
            VectorAttention(config, size, compute, rngs) for _ in self.encoder.layers
        )

    def reconstruct(
        self, vectors_BE: jax.Array, texts: Batch, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Computes the logits of the token after each position, float32 [B, L, V].

        Args:
          vectors_BE: float32 [B, E], the vectors of the texts without some of their words.
          texts: the encoder's fields of the whole texts, int32 [B, L].
          dropout_key: None to apply no dropout.
        """
        encoder = self.encoder
        assert isinstance(encoder, BertEncoder)
        inputs = EncoderInputs(
            texts["input_ids"], texts["token_type_ids"], texts["attention_mask"], causal=True
        )
        mask = inputs.mask()
        num_sites = NUM_DROPOUT_SITES + 1
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(encoder.layers), num_sites
        )
        x_BLD = encoder.embed(inputs, embedding_seed)
        for number, layer in enumerate(encoder.layers):
            seeds = (None,) * num_sites if layer_seeds is None else layer_seeds[number]
            attention_seed, residual_seed, vector_seed, feed_forward_seed = seeds
            out_BLD, _ = layer.attention(x_BLD, mask, attention_seed)
            out_BLD = dropout(out_BLD, layer.dropout_rate, residual_seed)
            x_BLD = layer.attention_norm.add(x_BLD, out_BLD)
            x_BLD = self.reconstruction[number](x_BLD, vectors_BE, vector_seed)
            out_BLD = dropout(layer.feed_forward(x_BLD), layer.dropout_rate, feed_forward_seed)
            x_BLD = layer.feed_forward_norm.add(x_BLD, out_BLD)
        return self.masked_lm_logits(x_BLD).astype(jnp.float32)


@functools.cache
def build_denoising_auto_encoder(
    config: EncoderConfig,
    sentence_config: SentenceEncoderConfig,
    compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
) -> Network[DenoisingAutoEncoder]:
    """Returns a sentence encoder with its decoder as pure functions over its parameters."""
    return Network(lambda rngs: DenoisingAutoEncoder(config, sentence_config, compute, rngs))
