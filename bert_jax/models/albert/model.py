"""Defines the ALBERT encoder (Lan et al. 2020): BERT's layers with shared parameters.

The parameters are stored once, as "groups/<group>/layers/<inner layer>/...". As in Google's code,
dropout is applied after the feed-forward layers; Hugging Face's class has no dropout there, which
matters in training only.
"""

from flax import nnx

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.post_norm import PostNormBlock
from bert_jax.models.layers.stack import Span
from bert_jax.models.layers.transformer import TransformerEncoder


class LayerGroup(nnx.Module):
    """Holds the layers of a group, which are applied one after another."""

    def __init__(self, config: AlbertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.layers = nnx.List(
            [PostNormBlock(config, compute, rngs) for _ in range(config.inner_group_num)]
        )


# In Google's files "gelu" is the tanh form and is read as such; in Hugging Face's files it is erf.
class AlbertEncoder(TransformerEncoder):
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

    def blocks(self) -> list[PostNormBlock]:
        """Returns the layers of each group as often as they are applied.

        Each application has dropout of its own. The layers of a group have one depth for layer-wise
        rates, unfreezing and `reinit_layers`: one parameter has one rate.
        """
        applied = zip(self.groups, self.group_applications, strict=True)
        return [layer for group, count in applied for layer in [*group.layers] * count]

    def spans(self) -> list[Span]:
        """Returns a span for each group."""
        spans: list[Span] = []
        start = 0
        for group, count in zip(self.groups, self.group_applications, strict=True):
            spans.append(Span(start, len(group.layers), count, are_shared=True))
            start += len(group.layers) * count
        return spans


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    (f"groups/*/{pattern}" if pattern.startswith("layers/") else pattern, axes)
    for pattern, axes in _BERT_AXES
]
