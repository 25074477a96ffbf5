"""The left-to-right ablation of BERT (Devlin et al. 2019, section 5.1): causal mask, next token."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.batch import ENCODER_FIELDS
from bert_jax.functional import Network, Params
from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.config import BertConfig, ComputeConfig
from bert_jax.models.layers.heads import LMHead
from bert_jax.objectives import pretraining_losses as objectives
from bert_jax.objectives.base import Batch, LossOutput
from bert_jax.objectives.config import CausalLM


class BertForCausalLM(nnx.Module):
    """Encoder under a causal mask with the LM head on every position."""

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.encoder = BertEncoder(config, compute, rngs)
        self.masked_lm = LMHead(config, compute, rngs)

    def __call__(self, batch: Batch, dropout_key: jax.Array | None = None) -> jax.Array:
        """Logits of the next token at positions 0 .. L-2, float32 [B, L-1, V]."""
        hidden = self.encoder(
            *(batch[name] for name in ENCODER_FIELDS),
            position_ids=batch.get("position_ids"),
            packing_ids=batch.get("packing_ids"),
            causal=True,
            dropout_key=dropout_key,
        ).last_hidden_state
        return self.masked_lm(
            hidden[:, :-1], self.encoder.embeddings.word_embeddings.embedding[...]
        )


class CausalLMObjective:
    """The `Program` of a `LeftToRight` config."""

    def __init__(self, config: CausalLM):
        self.config = config
        self.network = Network(lambda rngs: BertForCausalLM(config.model, config.compute, rngs))

    def abstract(self) -> Params:
        """Parameters as shapes and dtypes."""
        return self.network.abstract()

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters, float32."""
        return self.network.init(key)

    def batch_fields(self) -> tuple[str, ...]:
        """Encoder fields alone: the labels are the tokens themselves."""
        return ENCODER_FIELDS

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of next tokens."""
        return {"lm": jnp.maximum(jnp.sum(objectives.next_token_weights(batch)), 1.0)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Mean cross-entropy of the next token."""
        logits = self.network.merge(params)(batch, dropout_key)
        weighted_loss, metrics = objectives.next_token(logits, batch)
        metrics["padding_fraction"] = objectives.padding_fraction(batch)
        return LossOutput(weighted_loss.total / loss_denominators["lm"], metrics)
