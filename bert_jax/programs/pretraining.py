"""BERT pretraining: encoder, pooler and the two heads, with masked LM and next sentence."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.batch import ENCODER_FIELDS, MASKED_LM_FIELDS, NEXT_SENTENCE_FIELDS
from bert_jax.models.bert import BertEncoder, EncoderOutput
from bert_jax.models.config import BertConfig, Compute
from bert_jax.models.heads import LMHead, Pooler, gather_positions
from bert_jax.models.linear import linear
from bert_jax.nn import Network, Params
from bert_jax.objectives import pretraining as objectives
from bert_jax.objectives.mean import Mean
from bert_jax.programs.config import Pretraining
from bert_jax.programs.program import Batch, Losses


class BertForPreTraining(nnx.Module):
    """Encoder, pooler, masked-LM head and next-sentence classifier."""

    def __init__(self, config: BertConfig, compute: Compute, rngs: nnx.Rngs):
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
        table = self.encoder.embeddings.word_embeddings.embedding[...]
        return self.masked_lm(hidden, table)

    def next_sentence_logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """[B, L, D] -> float32 [B, 2]."""
        return self.next_sentence(self.pooler(hidden_BLD)).astype(jnp.float32)


class PretrainingProgram:
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

    def fields(self) -> tuple[str, ...]:
        """Encoder fields, and those of each objective that has a weight."""
        fields = ENCODER_FIELDS
        if self.config.mlm_weight:
            fields += MASKED_LM_FIELDS
        if self.config.nsp_weight:
            fields += NEXT_SENTENCE_FIELDS
        return fields

    def normalisers(self, batch: Batch) -> dict[str, jax.Array]:
        """Selected positions for masked LM, rows for next sentence."""
        norms = {}
        if self.config.mlm_weight:
            norms["mlm"] = jnp.maximum(jnp.sum(batch["masked_lm_weights"]), 1.0)
        if self.config.nsp_weight:
            norms["nsp"] = jnp.float32(batch["next_sentence_labels"].shape[0])
        return norms

    def losses(
        self,
        params: Params,
        batch: Batch,
        normalisers: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> Losses:
        """loss = mlm_weight * MLM + nsp_weight * NSP; one without weight is not computed."""
        network = self.network.bind(params)
        hidden = network.encode(batch, dropout_key).last_hidden_state
        loss = jnp.float32(0)
        metrics: dict[str, Mean] = {"padding_share": objectives.padding_share(batch)}
        if self.config.mlm_weight:
            chosen = gather_positions(hidden, batch["masked_lm_positions"])
            logits = network.masked_lm_logits(chosen)
            part, parts = objectives.masked_lm(logits, batch, self.config.mask_token_id)
            loss += self.config.mlm_weight * part.total / normalisers["mlm"]
            metrics |= parts
        if self.config.nsp_weight:
            part, parts = objectives.next_sentence(network.next_sentence_logits(hidden), batch)
            loss += self.config.nsp_weight * part.total / normalisers["nsp"]
            metrics |= parts
        return Losses(loss, metrics)
