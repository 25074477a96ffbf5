"""Defines the objectives of training sparse (SPLADE) and multi-vector (ColBERT) encoders.

An example is a query, its positive and any number of hard negatives; the candidates of a query are
the positives and hard negatives of all examples of the batch. The loss is the cross-entropy of each
query's own positive. As for sentence encoders, texts can be encoded in chunks (GradCache), and
XLA gathers the vectors of all devices.

The losses are pure functions. Their definitions and defaults are those of sentence-transformers:
`SpladeLoss` with `SparseMultipleNegativesRankingLoss`, `MultiVectorMultipleNegativesRankingLoss`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.batch import CHOICE_FIELDS
from bert_jax.config.embedding_losses import MaxSimRankingLoss, SpladeLoss
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.losses import WeightedMean, is_correct
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.sentence_encoder.config import (
    SENTENCE_HEAD,
    MultiVectorEncoderConfig,
    SparseEncoderConfig,
)
from bert_jax.models.sentence_encoder.multi_vector import build_multi_vector_encoder, max_sim
from bert_jax.models.sentence_encoder.sparse import build_sparse_encoder
from bert_jax.objectives.base import (
    Batch,
    BatchSizes,
    LossOutput,
    Objective,
    TrainedModel,
    masked_lm_flops,
)
from bert_jax.objectives.embedding_losses import (
    matmul,
    own_dot_products,
    ranking_loss,
    score_distillation_loss,
)
from bert_jax.objectives.sentence_embeddings import (
    embed_texts,
    encode_in_chunks,
    encoded_padding,
    first_texts,
    sequences_of_texts,
    text_rows,
)
from bert_jax.params.functional import Params

REGULARIZER_SCALE, TEACHER_SCORES = "regularizer_scale", "label_logits"


class SparseEmbeddingObjective(Objective):
    """Implements the `Objective` of a `SentenceEmbedding` with a `SpladeLoss`."""

    starts_from = "sentence encoder"

    def __init__(self, config: SentenceEmbedding):
        assert isinstance(config.sentence_encoder, SparseEncoderConfig)
        assert isinstance(config.loss, SpladeLoss)
        self.config, self._loss = config, config.loss
        self._sparse_config = config.sentence_encoder
        self.network = build_sparse_encoder(config.model, config.sentence_encoder, config.compute)
        is_static = config.sentence_encoder.has_static_queries
        self._encoded_first_length = 0 if is_static else config.first_text_length

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the texts, the teacher's scores, and the part of the regularization's weight."""
        scores = () if self._loss.distillation is None else (TEACHER_SCORES,)
        return (*CHOICE_FIELDS, *scores, REGULARIZER_SCALE)

    def encoded_sequences(self, sizes: BatchSizes) -> tuple[tuple[int, int], ...]:
        """See `Objective`: queries can be shorter, and static ones are not encoded."""
        return sequences_of_texts(sizes, self._encoded_first_length)

    def masked_lm_purpose(self) -> str:
        """Returns why a pretrained model must have a masked-LM head."""
        return "start a sparse encoder, whose weights are masked-LM logits"

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of examples; all batches are full, so no example has weight 0."""
        return {"loss": _num_examples(batch)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss with its regularization; metrics are the accuracy and the sparsity."""
        vectors_BAV = self.example_vectors(params, batch, dropout_key)
        total, metrics = splade_loss(self._loss, vectors_BAV, batch)
        metrics = metrics | encoded_padding(batch, self._encoded_first_length)
        return LossOutput(total / loss_denominators["loss"], metrics)

    def example_vectors(
        self, params: Params, batch: Batch, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Computes the vectors of all texts of a batch, in chunks, float32 [B, A, V]."""
        network = self.network.merge(params)
        is_static = self._sparse_config.has_static_queries

        def encode(texts: Batch, key: jax.Array | None) -> jax.Array:
            if not is_static:
                return embed_texts(network.embed, texts, self.config.first_text_length, key)
            size, num_texts, _ = texts[CHOICE_FIELDS[0]].shape
            vectors = network.embed(text_rows(texts, slice(1, None)), key)
            queries = network.static_queries(text_rows(texts, slice(0, 1)))
            others = vectors.reshape(size, num_texts - 1, -1)
            return jnp.concatenate([queries[:, None], others], axis=1)

        return encode_in_chunks(encode, _texts(batch), dropout_key, self.config.chunk_size)

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the masked-LM head at all positions."""
        return self.encoded_positions(sizes) * masked_lm_flops(self.config.model)

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the encoder with its masked-LM head, and the weights of static queries."""
        del task
        parts = ("encoder", *masked_lm_parts(self.config.model))
        return TrainedModel(
            params={name: params[name] for name in parts},
            sentence_encoder=self._sparse_config,
            sentence_head=params.get(SENTENCE_HEAD, {}),
        )


class TokenVectors(NamedTuple):
    """Holds the vectors of the tokens of all texts of a batch, and which of them count.

    Attributes:
      queries: float32 [B, M, E].
      queries_have: bool [B, M].
      documents: float32 [B, A - 1, N, E].
      documents_have: bool [B, A - 1, N].
    """

    queries: jax.Array
    queries_have: jax.Array
    documents: jax.Array
    documents_have: jax.Array


class MultiVectorEmbeddingObjective(Objective):
    """Implements the `Objective` of a `SentenceEmbedding` with a `MaxSimRankingLoss`."""

    starts_from = "sentence encoder"

    def __init__(self, config: SentenceEmbedding):
        assert isinstance(config.sentence_encoder, MultiVectorEncoderConfig)
        assert isinstance(config.loss, MaxSimRankingLoss)
        self.config, self._loss = config, config.loss
        self._vector_config = config.sentence_encoder
        self.network = build_multi_vector_encoder(
            config.model, config.sentence_encoder, config.compute
        )
        self._query_length = config.sentence_encoder.length_of_role(
            "query", config.model.max_length
        )

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the texts, and the teacher's scores if they are learned."""
        scores = () if self._loss.distillation is None else (TEACHER_SCORES,)
        return (*CHOICE_FIELDS, *scores)

    def encoded_sequences(self, sizes: BatchSizes) -> tuple[tuple[int, int], ...]:
        """See `Objective`: queries are cut to their length, then widened to the expansion."""
        if sizes.sequences == sizes.examples:  # how many documents a query has is not known
            return super().encoded_sequences(sizes)
        expansion, length = self._vector_config.expansion, min(self._query_length, sizes.length)
        query_length = length if expansion is None else max(length, expansion.length)
        num_documents = sizes.sequences - sizes.examples
        return ((sizes.examples, query_length), (num_documents, sizes.length))

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of examples; all batches are full, so no example has weight 0."""
        return {"loss": _num_examples(batch)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss; the metric is the accuracy of finding positives."""
        vectors = self.example_vectors(params, batch, dropout_key)
        is_mean = self._vector_config.similarity == "meanmaxsim"
        metrics = encoded_padding(batch, self._query_length)
        if self._loss.distillation is not None:
            scores = own_late_interaction_scores(vectors, is_mean=is_mean)
            losses = score_distillation_loss(self._loss.distillation, scores, batch[TEACHER_SCORES])
        else:
            logits = self._loss.scale * late_interaction_scores(vectors, is_mean=is_mean)
            losses, metrics = ranking_loss(logits), {"accuracy": _accuracy(logits), **metrics}
        return LossOutput(jnp.sum(losses) / loss_denominators["loss"], metrics)

    def example_vectors(
        self, params: Params, batch: Batch, dropout_key: jax.Array | None
    ) -> TokenVectors:
        """Computes the vectors of the tokens of all texts of a batch, in chunks."""
        network = self.network.merge({SENTENCE_HEAD: {}, **params})

        def encode(texts: Batch, key: jax.Array | None) -> TokenVectors:
            size = texts[CHOICE_FIELDS[0]].shape[0]
            keys = (None, None) if key is None else jax.random.split(key)
            # Queries are much shorter than documents, and all after their length is padding.
            queries = first_texts(texts, self._query_length)
            query_vectors, _, queries_have = network.embed(queries, "query", keys[0])
            documents = text_rows(texts, slice(1, None))
            vectors, _, have = network.embed(documents, "document", keys[1])
            return TokenVectors(
                query_vectors,
                queries_have,
                vectors.reshape(size, -1, *vectors.shape[1:]),
                have.reshape(size, -1, have.shape[1]),
            )

        return encode_in_chunks(encode, _texts(batch), dropout_key, self.config.chunk_size)

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the encoder with its projection."""
        del task
        return TrainedModel(
            params={"encoder": params["encoder"]},
            sentence_encoder=self._vector_config,
            sentence_head=params.get(SENTENCE_HEAD, {}),
        )


def splade_loss(
    loss: SpladeLoss, vectors_BAV: jax.Array, batch: Batch
) -> tuple[jax.Array, dict[str, WeightedMean]]:
    """Computes the sum of the losses of all examples, and metrics.

    Args:
      vectors_BAV: float32 [B, A, V], the sparse vectors of query, positive and hard negatives.
      batch: the part of the weights of the regularization at this step, equal for all examples, and
        the scores of a teacher.
    """
    size, _, vocab_size = vectors_BAV.shape
    queries = vectors_BAV[:, 0]
    # Positives of all examples first, so that candidate i is the positive of query i.
    documents = jnp.swapaxes(vectors_BAV[:, 1:], 0, 1).reshape(-1, vocab_size)
    metrics = {
        "query_active_dims": _active_dims(queries),
        "document_active_dims": _active_dims(documents),
    }
    if loss.distillation is not None:
        scores = own_dot_products(vectors_BAV)
        losses = score_distillation_loss(loss.distillation, scores, batch[TEACHER_SCORES])
    else:
        logits = loss.scale * matmul(queries, documents.T)
        losses, metrics = ranking_loss(logits), {"accuracy": _accuracy(logits), **metrics}
    weights = loss.query_regularizer_weight, loss.document_regularizer_weight
    flops = flops_regularization(queries), flops_regularization(documents)
    regularization = weights[0] * flops[0] + weights[1] * flops[1]
    scale = jnp.mean(batch[REGULARIZER_SCALE])
    return jnp.sum(losses) + size * scale * regularization, metrics


def flops_regularization(vectors: jax.Array) -> jax.Array:
    """Computes the sum over components of the squared mean of [N, V] vectors, a scalar.

    It estimates the number of multiplications of a search (Paria et al. 2020, "Minimizing FLOPs to
    Learn Efficient Sparse Representations", section 3).
    """
    return jnp.sum(jnp.square(jnp.mean(vectors, axis=0)))


def late_interaction_scores(vectors: TokenVectors, *, is_mean: bool) -> jax.Array:
    """Computes the scores of all queries and documents of a batch, float32 [B, B (A - 1)].

    The documents are the positives of all examples and then their negatives.
    """

    # One text of all examples at a time, whose products are computed again in the backward pass:
    # the products of all would be the largest array of a step.
    def scores(documents: tuple[jax.Array, jax.Array]) -> jax.Array:
        return max_sim(vectors.queries, vectors.queries_have, *documents, is_mean=is_mean)

    columns = (
        jnp.swapaxes(vectors.documents, 0, 1),
        jnp.swapaxes(vectors.documents_have, 0, 1),
    )
    by_text = jax.lax.map(jax.checkpoint(scores, prevent_cse=False), columns)
    return jnp.swapaxes(by_text, 0, 1).reshape(vectors.queries.shape[0], -1)


def own_late_interaction_scores(vectors: TokenVectors, *, is_mean: bool) -> jax.Array:
    """Computes the scores of each query and its own documents, float32 [B, A - 1]."""

    def scores(query: TokenVectors) -> jax.Array:
        texts = query.queries[None], query.queries_have[None], *query[2:]
        return max_sim(*texts, is_mean=is_mean)[0]

    return jax.vmap(scores)(vectors)


def _active_dims(vectors: jax.Array) -> WeightedMean:
    """Returns the mean number of components of [N, V] vectors that are not 0."""
    counts = jnp.sum(vectors != 0, axis=-1).astype(jnp.float32)
    return WeightedMean(jnp.sum(counts), jnp.float32(counts.shape[0]))


def _accuracy(logits: jax.Array) -> WeightedMean:
    correct = is_correct(logits, jnp.arange(logits.shape[0])).astype(jnp.float32)
    return WeightedMean(jnp.sum(correct), jnp.float32(correct.shape[0]))


def _num_examples(batch: Batch) -> jax.Array:
    return jnp.float32(batch[CHOICE_FIELDS[0]].shape[0])


def _texts(batch: Batch) -> Batch:
    return {name: batch[name] for name in CHOICE_FIELDS}
