"""Defines the ALBERT encoder (Lan et al. 2020): BERT's layers with shared parameters.

The parameters are stored once, as "groups/<group>/layers/<inner layer>/...". As in Google's code,
dropout is applied after the feed-forward layers; Hugging Face's class has no dropout there, which
matters in training only.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, PostNormBlock
from bert_jax.models.layers.stack import Span, run_layers


class LayerGroup(nnx.Module):
    """Holds the layers of a group, which are applied one after another."""

    def __init__(self, config: AlbertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.layers = nnx.List(
            [PostNormBlock(config, compute, rngs) for _ in range(config.inner_group_num)]
        )


# In Google's files "gelu" is the tanh form and is read as such; in Hugging Face's files it is erf.
class AlbertEncoder(nnx.Module):
    """Encodes token ids; pooler and heads are not part of it.

    Attributes:
      embedding_projection: maps the embeddings from E to D, also if E is D (as Hugging Face).
      groups: the groups of layers; each is applied several times in a row.
    """

    def __init__(self, config: AlbertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs)
        self.embedding_projection = linear(
            config.embedding_size, config.hidden_size, config, compute, rngs
        )
        self.groups = nnx.List(
            [LayerGroup(config, compute, rngs) for _ in range(config.num_hidden_groups)]
        )
        self.group_applications = tuple(config.group_applications())
        self.compute = compute

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        causal: bool | jax.Array = False,
        dropout_key: jax.Array | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the arguments."""
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        mask = make_attention_mask(attention_mask, packing_ids, causal)
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        # Each application of a layer has its own dropout. The layers of a group have one depth for
        # layer-wise rates, unfreezing and `reinit_layers`: one parameter has one rate.
        blocks: list[PostNormBlock] = []
        spans: list[Span] = []
        for group, count in zip(self.groups, self.group_applications, strict=True):
            spans.append(Span(len(blocks), len(group.layers), count, are_shared=True))
            blocks += [*group.layers] * count
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(blocks), NUM_DROPOUT_SITES
        )
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, embedding_seed)
        return run_layers(
            blocks,
            self.compute,
            self.embedding_projection(embedded),
            mask,
            layer_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            spans=spans,
        )

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, E]."""
        return self.embeddings.word_embeddings.embedding[...]


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    (f"groups/*/{pattern}" if pattern.startswith("layers/") else pattern, axes)
    for pattern, axes in _BERT_AXES
]
