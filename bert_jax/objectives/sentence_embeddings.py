"""Defines the objective of training a sentence encoder: vectors of all texts, then the loss.

An example has A texts: a pair, a triple, a text twice (SimCSE) or a single text. To save memory,
texts can be encoded in chunks, as in GradCache (Gao et al. 2021, "Scaling Deep Contrastive Learning
Batch Size under Memory Limited Setup"): a scan encodes one chunk after another, the loss reads the
vectors of the whole batch, and the backward pass computes the intermediate results of each chunk
again (`jax.checkpoint`). On several devices XLA gathers the vectors, so that the negatives of a
query come from all devices.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS, PACKED_TOKENS, encoder_inputs
from bert_jax.config.embedding_losses import (
    AdaptiveLayerLoss,
    AnglELoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    DistillKLDivLoss,
    EmbedDistillLoss,
    GISTEmbedLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    SingleLoss,
    SoftmaxLoss,
    SupervisedSimCSE,
    TripletLoss,
    UnsummedLoss,
    UnsupervisedSimCSE,
    single_loss,
)
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.losses import WeightedMean, cross_entropy, is_correct, padding_fraction
from bert_jax.models.sentence_encoder.config import SENTENCE_HEAD, SentenceEncoderConfig
from bert_jax.models.sentence_encoder.network import build_sentence_encoder
from bert_jax.objectives.base import Batch, BatchSizes, LossOutput, Objective, TrainedModel
from bert_jax.objectives.distillation import soft_target_loss
from bert_jax.objectives.embedding_losses import (
    contrastive_loss,
    cosent_loss,
    cosine_similarity_loss,
    embed_distill_loss,
    guided_ranking_logits,
    linear_layer,
    mse_loss,
    own_dot_products,
    pairwise_angle,
    pairwise_cosine,
    ranking_logits,
    ranking_loss,
    score_distillation_loss,
    softmax_logits,
    symmetric_ranking_loss,
    triplet_loss,
    truncate,
)
from bert_jax.params.functional import Params

SOFTMAX_CLASSIFIER = "softmax_classifier"
"""The name of the linear layer of `SoftmaxLoss` in the parameters; exports leave it out."""
SIMCSE_MLP = "simcse_mlp"
"""The name of the layer of `UnsupervisedSimCSE.mlp_only_train`; exports leave it out."""

PROJECTION = "teacher_projection"
"""The name of the layer of `EmbedDistillLoss.projection_size`; exports leave it out."""

Metrics = dict[str, WeightedMean]


# The texts of an example are the choices of a batch, [B, A, L], so that collation needs nothing
# new; `packed_tokens` says in which rows they are encoded.
class SentenceEmbeddingObjective(Objective):
    """Implements the `Objective` of a `SentenceEmbedding` config, and the vectors of texts."""

    starts_from = "sentence encoder"

    def __init__(self, config: SentenceEmbedding):
        assert isinstance(config.sentence_encoder, SentenceEncoderConfig)
        assert not isinstance(config.loss, UnsummedLoss)
        self.config, self._sentence_config = config, config.sentence_encoder
        self.network = build_sentence_encoder(config.model, config.sentence_encoder, config.compute)
        self._dense_loss, loss = config.loss, single_loss(config.loss)
        assert not isinstance(loss, UnsummedLoss)
        self._loss = loss

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
            case MSELoss() | EmbedDistillLoss():
                return (*ENCODER_FIELDS, "teacher_vectors")
            case GISTEmbedLoss():
                return (*CHOICE_FIELDS, "guide_vectors")
            case SoftmaxLoss() | ContrastiveLoss():
                return (*CHOICE_FIELDS, "labels")
            case CosineSimilarityLoss() | CoSENTLoss() | AnglELoss():
                return (*CHOICE_FIELDS, "label_values")
            case MarginMSELoss() | DistillKLDivLoss():
                return (*CHOICE_FIELDS, "label_logits")
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
        vectors = self.example_vectors(params, batch, dropout_key)
        if SIMCSE_MLP in params:
            vectors = jnp.tanh(linear_layer(vectors, **params[SIMCSE_MLP]))
        if PROJECTION in params:
            vectors = linear_layer(vectors, **params[PROJECTION])
        classifier = params.get(SOFTMAX_CLASSIFIER, {})
        if isinstance(self._dense_loss, AdaptiveLayerLoss):
            total, metrics = adaptive_layer_loss(self._dense_loss, vectors, batch, classifier)
        else:
            total, metrics = loss_of_vectors(self._dense_loss, vectors, batch, classifier)
        metrics = metrics | encoded_padding(batch, self.config.first_text_length)
        return LossOutput(total / loss_denominators["loss"], metrics)

    def encoded_sequences(self, sizes: BatchSizes) -> tuple[tuple[int, int], ...]:
        """See `Objective`: first texts can be shorter."""
        return sequences_of_texts(sizes, self.config.first_text_length)

    def example_vectors(
        self, params: Params, batch: Batch, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Computes the vectors of all texts of a batch, in chunks, float32 [B, A, E].

        For an `AdaptiveLayerLoss` they are those of all layers, [B, A, N + 1, E].
        """
        network = self.network.merge(params)
        fields = CHOICE_FIELDS if CHOICE_FIELDS[0] in batch else ENCODER_FIELDS
        texts = {name: batch[name] for name in (*fields, PACKED_TOKENS) if name in batch}
        has_layers = isinstance(self._dense_loss, AdaptiveLayerLoss)

        def embed(inputs: Batch, key: jax.Array | None) -> jax.Array:
            if has_layers:
                return network.embed_layers(inputs, key)
            return network.embed(inputs, None, key)

        def encode(texts: Batch, key: jax.Array | None) -> jax.Array:
            return embed_texts(embed, texts, self.config.first_text_length, key)

        return encode_in_chunks(encode, texts, dropout_key, self.config.chunk_size)

    def embed(self, params: Params, batch: Batch) -> jax.Array:
        """Computes the vectors of texts without dropout, float32 [B, E]: pure, for `jax.jit`.

        They have `truncate_dim` components.
        """
        vectors = self.network.merge(params).embed(encoder_inputs(batch), None, None)
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
        match self._loss:
            case SoftmaxLoss(labels=labels):
                name, shape = SOFTMAX_CLASSIFIER, (3 * size, len(labels))
            case EmbedDistillLoss(projection_size=int(projection_size)):
                name, shape = PROJECTION, (size, projection_size)
            case _:
                return {}
        limit = shape[0] ** -0.5  # as PyTorch
        kernel = jax.random.uniform(key, shape, jnp.float32, -limit, limit)
        return {name: {"kernel": kernel, "bias": jnp.zeros(shape[1], jnp.float32)}}


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


def embed_texts(
    embed: Callable[[Batch, jax.Array | None], jax.Array],
    texts: Batch,
    first_length: int | None,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """Returns the outputs of `embed` for all texts of examples, [B, A, ...].

    Args:
      embed: maps the encoder's fields [rows, L] and a dropout key to [rows, ...].
      texts: `CHOICE_FIELDS` [B, A, L], or `ENCODER_FIELDS` [B, L], and "packed_tokens" if texts
        share rows.
      first_length: see `SentenceEmbedding.first_text_length`.
      dropout_key: None to apply no dropout.
    """
    size = _num_examples(texts)
    first, others = _split_texts(texts, first_length)
    if first is None:
        vectors = embed(others, dropout_key)
        return vectors.reshape(size, -1, *vectors.shape[1:])
    keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
    first_vectors, vectors = embed(first, keys[0]), embed(others, keys[1])
    vectors = vectors.reshape(size, -1, *vectors.shape[1:])
    return jnp.concatenate([first_vectors[:, None], vectors], axis=1)


def sequences_of_texts(sizes: BatchSizes, first_length: int | None) -> tuple[tuple[int, int], ...]:
    """Returns (number, length) of the sequences that are encoded.

    Args:
      first_length: see `SentenceEmbedding.first_text_length`; 0 if first texts are not encoded.
    """
    has_one_text = sizes.sequences == sizes.examples
    if sizes.is_packed or has_one_text or first_length is None or first_length >= sizes.length:
        return ((sizes.sequences, sizes.length),)
    return ((sizes.examples, first_length), (sizes.sequences - sizes.examples, sizes.length))


def encoded_padding(batch: Batch, first_length: int | None) -> Metrics:
    """Returns the fraction of the encoded positions that are padding; see `sequences_of_texts`."""
    if PACKED_TOKENS in batch:
        is_token = (batch[PACKED_TOKENS] >= 0).astype(jnp.int32)
        return {"padding_fraction": padding_fraction({"attention_mask": is_token})}
    first, others = _split_texts(batch, first_length)
    fraction = padding_fraction(others)
    if first is not None:
        fraction = WeightedMean(*jax.tree.map(jnp.add, fraction, padding_fraction(first)))
    return {"padding_fraction": fraction}


def _split_texts(texts: Batch, first_length: int | None) -> tuple[Batch | None, Batch]:
    """Returns the first texts [B, first_length] if they are encoded on their own, and the others.

    Otherwise there are no first texts, and the others are all texts, [B x A, L].
    """
    if PACKED_TOKENS in texts:
        return None, encoder_inputs(texts) | {PACKED_TOKENS: texts[PACKED_TOKENS]}
    if CHOICE_FIELDS[0] not in texts:
        return None, encoder_inputs(texts)
    _, num_texts, length = texts[CHOICE_FIELDS[0]].shape
    if first_length is None or first_length >= length or num_texts == 1:
        return None, encoder_inputs(texts)
    return first_texts(texts, first_length), text_rows(texts, slice(1, None))


def first_texts(texts: Batch, length: int | None) -> Batch:
    """Returns the first text of each example as the encoder's fields, cut to `length`, [B, L]."""
    rows = text_rows(texts, slice(0, 1))
    return {name: ids[:, :length] for name, ids in rows.items()}


def text_rows(texts: Batch, chosen: slice) -> Batch:
    """Returns some of the A texts of all examples as the encoder's fields, [B x A', L]."""
    return {
        field: texts[name][:, chosen].reshape(-1, texts[name].shape[-1])
        for name, field in zip(CHOICE_FIELDS, ENCODER_FIELDS, strict=True)
    }


def _num_examples(batch: Batch) -> int:
    return batch[CHOICE_FIELDS[0] if CHOICE_FIELDS[0] in batch else ENCODER_FIELDS[0]].shape[0]


def adaptive_layer_loss(
    loss: AdaptiveLayerLoss, vectors_BANE: jax.Array, batch: Batch, classifier: Params
) -> tuple[jax.Array, Metrics]:
    """Computes the sum of the losses of all examples, and the metrics of the last layer.

    Args:
      vectors_BANE: float32 [B, A, N, E], the vectors of all layers, that of the last one last.
      batch, classifier: see `loss_of_vectors`.
    """
    *earlier, last = jnp.unstack(vectors_BANE, axis=2)
    total, metrics = loss_of_vectors(loss.loss, last, batch, classifier)
    for vectors in earlier:
        part, _ = loss_of_vectors(loss.loss, vectors, batch, classifier)
        total += loss.prior_layers_weight * part / len(earlier)
        # `soft_target_loss` has the square of the temperature as a factor.
        divergence = soft_target_loss(vectors, last, loss.kl_temperature) / loss.kl_temperature
        total += loss.kl_div_weight * jnp.sum(jnp.mean(divergence, axis=1))
    return total, metrics


def loss_of_vectors(
    loss: SingleLoss | MatryoshkaLoss, vectors_BAE: jax.Array, batch: Batch, classifier: Params
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
            cosines = pairwise_cosine(first, others[0])
            values = jnp.full(size, cosent_loss(cosines, batch["label_values"], scale))
        case AnglELoss(scale=scale):
            angles = pairwise_angle(first, others[0])
            values = jnp.full(size, cosent_loss(angles, batch["label_values"], scale))
        case MultipleNegativesRankingLoss() | UnsupervisedSimCSE() | SupervisedSimCSE():
            logits = _ranking_logits(loss, first, others)
            symmetric = isinstance(loss, MultipleNegativesRankingLoss) and loss.symmetric
            values = (symmetric_ranking_loss if symmetric else ranking_loss)(logits)
            metrics = {"accuracy": _accuracy(logits, jnp.arange(size))}
        case GISTEmbedLoss(temperature=temperature, margin=margin):
            guide = batch["guide_vectors"]
            logits = guided_ranking_logits(vectors_BAE, guide, temperature, margin)
            values = ranking_loss(logits)
            metrics = {"accuracy": _accuracy(logits, jnp.arange(size))}
        case TripletLoss(margin=margin):
            values = triplet_loss(first, *others, margin=margin)
        case ContrastiveLoss(margin=margin):
            values = contrastive_loss(first, others[0], batch["labels"], margin)
        case MSELoss():
            values = mse_loss(first, batch["teacher_vectors"])
        case EmbedDistillLoss(distance=distance):
            values = embed_distill_loss(first, batch["teacher_vectors"], distance)
        case MarginMSELoss() | DistillKLDivLoss():
            scores = own_dot_products(vectors_BAE)
            values = score_distillation_loss(loss, scores, batch["label_logits"])
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
