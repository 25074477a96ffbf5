"""BERT pretraining: encoder, pooler and the two heads, with masked LM and next sentence."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.batch import ENCODER_FIELDS, MASKED_LM_FIELDS, NEXT_SENTENCE_FIELDS
from bert_jax.functional import Network, Params
from bert_jax.models.bert.model import BertEncoder, EncoderOutput
from bert_jax.models.config import BertConfig, ComputeConfig
from bert_jax.models.layers.heads import LMHead, Pooler, gather_positions
from bert_jax.models.layers.linear import linear
from bert_jax.objectives import pretraining_losses as objectives
from bert_jax.objectives.base import Batch, LossOutput
from bert_jax.objectives.config import Pretraining
from bert_jax.objectives.weighted_mean import WeightedMean


class BertForPreTraining(nnx.Module):
    """Encoder, pooler, masked-LM head and next-sentence classifier."""

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.encoder = BertEncoder(config, compute, rngs)
        self.pooler = Pooler(config, compute, rngs)
        self.masked_lm = LMHead(config, compute, rngs)
        self.next_sentence = linear(config.hidden_size, 2, config, compute, rngs)

    def encode(
        self, batch: Batch, dropout_key: jax.Array | None = None, **capture: bool
    ) -> EncoderOutput:
        """The encoder on a batch's fields; see `BertEncoder.__call__`."""
        return self.encoder(
            *(batch[name] for name in ENCODER_FIELDS),
            position_ids=batch.get("position_ids"),
            packing_ids=batch.get("packing_ids"),
            dropout_key=dropout_key,
            **capture,
        )

    def masked_lm_logits(self, hidden: jax.Array) -> jax.Array:
        """[..., D] -> float32 [..., V]."""
        word_embeddings = self.encoder.embeddings.word_embeddings.embedding[...]
        return self.masked_lm(hidden, word_embeddings)

    def next_sentence_logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """[B, L, D] -> float32 [B, 2]."""
        return self.next_sentence(self.pooler(hidden_BLD)).astype(jnp.float32)


class PretrainingObjective:
    """The `Program` of a `Pretraining` config."""

    def __init__(self, config: Pretraining):
        self.config = config
        self.network = Network(lambda rngs: BertForPreTraining(config.model, config.compute, rngs))

    def abstract(self) -> Params:
        """Parameters as shapes and dtypes."""
        return self.network.abstract()

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters, float32."""
        return self.network.init(key)

    def batch_fields(self) -> tuple[str, ...]:
        """Encoder fields, and those of each objective that has a weight."""
        fields = ENCODER_FIELDS
        if self.config.mlm_weight:
            fields += MASKED_LM_FIELDS
        if self.config.nsp_weight:
            fields += NEXT_SENTENCE_FIELDS
        return fields

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Selected positions for masked LM, rows for next sentence."""
        denominators = {}
        if self.config.mlm_weight:
            denominators["mlm"] = jnp.maximum(jnp.sum(batch["masked_lm_weights"]), 1.0)
        if self.config.nsp_weight:
            denominators["nsp"] = jnp.float32(batch["next_sentence_labels"].shape[0])
        return denominators

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """loss = mlm_weight * MLM + nsp_weight * NSP; one without weight is not computed."""
        network = self.network.merge(params)
        hidden = network.encode(batch, dropout_key).last_hidden_state
        loss = jnp.float32(0)
        metrics: dict[str, WeightedMean] = {"padding_fraction": objectives.padding_fraction(batch)}
        if self.config.mlm_weight:
            selected_hidden = gather_positions(hidden, batch["masked_lm_positions"])
            logits = network.masked_lm_logits(selected_hidden)
            weighted_loss, objective_metrics = objectives.masked_lm(
                logits, batch, self.config.mask_token_id
            )
            loss += self.config.mlm_weight * weighted_loss.total / loss_denominators["mlm"]
            metrics |= objective_metrics
        if self.config.nsp_weight:
            weighted_loss, objective_metrics = objectives.next_sentence(
                network.next_sentence_logits(hidden), batch
            )
            loss += self.config.nsp_weight * weighted_loss.total / loss_denominators["nsp"]
            metrics |= objective_metrics
        return LossOutput(loss, metrics)
