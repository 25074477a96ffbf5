"""Defines the UltraBERT encoder: EuroBERT's layers with global and local attention by layer."""

from flax import nnx

from bert_jax.models.eurobert.model import PARAMETER_AXES as PARAMETER_AXES
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import layer_norm
from bert_jax.models.layers.pre_norm import PreNormBlock, PreNormDropouts
from bert_jax.models.modernbert.model import ModernBertEncoder
from bert_jax.models.ultrabert.config import UltraBertConfig


class UltraBertEncoder(ModernBertEncoder):
    """Encodes token ids; in two of three layers a token attends to its neighbors only.

    It computes as ModernBERT; its embeddings have no norm, and its first layer has one.
    """

    drops_tokens = False

    def __init__(self, config: UltraBertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs, has_norm=False)
        dropouts = PreNormDropouts(attention_output=0.0, feed_forward=0.0)
        blocks = [
            PreNormBlock(config, compute, rngs, layer_type=layer_type, dropouts=dropouts)
            for layer_type in config.layer_types
        ]
        self.layers = nnx.List(blocks)
        self.final_norm = layer_norm(config, compute)
        self.config, self.compute = config, compute
