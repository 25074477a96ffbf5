"""Defines the objective of TSDAE: a text is predicted from the vector of a part of its words.

The definition is that of `DenoisingAutoEncoderLoss` of sentence-transformers with tied weights.
"""

import jax
import jax.numpy as jnp

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.losses import WeightedMean, cross_entropy, is_correct, padding_fraction
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.models.sentence_encoder.denoising import build_denoising_auto_encoder
from bert_jax.objectives.base import Batch, BatchSizes, LossOutput, masked_lm_flops
from bert_jax.objectives.sentence_embeddings import SentenceEmbeddingObjective
from bert_jax.params.functional import Params


class DenoisingEmbeddingObjective(SentenceEmbeddingObjective):
    """Implements the `Objective` of a `SentenceEmbedding` with a `DenoisingAutoEncoderLoss`.

    The texts of an example are the text without some of its words, and the text.
    """

    def __init__(self, config: SentenceEmbedding):
        assert isinstance(config.sentence_encoder, SentenceEncoderConfig)
        self.config, self._sentence_config = config, config.sentence_encoder
        self.network = build_denoising_auto_encoder(
            config.model, config.sentence_encoder, config.compute
        )

    def abstract(self) -> Params:
        """Returns the parameters as shapes and dtypes."""
        return self.network.abstract()

    def init(self, key: jax.Array) -> Params:
        """Initializes new parameters, float32."""
        return self.network.init(key)

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the texts."""
        return CHOICE_FIELDS

    def masked_lm_purpose(self) -> str:
        """Returns why a pretrained model must have a masked-LM head."""
        return "be trained with --loss tsdae, whose decoder predicts tokens"

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of predicted tokens: all but the first of each text."""
        return {"loss": jnp.sum(_weights(batch))}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the mean cross-entropy of the tokens; the metric is their accuracy."""
        network = self.network.merge(params)
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        noisy, texts = _texts(batch, 0), _texts(batch, 1)
        vectors = network.embed(noisy, None, keys[0])
        logits = network.reconstruct(vectors, texts, keys[1])[:, :-1]
        labels, weights = texts["input_ids"][:, 1:], _weights(batch)
        total = jnp.sum(weights * cross_entropy(logits, labels))
        correct = jnp.sum(weights * is_correct(logits, labels).astype(jnp.float32))
        metrics = {
            "accuracy": WeightedMean(correct, jnp.sum(weights)),
            "padding_fraction": padding_fraction({"attention_mask": noisy["attention_mask"]}),
        }
        return LossOutput(total / loss_denominators["loss"], metrics)

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the masked-LM head at all positions of the whole texts.

        Those of the decoder's layers are counted by `encoder_flops`, as half of all sequences.
        """
        return sizes.sequences / 2 * sizes.length * masked_lm_flops(self.config.model)


def _texts(batch: Batch, number: int) -> dict[str, jax.Array]:
    """Returns one text of each example as the encoder's fields, [B, L]."""
    return {
        field: batch[name][:, number]
        for name, field in zip(CHOICE_FIELDS, ENCODER_FIELDS, strict=True)
    }


def _weights(batch: Batch) -> jax.Array:
    """Returns 1 for each token that is predicted and 0 for padding, float32 [B, L - 1]."""
    return _texts(batch, 1)["attention_mask"][:, 1:].astype(jnp.float32)
