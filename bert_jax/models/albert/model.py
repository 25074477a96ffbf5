"""Defines the ALBERT encoder (Lan et al. 2020): BERT's layers with shared parameters.

The parameters are stored once, as "groups/<group>/layers/<inner layer>/...". As in Google's code,
dropout is applied after the feed-forward layers; Hugging Face's class has no dropout there, which
matters in training only.
"""

import jax
from flax import nnx

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.shared_layers import apply_shared_layers
from bert_jax.models.layers.transformer import LayersOutput, PostNormBlock


class LayerGroup(nnx.Module):
    """Holds the layers of a group, which are applied one after another."""

    def __init__(self, config: AlbertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.layers = nnx.List(
            [PostNormBlock(config, compute, rngs) for _ in range(config.inner_group_num)]
        )


# In Google's files "gelu" is the tanh form and is read as such; in Hugging Face's files it is erf.
class AlbertEncoder(BertEncoder):
    """Encodes token ids; pooler and heads are not part of it.

    Attributes:
      embedding_projection: maps the embeddings from E to D, also if E is D (as Hugging Face).
      groups: the groups of layers; each is applied several times in a row.
    """

    def __init__(self, config: AlbertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs)
        self.has_projection = True
        self.embedding_projection = linear(
            config.embedding_size, config.hidden_size, config, compute, rngs
        )
        self.groups = nnx.List(
            [LayerGroup(config, compute, rngs) for _ in range(config.num_hidden_groups)]
        )
        self.num_layers = config.num_applied_layers
        self.group_applications = tuple(config.group_applications())
        self.compute = compute

    def run_layers(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seeds: jax.Array | None,
        *,
        output_hidden_states: bool,
        output_attentions: bool,
    ) -> LayersOutput:
        """Applies each group as often as the config says; see `apply_shared_layers`."""
        return apply_shared_layers(
            [tuple(group.layers) for group in self.groups],
            self.group_applications,
            self.compute,
            x_BLD,
            mask,
            dropout_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    (f"groups/*/{pattern}" if pattern.startswith("layers/") else pattern, axes)
    for pattern, axes in _BERT_AXES
]
