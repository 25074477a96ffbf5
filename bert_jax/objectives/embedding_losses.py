"""Defines the losses of the vectors of texts, as pure functions.

Their names, definitions and defaults are those of sentence-transformers. The vectors are float32
[B, E], one for each example. Losses of single examples are [B]; losses that compare the examples of
a batch with each other are [B] too, where an example is a query, except for CoSENT, which is a
scalar.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config.sentence_embeddings import DistillationLoss, DistillKLDivLoss, MarginMSELoss
from bert_jax.losses import cross_entropy
from bert_jax.models.sentence_encoder.network import normalize
from bert_jax.objectives.distillation import soft_target_loss


def pairwise_cosine(u: jax.Array, v: jax.Array) -> jax.Array:
    """Computes the cosine of each vector of u and the same row of v, both [B, E] -> [B]."""
    return jnp.sum(normalize(u) * normalize(v), axis=-1)


def softmax_logits(u: jax.Array, v: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes the logits of (u, v, |u - v|), [B, C] (Reimers and Gurevych 2019, section 3).

    Args:
      kernel: float32 [3 E, C].
      bias: float32 [C].
    """
    return matmul(jnp.concatenate([u, v, jnp.abs(u - v)], axis=-1), kernel) + bias


def cosine_similarity_loss(u: jax.Array, v: jax.Array, scores: jax.Array) -> jax.Array:
    """Computes (cosine(u, v) - score)^2, [B]."""
    return jnp.square(pairwise_cosine(u, v) - scores)


def cosent_loss(u: jax.Array, v: jax.Array, scores: jax.Array, scale: float) -> jax.Array:
    """Computes log(1 + sum of exp(scale (cosine_j - cosine_i)) over all pairs), a scalar.

    The sum is over the pairs of examples i, j with score_i > score_j, whose cosines should be in
    the same order (Su 2022, CoSENT).
    """
    cosines = scale * pairwise_cosine(u, v)
    is_ordered = scores[:, None] > scores[None, :]
    # -inf adds nothing to the sum of exponentials; the appended 0 is the 1 in the logarithm.
    differences = jnp.where(is_ordered, cosines[None, :] - cosines[:, None], -jnp.inf)
    return jax.nn.logsumexp(jnp.append(differences.ravel(), 0.0))


def ranking_logits(
    queries: jax.Array,
    positives: jax.Array,
    negatives: Sequence[jax.Array],
    scale: float,
    hard_negative_weight: float = 0.0,
) -> jax.Array:
    """Computes scale * cosine of each query and all candidates, [B, B (1 + number of negatives)].

    The candidates are the positives of all examples and then their negatives, so that the positive
    of query i is candidate i.

    Args:
      negatives: for each hard negative of an example, the vectors of the batch.
      hard_negative_weight: added to the logits of a query's own hard negatives (SimCSE).
    """
    candidates = normalize(jnp.concatenate([positives, *negatives]))
    logits = scale * matmul(normalize(queries), candidates.T)
    if not hard_negative_weight:
        return logits
    size = queries.shape[0]
    # The weight is for a query's own hard negatives only; those of other queries keep their
    # logits.
    own = jnp.tile(jnp.eye(size, dtype=logits.dtype), (1, len(negatives)))
    return logits.at[:, size:].add(hard_negative_weight * own)


def ranking_loss(logits: jax.Array) -> jax.Array:
    """Computes the cross-entropy of each query's own positive, [B], from `ranking_logits`.

    This is the multiple negatives ranking loss (Henderson et al. 2017, section 4), which is InfoNCE
    with the other examples of the batch as negatives.
    """
    return cross_entropy(logits, jnp.arange(logits.shape[0]))


def symmetric_ranking_loss(logits: jax.Array) -> jax.Array:
    """Computes the mean of `ranking_loss` and the loss of finding the query of each positive, [B].

    The second loss compares positives with queries only, not with hard negatives.
    """
    reverse = logits[:, : logits.shape[0]].T
    return (ranking_loss(logits) + ranking_loss(reverse)) / 2


def triplet_loss(
    anchors: jax.Array, positives: jax.Array, negatives: jax.Array, margin: float
) -> jax.Array:
    """Computes max(0, |anchor - positive| - |anchor - negative| + margin), Euclidean, [B]."""
    difference = _euclidean(anchors, positives) - _euclidean(anchors, negatives)
    return jax.nn.relu(difference + margin)


def contrastive_loss(u: jax.Array, v: jax.Array, labels: jax.Array, margin: float) -> jax.Array:
    """Computes (y d^2 + (1 - y) max(0, margin - d)^2) / 2 with the cosine distance d, [B].

    Label 1 is a pair of similar texts, 0 a pair of others (Hadsell et al. 2006, equation 4).
    """
    distances = 1 - pairwise_cosine(u, v)
    labels = labels.astype(distances.dtype)
    far = jnp.square(jax.nn.relu(margin - distances))
    return 0.5 * (labels * jnp.square(distances) + (1 - labels) * far)


def mse_loss(vectors: jax.Array, teacher_vectors: jax.Array) -> jax.Array:
    """Computes the mean over components of (vector - teacher's vector)^2, [B]."""
    return jnp.mean(jnp.square(vectors - teacher_vectors), axis=-1)


def score_distillation_loss(
    loss: DistillationLoss, scores: jax.Array, teacher_scores: jax.Array
) -> jax.Array:
    """Computes the loss of each query's scores of its own texts, the positive first, [B].

    `MarginMSELoss` is the mean over the negatives of the squared difference of the margins between
    the positive and the negative (Hofstätter et al. 2020).

    Args:
      scores: float32 [B, C], of the model that is trained.
      teacher_scores: float32 [B, C].
    """
    match loss:
        case MarginMSELoss():
            margins, teacher_margins = (x[:, :1] - x[:, 1:] for x in (scores, teacher_scores))
            return jnp.mean(jnp.square(margins - teacher_margins), axis=-1)
        case DistillKLDivLoss(temperature=temperature):
            return soft_target_loss(scores, teacher_scores, temperature)


def tanh_layer(vectors: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes tanh(vectors W + b), [..., E], the layer of SimCSE (Gao et al. 2021, section 6.3).

    Args:
      kernel: float32 [E, E].
      bias: float32 [E].
    """
    return jnp.tanh(matmul(vectors, kernel) + bias)


def truncate(vectors: jax.Array, dim: int) -> jax.Array:
    """Returns the first `dim` components of vectors [..., E], normalized (Kusupati et al. 2022)."""
    return normalize(vectors[..., :dim])


def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiplies float32 matrices, whose operands TPUs would round to bfloat16 by default."""
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _euclidean(u: jax.Array, v: jax.Array) -> jax.Array:
    """Computes |u - v| of each row, [B], with a gradient of zero where u equals v."""
    squares = jnp.sum(jnp.square(u - v), axis=-1)
    is_zero = squares == 0  # the gradient of the root is infinite there
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, squares)))
