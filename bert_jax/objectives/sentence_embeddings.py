"""Defines the objective of training a sentence encoder: vectors of all texts, then the loss.

An example has A texts: a pair, a triple, a text twice (SimCSE) or a single text. To save memory,
texts can be encoded in chunks, as in GradCache (Gao et al. 2021, "Scaling Deep Contrastive Learning
Batch Size under Memory Limited Setup"): a scan encodes one chunk after another, the loss reads the
vectors of the whole batch, and the backward pass computes the intermediate results of each chunk
again (`jax.checkpoint`). On several devices XLA gathers the vectors, so that the negatives of a
query come from all devices.

The losses are pure functions. Their names, definitions and defaults are those of
sentence-transformers. The vectors are float32 [B, E], one for each example. Losses of single
examples are [B]; losses that compare the examples of a batch with each other are [B] too, where
an example is a query, except for CoSENT, which is a scalar.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS, encoder_inputs
from bert_jax.config.sentence_embeddings import (
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    DenseLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    RetrievalLoss,
    SentenceEmbedding,
    SingleLoss,
    SoftmaxLoss,
    SupervisedSimCSE,
    TripletLoss,
    UnsupervisedSimCSE,
)
from bert_jax.losses import WeightedMean, cross_entropy, is_correct, padding_fraction
from bert_jax.models.sentence_encoder.config import SENTENCE_HEAD, SentenceEncoderConfig
from bert_jax.models.sentence_encoder.network import (
    SentenceEncoder,
    build_sentence_encoder,
    normalize,
)
from bert_jax.objectives.base import Batch, LossOutput, Objective, TrainedModel
from bert_jax.params.functional import Params

SOFTMAX_CLASSIFIER = "softmax_classifier"
"""The name of the linear layer of `SoftmaxLoss` in the parameters; exports leave it out."""
SIMCSE_MLP = "simcse_mlp"
"""The name of the layer of `UnsupervisedSimCSE.mlp_only_train`; exports leave it out."""

Metrics = dict[str, WeightedMean]


# The texts of an example are the choices of a batch, [B, A, L], so that collation, sharding and
# FLOPs need nothing new.
class SentenceEmbeddingObjective(Objective):
    """Implements the `Objective` of a `SentenceEmbedding` config, and the vectors of texts."""

    starts_from = "sentence encoder"

    def __init__(self, config: SentenceEmbedding):
        assert isinstance(config.sentence_encoder, SentenceEncoderConfig)
        assert not isinstance(config.loss, RetrievalLoss)
        self.config, self._sentence_config = config, config.sentence_encoder
        self.network = build_sentence_encoder(config.model, config.sentence_encoder, config.compute)
        self._dense_loss = config.loss
        self._loss = config.loss.loss if isinstance(config.loss, MatryoshkaLoss) else config.loss

    def abstract(self) -> Params:
        """Returns the parameters as shapes and dtypes."""
        layer = jax.eval_shape(self._init_training_layer, jax.random.key(0))
        return {**self.network.abstract(), **layer}

    def init(self, key: jax.Array) -> Params:
        """Initializes new parameters, float32."""
        return {**self.network.init(key), **self._init_training_layer(key)}

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the texts and the field of the labels, scores or teacher's vectors."""
        match self._loss:
            case MSELoss():
                return (*ENCODER_FIELDS, "teacher_vectors")
            case SoftmaxLoss() | ContrastiveLoss():
                return (*CHOICE_FIELDS, "labels")
            case CosineSimilarityLoss() | CoSENTLoss() | MarginMSELoss():
                return (*CHOICE_FIELDS, "label_values")
            case (
                MultipleNegativesRankingLoss()
                | UnsupervisedSimCSE()
                | SupervisedSimCSE()
                | TripletLoss()
            ):
                return CHOICE_FIELDS

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of examples; all batches are full, so no example has weight 0."""
        return {"loss": jnp.float32(_num_examples(batch))}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss, and for losses that classify the accuracy as a metric."""
        vectors_BAE = self.example_vectors(params, batch, dropout_key)
        if SIMCSE_MLP in params:
            vectors_BAE = tanh_layer(vectors_BAE, **params[SIMCSE_MLP])
        classifier = params.get(SOFTMAX_CLASSIFIER, {})
        total, metrics = loss_of_vectors(self._dense_loss, vectors_BAE, batch, classifier)
        mask = encoder_inputs(batch)["attention_mask"]
        metrics = metrics | {"padding_fraction": padding_fraction({"attention_mask": mask})}
        return LossOutput(total / loss_denominators["loss"], metrics)

    def example_vectors(
        self, params: Params, batch: Batch, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Computes the vectors of all texts of a batch, in chunks, float32 [B, A, E]."""
        network = self.network.merge(params)
        size = self.config.embedding_size
        fields = CHOICE_FIELDS if CHOICE_FIELDS[0] in batch else ENCODER_FIELDS
        texts = {name: batch[name] for name in fields}

        def encode(texts: Batch, key: jax.Array | None) -> jax.Array:
            return _encode(network, texts, key).reshape(_num_examples(texts), -1, size)

        return encode_in_chunks(encode, texts, dropout_key, self.config.chunk_size)

    def embed(self, params: Params, batch: Batch) -> jax.Array:
        """Computes the vectors of texts without dropout, float32 [B, E]: pure, for `jax.jit`.

        They have `truncate_dim` components.
        """
        vectors = _encode(self.network.merge(params), batch, None)
        return vectors[:, : self._sentence_config.truncate_dim]

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the encoder with what follows it, without the layer that only training uses."""
        del task
        return TrainedModel(
            params={"encoder": params["encoder"]},
            sentence_encoder=self.config.sentence_encoder,
            sentence_head=params.get(SENTENCE_HEAD, {}),
        )

    def _init_training_layer(self, key: jax.Array) -> Params:
        """Initializes the layer that only training uses; {} for losses without one."""
        key, size = jax.random.fold_in(key, 1), self.config.embedding_size
        if isinstance(self._loss, UnsupervisedSimCSE) and self._loss.mlp_only_train:
            kernel = 0.02 * jax.random.normal(key, (size, size))  # as SimCSE's code
            return {SIMCSE_MLP: {"kernel": kernel, "bias": jnp.zeros(size, jnp.float32)}}
        if not isinstance(self._loss, SoftmaxLoss):
            return {}
        shape = 3 * size, len(self._loss.labels)
        limit = shape[0] ** -0.5  # as PyTorch
        kernel = jax.random.uniform(key, shape, jnp.float32, -limit, limit)
        return {SOFTMAX_CLASSIFIER: {"kernel": kernel, "bias": jnp.zeros(shape[1], jnp.float32)}}


T = TypeVar("T")


def encode_in_chunks(
    encode: Callable[[Batch, jax.Array | None], T],
    texts: Batch,
    dropout_key: jax.Array | None,
    chunk_size: int | None,
) -> T:
    """Returns what `encode` returns for a batch, computed for one chunk of examples after another.

    Args:
      encode: maps texts [B, ...] and a dropout key to arrays whose first dimension is B.
      texts: the fields of the texts.
      dropout_key: None to apply no dropout.
      chunk_size: examples of a chunk; None for one chunk.
    """
    size = _num_examples(texts)
    if chunk_size is None or chunk_size >= size:
        return encode(texts, dropout_key)
    num_chunks = size // chunk_size
    # Chunk i takes the examples i, i + n, i + 2n, ...: every device then encodes examples that it
    # already holds, as with microbatches.
    chunks = {
        name: jnp.swapaxes(values.reshape(-1, num_chunks, *values.shape[1:]), 0, 1)
        for name, values in texts.items()
    }
    # The key is an input, so the backward pass repeats the dropout of the forward pass.
    keys = None if dropout_key is None else jax.random.split(dropout_key, num_chunks)
    # `prevent_cse` only costs time here: inside a loop XLA cannot merge the recomputation with the
    # forward pass.
    repeated = jax.checkpoint(encode, prevent_cse=False)
    outputs = jax.lax.map(lambda inputs: repeated(*inputs), (chunks, keys))
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(size, *x.shape[2:]), outputs)


def _encode(network: SentenceEncoder, texts: Batch, dropout_key: jax.Array | None) -> jax.Array:
    """Encodes texts [B, L] or [B, A, L], float32 [B x A, E]."""
    return network.embed(encoder_inputs(texts), None, dropout_key)


def _num_examples(batch: Batch) -> int:
    return batch[CHOICE_FIELDS[0] if CHOICE_FIELDS[0] in batch else ENCODER_FIELDS[0]].shape[0]


def loss_of_vectors(
    loss: DenseLoss, vectors_BAE: jax.Array, batch: Batch, classifier: Params
) -> tuple[jax.Array, Metrics]:
    """Computes the sum of the losses of all examples, and metrics.

    Args:
      vectors_BAE: float32 [B, A, E], the vectors of the texts of each example.
      batch: the field with labels, scores or teacher's vectors, if the loss reads one.
      classifier: kernel and bias of `SoftmaxLoss`; {} for other losses.
    """
    if not isinstance(loss, MatryoshkaLoss):
        return _single_loss(loss, vectors_BAE, batch, classifier)
    total, metrics = jnp.float32(0.0), {}
    weights = loss.weights or (1.0,) * len(loss.dims)
    # Ascending, so that the metrics describe the largest size.
    for dim, weight in sorted(zip(loss.dims, weights, strict=True)):
        shortened = truncate(vectors_BAE, dim)
        cut_batch, cut_classifier = _cut_targets(batch, classifier, dim)
        part, metrics = _single_loss(loss.loss, shortened, cut_batch, cut_classifier)
        total += weight * part
    return total, metrics


def _cut_targets(batch: Batch, classifier: Params, dim: int) -> tuple[Batch, Params]:
    """Returns the teacher's vectors and the classifier for the first `dim` components."""
    if "teacher_vectors" in batch:
        # As in sentence-transformers, they are not normalized again.
        batch = {**batch, "teacher_vectors": batch["teacher_vectors"][:, :dim]}
    if classifier:
        kernel = classifier["kernel"]
        parts = kernel.reshape(3, -1, kernel.shape[1])[:, :dim]  # of u, v and |u - v|
        classifier = {**classifier, "kernel": parts.reshape(3 * dim, -1)}
    return batch, classifier


def _single_loss(
    loss: SingleLoss, vectors_BAE: jax.Array, batch: Batch, classifier: Params
) -> tuple[jax.Array, Metrics]:
    first, *others = (vectors_BAE[:, index] for index in range(vectors_BAE.shape[1]))
    size, metrics = vectors_BAE.shape[0], {}
    match loss:
        case SoftmaxLoss():
            logits = softmax_logits(first, others[0], **classifier)
            values = cross_entropy(logits, batch["labels"])
            metrics = {"accuracy": _accuracy(logits, batch["labels"])}
        case CosineSimilarityLoss():
            values = cosine_similarity_loss(first, others[0], batch["label_values"])
        case CoSENTLoss(scale=scale):
            mean = cosent_loss(first, others[0], batch["label_values"], scale)
            values = jnp.full(size, mean)
        case MultipleNegativesRankingLoss() | UnsupervisedSimCSE() | SupervisedSimCSE():
            logits = _ranking_logits(loss, first, others)
            symmetric = isinstance(loss, MultipleNegativesRankingLoss) and loss.symmetric
            values = (symmetric_ranking_loss if symmetric else ranking_loss)(logits)
            metrics = {"accuracy": _accuracy(logits, jnp.arange(size))}
        case TripletLoss(margin=margin):
            values = triplet_loss(first, *others, margin=margin)
        case ContrastiveLoss(margin=margin):
            values = contrastive_loss(first, others[0], batch["labels"], margin)
        case MSELoss():
            values = mse_loss(first, batch["teacher_vectors"])
        case MarginMSELoss():
            values = margin_mse_loss(first, *others, margins=batch["label_values"])
    return jnp.sum(values), metrics


def _ranking_logits(
    loss: MultipleNegativesRankingLoss | UnsupervisedSimCSE | SupervisedSimCSE,
    queries: jax.Array,
    candidates: list[jax.Array],
) -> jax.Array:
    positives, *negatives = candidates
    match loss:
        case MultipleNegativesRankingLoss(scale=scale):
            return ranking_logits(queries, positives, negatives, scale)
        case UnsupervisedSimCSE(temperature=temperature):
            return ranking_logits(queries, positives, negatives, 1 / temperature)
        case SupervisedSimCSE(temperature=temperature, hard_negative_weight=weight):
            return ranking_logits(queries, positives, negatives, 1 / temperature, weight)


def _accuracy(logits: jax.Array, labels: jax.Array) -> WeightedMean:
    """Returns the fraction of examples whose label has the highest logit."""
    correct = is_correct(logits, labels).astype(jnp.float32)
    return WeightedMean(jnp.sum(correct), jnp.float32(correct.shape[0]))


def pairwise_cosine(u: jax.Array, v: jax.Array) -> jax.Array:
    """Computes the cosine of each vector of u and the same row of v, both [B, E] -> [B]."""
    return jnp.sum(normalize(u) * normalize(v), axis=-1)


def softmax_logits(u: jax.Array, v: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes the logits of (u, v, |u - v|), [B, C] (Reimers and Gurevych 2019, section 3).

    Args:
      kernel: float32 [3 E, C].
      bias: float32 [C].
    """
    return _matmul(jnp.concatenate([u, v, jnp.abs(u - v)], axis=-1), kernel) + bias


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
    logits = scale * _matmul(normalize(queries), candidates.T)
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


def margin_mse_loss(
    queries: jax.Array, positives: jax.Array, negatives: jax.Array, margins: jax.Array
) -> jax.Array:
    """Computes (query . positive - query . negative - teacher's margin)^2, [B].

    The margins are the same difference of inner products of a teacher's vectors, [B]
    (Hofstätter et al. 2020).
    """
    return jnp.square(jnp.sum(queries * (positives - negatives), axis=-1) - margins)


def tanh_layer(vectors: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes tanh(vectors W + b), [..., E], the layer of SimCSE (Gao et al. 2021, section 6.3).

    Args:
      kernel: float32 [E, E].
      bias: float32 [E].
    """
    return jnp.tanh(_matmul(vectors, kernel) + bias)


def truncate(vectors: jax.Array, dim: int) -> jax.Array:
    """Returns the first `dim` components of vectors [..., E], normalized (Kusupati et al. 2022)."""
    return normalize(vectors[..., :dim])


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiplies float32 matrices, whose operands TPUs would round to bfloat16 by default."""
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _euclidean(u: jax.Array, v: jax.Array) -> jax.Array:
    """Computes |u - v| of each row, [B], with a gradient of zero where u equals v."""
    squares = jnp.sum(jnp.square(u - v), axis=-1)
    is_zero = squares == 0  # the gradient of the root is infinite there
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, squares)))
