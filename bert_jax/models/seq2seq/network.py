"""Defines the network of encoder-decoders: two stacks of layers, and the logits of the next token.

The parameters are a nested dict:

    {"shared": {...}, "encoder": {"layers": {"0": {...}}, ...}, "decoder": {...}, "lm_head": {...}}

`shared` is the table of token embeddings of both stacks; `lm_head` exists if the logits have a
table of their own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.layers.attention import AttentionMask, make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, make_layer_dropout_seeds
from bert_jax.models.layers.linear import EmbeddingTable
from bert_jax.models.layers.matmul import dense_transposed
from bert_jax.models.layers.stack import run_layers
from bert_jax.models.seq2seq.block import (
    NUM_DROPOUT_SITES,
    Block,
    KeysValues,
    LayerCache,
    LayerInputs,
)
from bert_jax.models.seq2seq.config import Seq2SeqTransformerConfig


class Source(NamedTuple):
    """Holds what decoding needs of encoded sources.

    Attributes:
      keys_values: of cross-attention, for each decoder layer.
      attention_mask: int32 [B, L], 1 = real token.
    """

    keys_values: tuple[KeysValues, ...]
    attention_mask: jax.Array


Cache = tuple[LayerCache, ...]
"""The keys and values of the tokens that the decoder has read, for each layer."""


class Stack(nnx.Module):
    """Runs the layers of an encoder or a decoder; each family extends it.

    Attributes:
      layers: the `Block`s.
    """

    layers: nnx.List[Block]
    compute: ComputeConfig

    def embed(
        self,
        vectors_BLD: jax.Array,
        position_ids: jax.Array | None,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """Makes the input of the first layer from token embeddings, float32 [B, L, D].

        Args:
          position_ids: int32 [B, L] or [1, L]; None for 0, 1, 2, ...
        """
        raise NotImplementedError

    def mask(self, mask: AttentionMask, length: int) -> AttentionMask:
        """Returns the mask of self-attention with the family's bias, float32 [1, H, L, L]."""
        raise NotImplementedError

    def bias_at(self, position: jax.Array, length: int) -> jax.Array:
        """Returns the row of the bias of one query, float32 [H, L] or [1, L]."""
        raise NotImplementedError

    def finish(self, x: jax.Array, dropout_seed: DropoutSeed | None) -> jax.Array:
        """Applies what follows the last layer."""
        raise NotImplementedError

    def __call__(
        self,
        vectors_BLD: jax.Array,
        position_ids: jax.Array | None,
        inputs: LayerInputs,
        dropout_key: jax.Array | None,
        *,
        output_hidden_states: bool,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Runs the stack on token embeddings [B, L, D].

        Returns:
          The output, and the hidden states, which are () unless `output_hidden_states`.
        """
        layer_seeds, (embedding_seed, final_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(self.layers), NUM_DROPOUT_SITES
        )
        embedded = self.embed(vectors_BLD, position_ids, embedding_seed)
        inputs = inputs._replace(mask=self.mask(inputs.mask, vectors_BLD.shape[1]))
        run = run_layers(
            self.layers,
            self.compute,
            embedded,
            inputs,
            layer_seeds,
            output_hidden_states=output_hidden_states,
        )
        output = self.finish(run.last_hidden_state, final_seed)
        return output, run.hidden_states and (*run.hidden_states[:-1], output)


class EncoderDecoderOutput(NamedTuple):
    """Holds what an encoder-decoder returns; field names are Hugging Face's.

    Attributes:
      last_hidden_state: of the decoder, [B, T, D].
      encoder_last_hidden_state: [B, L, D].
      decoder_hidden_states: the input of the first layer and then the output of each layer, arrays
        [B, T, D], the last one after the final norm; () unless `output_hidden_states`.
      encoder_hidden_states: the same of the encoder, [B, L, D].
    """

    last_hidden_state: jax.Array
    encoder_last_hidden_state: jax.Array
    decoder_hidden_states: tuple[jax.Array, ...] = ()
    encoder_hidden_states: tuple[jax.Array, ...] = ()


class EncoderDecoder(nnx.Module):
    """Maps sources and targets so far to hidden states of the next target tokens."""

    def __init__(
        self,
        config: Seq2SeqTransformerConfig,
        compute: ComputeConfig,
        encoder: Stack,
        decoder: Stack,
        *,
        table_init: nnx.Initializer,
        rngs: nnx.Rngs,
    ):
        """Builds the tables of token embeddings around two stacks of a family."""
        self.shared = _table(config, table_init, rngs)
        self.encoder, self.decoder = encoder, decoder
        if not config.tie_word_embeddings:
            self.lm_head = _table(config, table_init, rngs)
        self.config, self.compute = config, compute

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        decoder_input_ids: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        decoder_position_ids: jax.Array | None = None,
        decoder_packing_ids: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
        output_hidden_states: bool = False,
    ) -> EncoderDecoderOutput:
        """Runs both stacks on int32 fields [B, L] and [B, T], which `bert_jax/batch.py` describes.

        Args:
          attention_mask: None if no token of the source is padding.
          decoder_input_ids: the targets, shifted right behind `decoder_start_token_id`. Padding
            follows a target, so causal attention hides it.
          position_ids, packing_ids: of packed sources; None if rows are not packed.
          decoder_position_ids, decoder_packing_ids: the same of the targets. A target attends to
            the source with the same id.
          dropout_key: None to apply no dropout.
        """
        assert decoder_input_ids is not None, "the decoder needs decoder_input_ids"
        if (packing_ids is None) != (decoder_packing_ids is None):
            raise ValueError("packing_ids and decoder_packing_ids must be given together")
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        encoder_key, decoder_key = (
            (None, None) if dropout_key is None else jax.random.split(dropout_key)
        )
        encoder_hidden, encoder_states = self.encoder(
            self.shared(input_ids),
            position_ids,
            LayerInputs(make_attention_mask(attention_mask, packing_ids, causal=False)),
            encoder_key,
            output_hidden_states=output_hidden_states,
        )
        target_mask = jnp.ones_like(decoder_input_ids)
        cross_mask = _cross_mask(attention_mask)
        if packing_ids is not None and decoder_packing_ids is not None:
            # Sources and targets are packed in the same plan, so equal ids belong together.
            cross_mask = AttentionMask(decoder_packing_ids, packing_ids, causal=False)
        decoder_hidden, decoder_states = self.decoder(
            self.shared(decoder_input_ids),
            decoder_position_ids,
            LayerInputs(
                make_attention_mask(target_mask, decoder_packing_ids, causal=True),
                cross_mask,
                encoder_hidden,
            ),
            decoder_key,
            output_hidden_states=output_hidden_states,
        )
        return EncoderDecoderOutput(decoder_hidden, encoder_hidden, decoder_states, encoder_states)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Maps hidden states of the decoder [..., D] to logits of tokens, float32 [..., V]."""
        table = self.shared if self.config.tie_word_embeddings else self.lm_head
        return dense_transposed(hidden, table.embedding[...], None, jnp.dtype(self.compute.dtype))

    def encode(self, input_ids: jax.Array, attention_mask: jax.Array) -> Source:
        """Encodes sources, int32 [B, L], for generation."""
        hidden, _ = self.encoder(
            self.shared(input_ids),
            None,
            LayerInputs(make_attention_mask(attention_mask, None, causal=False)),
            None,
            output_hidden_states=False,
        )
        # Computed once for each source: no token that is generated changes them.
        keys_values = tuple(
            layer.cross_attention.keys_values(hidden) for layer in self.decoder.layers
        )
        return Source(keys_values, attention_mask)

    def empty_cache(self, batch_size: int, num_sequences: int, length: int) -> Cache:
        """Returns a cache for `num_sequences` sequences of each source, of at most `length`."""
        config = self.config
        shape = (batch_size, num_sequences, config.num_attention_heads, length, config.head_width)
        zeros = jnp.zeros(shape, jnp.dtype(self.compute.dtype))
        return tuple(LayerCache(zeros, zeros) for _ in self.decoder.layers)

    def decode(
        self, token_ids: jax.Array, position: jax.Array, cache: Cache, source: Source
    ) -> tuple[jax.Array, Cache]:
        """Reads the token at one position of Q sequences of each source.

        Args:
          token_ids: int32 [B, Q].
          position: int32 [], from 0; the cache has the tokens before it.

        Returns:
          The logits of the next token, float32 [B, Q, V], and the cache with this token.
        """
        length = cache[0].keys.shape[3]
        x = self.decoder.embed(self.shared(token_ids), position[None, None], None)
        bias = jnp.where(
            jnp.arange(length) <= position,
            self.decoder.bias_at(position, length),
            # The cache has its full length from the start; positions that are not written yet are
            # hidden.
            jnp.finfo(jnp.float32).min,
        )
        written: list[LayerCache] = []
        cross_mask = _cross_mask(source.attention_mask)
        for layer, layer_cache, keys_values in zip(
            self.decoder.layers, cache, source.keys_values, strict=True
        ):
            x, layer_cache = layer.decode(x, position, layer_cache, bias, keys_values, cross_mask)
            written.append(layer_cache)
        return self.logits(self.decoder.finish(x, None)), tuple(written)


def _table(
    config: Seq2SeqTransformerConfig, init: nnx.Initializer, rngs: nnx.Rngs
) -> EmbeddingTable:
    return EmbeddingTable(
        config.vocab_size,
        config.hidden_size,
        param_dtype=jnp.float32,
        embedding_init=init,
        rngs=rngs,
    )


def _cross_mask(attention_mask: jax.Array) -> AttentionMask:
    """Returns the mask of attention to the real tokens of a source."""
    return AttentionMask(jnp.ones_like(attention_mask[:, :1]), attention_mask, causal=False)


LogicalAxes = tuple[str | None, ...]


def _stack_axes(stack: str) -> list[tuple[str, LogicalAxes]]:
    """Returns the rows of the layers of an encoder or a decoder."""
    attentions = ("attention",) if stack == "encoder" else ("attention", "cross_attention")
    layers = f"{stack}/layers/*"
    return [
        *(
            row
            for attention in attentions
            for row in (
                *(
                    (f"{layers}/{attention}/{name}/kernel", ("embed", "heads"))
                    for name in ("query", "key", "value")
                ),
                *(
                    (f"{layers}/{attention}/{name}/bias", ("heads",))
                    for name in ("query", "key", "value")
                ),
                (f"{layers}/{attention}/output/kernel", ("heads", "embed")),
                (f"{layers}/{attention}/output/bias", (None,)),
                (f"{layers}/{attention}_norm/*", (None,)),
            )
        ),
        (f"{layers}/feed_forward/intermediate/kernel", ("embed", "mlp")),
        (f"{layers}/feed_forward/intermediate/bias", ("mlp",)),
        (f"{layers}/feed_forward/gate/kernel", ("embed", "mlp")),
        (f"{layers}/feed_forward/output/kernel", ("mlp", "embed")),
        (f"{layers}/feed_forward/output/bias", (None,)),
        (f"{layers}/feed_forward_norm/*", (None,)),
    ]


PARAMETER_AXES: list[tuple[str, LogicalAxes]] = [
    ("shared/embedding", ("vocab", "embed")),
    ("lm_head/embedding", ("vocab", "embed")),
    *_stack_axes("encoder"),
    *_stack_axes("decoder"),
    ("encoder/relative_attention_bias/bias", (None, "heads")),
    ("decoder/relative_attention_bias/bias", (None, "heads")),
    ("encoder/final_norm/*", (None,)),
    ("decoder/final_norm/*", (None,)),
    ("encoder/position_embeddings/embedding", (None, "embed")),
    ("decoder/position_embeddings/embedding", (None, "embed")),
    ("encoder/embedding_norm/*", (None,)),
    ("decoder/embedding_norm/*", (None,)),
]
