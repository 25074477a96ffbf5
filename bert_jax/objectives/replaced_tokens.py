"""Computes the loss of replaced-token detection with a generator that is trained jointly.

Source: Clark et al. 2020, section 2 (ELECTRA); He et al. 2023, section 3 (DeBERTa-v3). The
generator is a masked language model. At every selected position its prediction is sampled and
replaces the token, and the discriminator decides for every token of the result whether it is the
original one. No gradient passes through the sampling.

The parameters of the discriminator are at the root, so that it is a model like any other, and those
of the generator under "generator". Where their embeddings are depends on `embedding_sharing`:

- `"shared"`: the generator has none. It uses the discriminator's: the word, position
  and token-type tables and their LayerNorm, as in ELECTRA's code (`run_pretraining.py`,
  `untied_generator_embeddings` False).
- `"gradient_disentangled"`: the word and position tables are stored once, in the generator.
  The discriminator stores a "difference" for each, which is added to the generator's table without
  a gradient for it, as in DeBERTa's code (`rtd_task.py`).
- None: both have embeddings.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.batch import ENCODER_FIELDS, MASKED_LM_FIELDS, SAMPLING_FIELDS
from bert_jax.config.objectives import (
    ReplacedTokens,
)
from bert_jax.losses import WeightedMean, padding_fraction, weighted_mean
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.layers.dropout import column_keys, finalize_hash
from bert_jax.models.model import build_network
from bert_jax.objectives.base import (
    Batch,
    BatchSizes,
    LossOutput,
    Objective,
    TrainedModel,
    masked_lm_flops,
)
from bert_jax.objectives.pretraining import Metrics, masked_lm_loss
from bert_jax.params.functional import Params
from bert_jax.params.paths import GENERATOR, without_auxiliary_networks

_EMBEDDINGS = "embeddings"
_TABLE, _DIFFERENCE = "embedding", "difference"
DIFFERENCE_TABLES = ("word_embeddings", "position_embeddings")
"""The tables to which a `"gradient_disentangled"` discriminator adds a difference."""


# One step updates both networks. DeBERTa's code makes two, each clipped by its own norm: no
# gradient has terms of both losses, so Adam's updates are the same, but gradients are clipped here
# by their common norm. Its enhanced mask decoder is left out: no class of Hugging Face has it, so
# the generator could not fill masks after its export. Unlike ELECTRA's code, positions are selected
# without replacement: at a position drawn twice it puts the average of two ids, an unrelated token.
class ReplacedTokensObjective(Objective):
    """Implements the `Objective` of a `ReplacedTokens` config.

    Attributes:
      network: the discriminator with its head.
      generator: the generator with its masked-LM head.
    """

    shown_metrics = ("mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "loss")

    def __init__(self, config: ReplacedTokens):
        self.config: ReplacedTokens = config
        self.network = build_network(config.model, ("replaced_token",), compute=config.compute)
        self.generator = build_network(config.generator, ("masked_lm",), compute=config.compute)

    def abstract(self) -> Params:
        """Returns the parameters as shapes and dtypes."""
        return self._join(self.network.abstract(), self.generator.abstract())

    def init(self, key: jax.Array) -> Params:
        """Returns newly initialized parameters, float32."""
        network_key, generator_key = jax.random.split(key)
        return self._join(self.network.init(network_key), self.generator.init(generator_key))

    def _join(self, discriminator: Params, generator: Params) -> Params:
        """Joins the parameters of two complete networks; differences of embeddings are 0."""
        match self.config.embedding_sharing:
            case "shared":
                encoder = {n: p for n, p in generator["encoder"].items() if n != _EMBEDDINGS}
                generator = {**generator, "encoder": encoder}
            case "gradient_disentangled":
                discriminator = _map_tables(
                    discriminator, lambda _, table: {_DIFFERENCE: _zeros(table[_TABLE])}
                )
            case None:
                pass
        return {**discriminator, GENERATOR: generator}

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of the encoder, of masked LM and of the sampling."""
        return ENCODER_FIELDS + MASKED_LM_FIELDS + SAMPLING_FIELDS

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of selected positions for masked LM, and of all real tokens."""
        return {
            "mlm": jnp.maximum(jnp.sum(batch["masked_lm_weights"]), 1.0),
            "rtd": jnp.maximum(jnp.sum(batch["attention_mask"].astype(jnp.float32)), 1.0),
        }

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes mlm_weight * MLM of the generator + rtd_weight * RTD of the discriminator."""
        generator_key = discriminator_key = None
        if dropout_key is not None:
            generator_key, discriminator_key = jax.random.split(dropout_key)
        generator = self.generator.merge(generator_params(params))
        hidden = generator.encode(batch, generator_key).last_hidden_state
        logits = generator.masked_lm_logits(gather_positions(hidden, batch["masked_lm_positions"]))
        mlm_loss, metrics = masked_lm_loss(logits, batch, self.config.mask_token_id)

        sampled_ids = sample_tokens(jax.lax.stop_gradient(logits), batch["sampling_seeds"])
        input_ids, is_replaced = replace_tokens(batch, sampled_ids)
        discriminator = self.network.merge(discriminator_params(params))
        hidden = discriminator.encode(
            {**batch, "input_ids": input_ids}, discriminator_key
        ).last_hidden_state
        rtd_loss, rtd_metrics = replaced_token_loss(
            discriminator.replaced_token(hidden, batch.get("position_ids")),
            is_replaced,
            batch["attention_mask"],
        )
        loss = (
            self.config.mlm_weight * mlm_loss.total / loss_denominators["mlm"]
            + self.config.rtd_weight * rtd_loss.total / loss_denominators["rtd"]
        )
        is_original = sampled_ids == batch["masked_lm_ids"]
        return LossOutput(
            loss,
            {
                "padding_fraction": padding_fraction(batch),
                **metrics,
                "sampled_accuracy": weighted_mean(is_original, batch["masked_lm_weights"]),
                **rtd_metrics,
            },
        )

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the generator, and of the discriminator's head.

        For each token these are the generator's layers and D x D and D x 1 of the head.
        """
        model, generator = self.config.model, self.config.generator
        token_flops = generator.encoder_flops(sizes.length)
        token_flops += 2 * model.hidden_size * (model.hidden_size + 1)
        num_predictions = sizes.examples * sizes.predictions
        return sizes.examples * sizes.length * token_flops + num_predictions * masked_lm_flops(
            generator
        )

    def pretrained_path(self, path: str, head: TaskHead | None) -> str | None:
        """Returns the path in a pretrained discriminator from which to initialize a parameter.

        With `"gradient_disentangled"` the generator starts from the embeddings of the
        pretrained discriminator, so that the discriminator starts from them as well: its
        differences are 0.
        """
        prefix = f"{GENERATOR}/encoder/{_EMBEDDINGS}/"
        is_table = path in {f"{prefix}{name}/{_TABLE}" for name in DIFFERENCE_TABLES}
        if is_table and self.config.embedding_sharing == "gradient_disentangled":
            return path.removeprefix(f"{GENERATOR}/")
        return path

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the discriminator, with complete embeddings."""
        del task
        discriminator = jax.device_get(discriminator_params(params))
        return TrainedModel(params=without_auxiliary_networks(discriminator))


def generator_params(params: Params) -> Params:
    """Returns the complete parameters of the generator, embeddings included."""
    generator = params[GENERATOR]
    shared = {_EMBEDDINGS: params["encoder"][_EMBEDDINGS]}
    return {**generator, "encoder": {**shared, **generator["encoder"]}}


# With disentangled embeddings the tables have the name "difference", so that the parameters show by
# themselves how they are shared: sharding, decay and optimizer state need one row each, and export
# gets the sum.
def discriminator_params(params: Params) -> Params:
    """Returns the complete parameters of the discriminator, embeddings included.

    No gradient reaches the tables of the generator to which differences are added.
    """

    def add_difference(name: str, table: Params) -> Params:
        if _DIFFERENCE not in table:
            return table
        base = params[GENERATOR]["encoder"][_EMBEDDINGS][name][_TABLE]
        return {_TABLE: jax.lax.stop_gradient(base) + table[_DIFFERENCE]}

    return _map_tables(without_auxiliary_networks(params), add_difference)


def _map_tables(params: Params, function: Callable[[str, Params], Params]) -> Params:
    """Applies `function(name, parameters)` to each of `DIFFERENCE_TABLES` in the parameters."""
    embeddings = params["encoder"][_EMBEDDINGS]
    tables = {n: function(n, embeddings[n]) for n in DIFFERENCE_TABLES if n in embeddings}
    return {**params, "encoder": {**params["encoder"], _EMBEDDINGS: {**embeddings, **tables}}}


def _zeros(leaf: Any) -> Any:
    """Returns zeros like an array; the same shape and dtype for a `ShapeDtypeStruct`."""
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.zeros_like(leaf)


def sample_tokens(logits_BPV: jax.Array, seeds_BP: jax.Array) -> jax.Array:
    """Samples from softmax(logits) at each position: argmax of logits plus Gumbel noise.

    Args:
      logits_BPV: float32.
      seeds_BP: int32 random numbers, all 32 bits of which are used.

    Returns:
      Token ids, int32 [B, P].
    """
    noise = gumbel_noise(seeds_BP, logits_BPV.shape[-1])
    return jnp.argmax(logits_BPV.astype(jnp.float32) + noise, axis=-1).astype(jnp.int32)


# A hash of 32 random bits that the loader gives to each prediction, and of the token's id: samples
# do not depend on devices, microbatches or restarts, and no random bits of size [B, P, V] are
# generated.
def gumbel_noise(seeds_BP: jax.Array, vocab_size: int) -> jax.Array:
    """Returns numbers with the standard Gumbel distribution, float32 [B, P, V].

    Each is a hash of a seed and a token id, like the masks of dropout. It is therefore the same on
    any number of devices and in microbatches of any size.
    """
    row_keys = jax.lax.bitcast_convert_type(seeds_BP, jnp.uint32)[..., None]
    token_ids = jax.lax.broadcasted_iota(jnp.uint32, (1, 1, vocab_size), 2)
    token_keys = column_keys(token_ids, jnp.array([0x243F6A88, 0x85A308D3], jnp.uint32))
    bits = finalize_hash(row_keys + token_keys)
    # Signed, because the conversion of unsigned integers takes longer on TPUs.
    uniform = (bits >> jnp.uint32(1)).astype(jnp.int32).astype(jnp.float32) * 2.0**-31 + 2.0**-32
    # A large Gumbel number needs a small `uniform`, which float32 resolves well; the usual formula
    # -log(-log(u)) needs one next to 1, and would cut off tokens with probabilities below 1e-7.
    # One number in 30 million rounds to 1: its noise is -inf, so that token is not sampled.
    return -jnp.log(-jnp.log1p(-uniform))


# ELECTRA's code counts [CLS] and [SEP] in the 15 %, makes two segments with token types 0 and 1
# (here the second type is first trained in fine-tuning), and computes GELU by tanh; here it is erf,
# as in Hugging Face. Its task heads are one linear layer, and Hugging Face's are used here.
# DeBERTa's code selects one token in each window of six.
def replace_tokens(batch: Batch, sampled_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Puts sampled tokens at the selected positions.

    Args:
      sampled_ids: int32 [B, P].

    Returns:
      Token ids, int32 [B, L], and whether a token differs from the original, bool [B, L]. A
      position where the original token was sampled counts as not replaced.
    """
    length = batch["input_ids"].shape[1]
    positions, is_used = batch["masked_lm_positions"], batch["masked_lm_weights"] > 0
    # Compared and summed instead of scattered: XLA partitions and fuses this, and unused entries
    # need no position of their own. Positions are unique, so each sum has one term at most.
    is_here = (positions[..., None] == jnp.arange(length)) & is_used[..., None]  # [B, P, L]
    sampled_BL = jnp.sum(jnp.where(is_here, sampled_ids[..., None], 0), axis=1)
    is_wrong = (sampled_ids != batch["masked_lm_ids"])[..., None]
    input_ids = jnp.where(jnp.any(is_here, axis=1), sampled_BL, batch["input_ids"])
    return input_ids, jnp.any(is_here & is_wrong, axis=1)


def replaced_token_loss(
    logits_BL: jax.Array, is_replaced: jax.Array, attention_mask: jax.Array
) -> tuple[WeightedMean, Metrics]:
    """Computes the sigmoid cross-entropy over all real tokens, [CLS] and [SEP] included.

    The metrics are loss and accuracy over all real tokens, precision over the tokens that are
    predicted as replaced, and recall over the tokens that are replaced.
    """
    weights = attention_mask.astype(jnp.float32)
    labels = is_replaced.astype(jnp.float32)
    # softplus(x) - x * label is -log sigmoid(x) for label 1 and -log(1 - sigmoid(x)) for 0.
    losses = jax.nn.softplus(logits_BL) - logits_BL * labels
    is_predicted = logits_BL > 0
    loss = weighted_mean(losses, weights)
    return loss, {
        "rtd_loss": loss,
        "rtd_accuracy": weighted_mean(is_predicted == is_replaced, weights),
        "rtd_precision": weighted_mean(is_replaced, jnp.where(is_predicted, weights, 0.0)),
        "rtd_recall": weighted_mean(is_predicted, weights * labels),
    }
