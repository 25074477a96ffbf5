"""Defines the losses of the vectors of texts, as pure functions.

Their names, definitions and defaults are those of sentence-transformers. The vectors are float32
[B, E], one for each example. Losses of single examples are [B]; losses that compare the examples of
a batch with each other are [B] too, where an example is a query, except for CoSENT, which is a
scalar.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config.embedding_losses import (
    DistillationLoss,
    DistillKLDivLoss,
    MarginMSELoss,
    TeacherDistance,
)
from bert_jax.losses import cross_entropy
from bert_jax.models.sentence_encoder.network import normalize
from bert_jax.objectives.distillation import soft_target_loss


def pairwise_cosine(u: jax.Array, v: jax.Array) -> jax.Array:
    """Computes the cosine of each vector of u and the same row of v, both [B, E] -> [B]."""
    return jnp.sum(normalize(u) * normalize(v), axis=-1)


def pairwise_angle(u: jax.Array, v: jax.Array) -> jax.Array:
    """Computes |cosine + sine| of each vector of u and the same row of v, both [B, E] -> [B].

    Components i and i + E / 2 are the real and the imaginary part of complex numbers, whose
    quotients u / v have the cosine and the sine as the sums of their parts (Li and Li 2024,
    "AoE: Angle-optimized Embeddings for Semantic Textual Similarity", equation 5).
    """
    u, v = normalize(u), normalize(v)
    if u.shape[1] % 2:
        u, v = (jnp.pad(x, ((0, 0), (0, 1))) for x in (u, v))
    (u_real, u_imaginary), (v_real, v_imaginary) = (jnp.split(x, 2, axis=1) for x in (u, v))
    sines = jnp.sum(u_imaginary * v_real - u_real * v_imaginary, axis=1)
    return jnp.abs(jnp.sum(u * v, axis=1) + sines)


def softmax_logits(u: jax.Array, v: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes the logits of (u, v, |u - v|), [B, C] (Reimers and Gurevych 2019, section 3).

    Args:
      kernel: float32 [3 E, C].
      bias: float32 [C].
    """
    return linear_layer(jnp.concatenate([u, v, jnp.abs(u - v)], axis=-1), kernel, bias)


def cosine_similarity_loss(u: jax.Array, v: jax.Array, scores: jax.Array) -> jax.Array:
    """Computes (cosine(u, v) - score)^2, [B]."""
    return jnp.square(pairwise_cosine(u, v) - scores)


def cosent_loss(similarities: jax.Array, scores: jax.Array, scale: float) -> jax.Array:
    """Computes log(1 + sum of exp(scale (similarity_j - similarity_i)) over pairs), a scalar.

    The sum is over the pairs of examples i, j with score_i > score_j, whose similarities should be
    in the same order (Su 2022, CoSENT).

    Args:
      similarities: float32 [B], such as `pairwise_cosine`.
    """
    scaled = scale * similarities
    is_ordered = scores[:, None] > scores[None, :]
    # -inf adds nothing to the sum of exponentials; the appended 0 is the 1 in the logarithm.
    differences = jnp.where(is_ordered, scaled[None, :] - scaled[:, None], -jnp.inf)
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


def guided_ranking_logits(
    vectors_BAE: jax.Array, guide_vectors: jax.Array, temperature: float, margin: float
) -> jax.Array:
    """Computes cosine / temperature of each query and its candidates, [B, B (A + 1)], for GIST.

    The candidates of query i are all positives, the other queries, the positives of other examples,
    compared with its own positive, and all hard negatives (Solatorio 2024, section 3). A logit is
    -inf where the guide's cosine is larger than that of query and positive minus the margin.

    Args:
      vectors_BAE: float32 [B, A, E]: queries, positives and hard negatives.
      guide_vectors: float32 [B, A, any], of a guide.
    """
    pairs = [(0, 1), (0, 0), (1, 1), *((0, text) for text in range(2, vectors_BAE.shape[1]))]
    unit, guide = normalize(vectors_BAE), normalize(guide_vectors)
    own = pairwise_cosine(guide[:, 0], guide[:, 1])[:, None]
    is_own = jnp.eye(unit.shape[0], dtype=bool)
    logits: list[jax.Array] = []
    for left, right in pairs:
        is_left_out = matmul(guide[:, left], guide[:, right].T) > own - margin
        if (left, right) == (0, 1):
            is_left_out &= ~is_own
        elif left == right:
            # Rounding could make a text a negative of itself if the guide's vectors of query and
            # positive are equal, as happens in sentence-transformers.
            is_left_out |= is_own
        cosines = matmul(unit[:, left], unit[:, right].T)
        logits.append(jnp.where(is_left_out, -jnp.inf, cosines / temperature))
    return jnp.concatenate(logits, axis=1)


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


def embed_distill_loss(
    vectors: jax.Array, teacher_vectors: jax.Array, distance: TeacherDistance
) -> jax.Array:
    """Computes the distance of vectors to a teacher's, both [B, E] -> [B]."""
    match distance:
        case "cosine":
            return 1 - pairwise_cosine(vectors, teacher_vectors)
        case "mse":
            return mse_loss(vectors, teacher_vectors)


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


def linear_layer(vectors: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes vectors W + b, [..., E] -> [..., F].

    Args:
      kernel: float32 [E, F].
      bias: float32 [F].
    """
    return matmul(vectors, kernel) + bias


def own_dot_products(vectors: jax.Array) -> jax.Array:
    """Computes the dot products of the first vector of an example with its others, [B, A - 1].

    Args:
      vectors: float32 [B, A, E].
    """
    return jnp.sum(vectors[:, :1] * vectors[:, 1:], axis=-1)


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
