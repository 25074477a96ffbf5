"""Defines listwise losses of rerankers, which compare the texts of each query in a batch.

The rows of a batch are pairs of a query and a text; rows with the same `query_ids` belong together,
and there may be any number of them. Names, definitions and defaults are those of the losses of
sentence-transformers' `CrossEncoder`:

    listnet      cross-entropy between the softmaxes over labels and over logits (Cao et al. 2007)
    ranknet      logistic loss of each two texts with different labels (Burges et al. 2005)
    lambdaloss   the same, weighted with the change of NDCG (NDCG-Loss2++, Wang et al. 2018)

Labels are from 0 to 1. All arrays are float32 [B], and float32 or bool [B, B] for pairs of rows.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config.objectives import ListwiseLoss
from bert_jax.losses import Batch, WeightedMean
from bert_jax.tasks.losses import HeadOutputs, HeadSpec, Metrics

_LAMBDA_MU = 10.0
"""The weight of NDCG-Loss2 beside LambdaRank's in NDCG-Loss2++ (Wang et al. 2018, section 6)."""


def listwise_spec(spec: HeadSpec, loss: ListwiseLoss) -> HeadSpec:
    """Returns the spec of a ranking head with a listwise loss in place of its own.

    The loss is divided by the number of queries for "listnet", and otherwise by the number of pairs
    of texts of a query with different labels.
    """
    if loss == "listnet":
        weights, compute = _query_weights, list_net_loss
    else:
        weights = _pair_counts
        compute = functools.partial(pairwise_loss, has_ndcg_weights=loss == "lambdaloss")
    return dataclasses.replace(
        spec,
        label_fields=(*spec.label_fields, "query_ids"),
        label_weights=weights,
        compute_loss=compute,
    )


def list_net_loss(
    outputs: HeadOutputs, batch: Batch, class_weights: Sequence[float], label_smoothing: float
) -> tuple[WeightedMean, Metrics]:
    """Computes -sum of softmax(labels) log softmax(logits) over the texts of each query."""
    # Padding rows belong to no query; with themselves their softmax is not empty.
    same = _same_query(batch) | jnp.eye(len(batch["query_ids"]), dtype=bool)

    def log_softmax(values: jax.Array) -> jax.Array:
        return values - jax.nn.logsumexp(jnp.where(same, values, -jnp.inf), axis=1)

    weights = jnp.exp(log_softmax(batch["label_values"])) * batch["example_weights"]
    total = -jnp.sum(weights * log_softmax(outputs["values"]))
    loss = WeightedMean(total, jnp.sum(_query_weights(batch)))
    return loss, {"loss": loss, "pair_accuracy": _pair_accuracy(outputs["values"], batch)}


def pairwise_loss(
    outputs: HeadOutputs,
    batch: Batch,
    class_weights: Sequence[float],
    label_smoothing: float,
    *,
    has_ndcg_weights: bool,
) -> tuple[WeightedMean, Metrics]:
    """Computes -log2 sigmoid(s_i - s_j) for the texts i, j of a query with label_i > label_j."""
    logits, ordered = outputs["values"], _ordered_pairs(batch)
    losses = -jax.nn.log_sigmoid(logits[:, None] - logits[None, :]) / math.log(2)
    if has_ndcg_weights:
        losses *= ndcg_weights(logits, batch["label_values"], _same_query(batch))
    loss = WeightedMean(jnp.sum(jnp.where(ordered, losses, 0.0)), jnp.sum(_pair_counts(batch)))
    return loss, {"loss": loss, "pair_accuracy": _pair_accuracy(logits, batch)}


def ndcg_weights(logits: jax.Array, labels: jax.Array, same_query: jax.Array) -> jax.Array:
    """Computes the weights of pairs of texts in NDCG-Loss2++ (Wang et al. 2018, equation 17).

    The gain of a text is (2^label - 1) / DCG of the ideal order, and the discount of a rank is
    log2(1 + rank). The weight is |gain_i - gain_j| times
    mu |1 / discount(|i - j|) - 1 / discount(|i - j| + 1)| + |1 / discount(i) - 1 / discount(j)|,
    with ranks i, j by the logits.

    Returns:
      float32 [B, B], without a gradient; of two texts of different queries without a meaning.
    """
    ranks, gains = _ranks(logits, same_query), jnp.exp2(labels) - 1
    ideal = gains / _discount(_ranks(labels, same_query))
    best_dcg = jnp.sum(jnp.where(same_query, ideal, 0.0), axis=1)
    gains /= jnp.maximum(best_dcg, 1e-10)
    distances = jnp.maximum(jnp.abs(ranks[:, None] - ranks[None, :]), 1)
    of_distance = jnp.abs(1 / _discount(distances) - 1 / _discount(distances + 1))
    discounts = 1 / _discount(ranks)
    of_swap = jnp.abs(discounts[:, None] - discounts[None, :])
    return jnp.abs(gains[:, None] - gains[None, :]) * (_LAMBDA_MU * of_distance + of_swap)


def _discount(ranks: jax.Array) -> jax.Array:
    return jnp.log2(1 + ranks.astype(jnp.float32))


def _ranks(values: jax.Array, same_query: jax.Array) -> jax.Array:
    """Returns the rank of each row among those of its query, from 1 for the largest, int32 [B]."""
    index = jnp.arange(len(values))
    # Equal values are ranked in the order of the batch.
    is_tie = (values == values[:, None]) & (index < index[:, None])
    before = same_query & ((values > values[:, None]) | is_tie)
    return 1 + jnp.sum(before, axis=1, dtype=jnp.int32)


def _same_query(batch: Batch) -> jax.Array:
    ids, is_real = batch["query_ids"], batch["example_weights"] > 0
    return (ids[:, None] == ids) & is_real[:, None] & is_real


def _ordered_pairs(batch: Batch) -> jax.Array:
    """Returns whether text i has a larger label than text j of the same query, bool [B, B]."""
    labels = batch["label_values"]
    return _same_query(batch) & (labels[:, None] > labels)


def _pair_counts(batch: Batch, class_weights: Sequence[float] = ()) -> jax.Array:
    return jnp.sum(_ordered_pairs(batch), axis=1).astype(jnp.float32)


def _query_weights(batch: Batch, class_weights: Sequence[float] = ()) -> jax.Array:
    """Returns 1 / the number of texts of the query of each row, and 0 for padding."""
    counts = jnp.sum(_same_query(batch), axis=1).astype(jnp.float32)
    return batch["example_weights"] / jnp.maximum(counts, 1.0)


def _pair_accuracy(logits: jax.Array, batch: Batch) -> WeightedMean:
    """Returns the fraction of pairs of texts of a query whose logits have the labels' order."""
    correct = _ordered_pairs(batch) & (logits[:, None] > logits)
    return WeightedMean(jnp.sum(correct).astype(jnp.float32), jnp.sum(_pair_counts(batch)))
