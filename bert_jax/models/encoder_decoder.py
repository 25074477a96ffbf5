"""Defines which families of encoder-decoders exist, and how one is built.

A family is a package `models/<family>/` with the modules `config`, `model` and `huggingface`, as
that of an encoder; its `model.py` has `build_encoder_decoder`, which returns an `EncoderDecoder`.
The logical axes of all families are in `models/seq2seq/sharding.py`. To add a family, write the
package and add its config to `EncoderDecoderConfig`. This module imports no jax, because configs
name that union.
"""

import typing
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.models.bart.config import BartConfig
from bert_jax.models.encoder import family_module
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.t5.config import T5Config

if TYPE_CHECKING:
    import jax
    from flax import nnx

    from bert_jax.models.seq2seq.network import EncoderDecoder

EncoderDecoderConfig = T5Config | BartConfig
"""The config of an encoder-decoder of any family; each extends `Seq2SeqTransformerConfig`."""

ENCODER_DECODER_FAMILIES: tuple[type[Any], ...] = typing.get_args(EncoderDecoderConfig)
"""The config class of each family."""


class EncoderDecoderOutput(NamedTuple):
    """Holds what an encoder-decoder returns; field names are Hugging Face's.

    Attributes:
      last_hidden_state: of the decoder, [B, T, D].
      encoder_last_hidden_state: [B, L, D].
      decoder_hidden_states: the input of the first layer and then the output of each layer, arrays
        [B, T, D], the last one after the final norm; () unless `output_hidden_states`.
      encoder_hidden_states: the same of the encoder, [B, L, D].
    """

    last_hidden_state: "jax.Array"
    encoder_last_hidden_state: "jax.Array"
    decoder_hidden_states: tuple["jax.Array", ...] = ()
    encoder_hidden_states: tuple["jax.Array", ...] = ()


def build_encoder_decoder(
    config: EncoderDecoderConfig, compute: ComputeConfig, rngs: "nnx.Rngs"
) -> "EncoderDecoder":
    """Builds the network of a config as an `nnx.Module` with initialized parameters."""
    return family_module(type(config), "model").build_encoder_decoder(config, compute, rngs)
