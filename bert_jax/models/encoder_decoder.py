"""Defines which families of encoder-decoders exist, and how one is built.

A family is a package `models/<family>/` with the modules that `models/encoder.py` lists; its
`model.py` has `build_encoder_decoder`, which returns an `EncoderDecoder`, and the paths in its
`sharding.py` begin at the root of the network. To add a family, write the package and add its
config to `EncoderDecoderConfig`. This module imports no jax, because configs name that union.
"""

import typing
from typing import TYPE_CHECKING, Any

from bert_jax.models.bart.config import BartConfig
from bert_jax.models.encoder import family_module
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.t5.config import T5Config

if TYPE_CHECKING:
    from flax import nnx

    from bert_jax.models.seq2seq.network import EncoderDecoder

EncoderDecoderConfig = T5Config | BartConfig
"""The config of an encoder-decoder of any family; each extends `Seq2SeqTransformerConfig`."""

ENCODER_DECODER_FAMILIES: tuple[type[Any], ...] = typing.get_args(EncoderDecoderConfig)
"""The config class of each family."""


def build_encoder_decoder(
    config: EncoderDecoderConfig, compute: ComputeConfig, rngs: "nnx.Rngs"
) -> "EncoderDecoder":
    """Builds the network of a config as an `nnx.Module` with initialized parameters."""
    return family_module(type(config), "model").build_encoder_decoder(config, compute, rngs)
