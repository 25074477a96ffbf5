"""Covers bert_jax/models/parameters.py: parameters are checked against the config."""

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.config.objectives import Pretraining
from bert_jax.errors import UserError
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import run_forward
from bert_jax.models.parameters import validate_params
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths


def test_forward_computes_what_pretraining_computes():
    config = small_config()
    objective = PretrainingObjective(Pretraining(model=config, mask_token_id=4))
    params = paths.unflatten(random_parameters(config))
    batch = pretraining_batch(batch_size=2, seq_length=16, max_predictions_per_seq=3, vocab_size=18)

    def whole(params, batch):
        network = objective.network.merge(params)
        hidden = network.encode(batch, output_hidden_states=True).hidden_states
        return (
            hidden,
            network.masked_lm_logits(hidden[-1]),
            network.next_sentence_logits(hidden[-1]),
        )

    hidden, masked_lm, next_sentence = jax.device_get(jax.jit(whole)(params, batch))
    found = run_forward(params, config, batch)
    np.testing.assert_allclose(found["hidden_states"], hidden, atol=1e-6)
    np.testing.assert_allclose(found["masked_lm"], masked_lm, atol=1e-6)
    np.testing.assert_allclose(found["next_sentence"], next_sentence, atol=1e-6)


def test_error_names_the_first_parameter_that_does_not_fit():
    config = small_config()
    flat = random_parameters(config)
    validate_params(flat, config, "here")
    validate_params({p: a for p, a in flat.items() if p.startswith("encoder/")}, config, "here")
    without = {p: a for p, a in flat.items() if p != "encoder/layers/1/attention/key/bias"}
    with pytest.raises(UserError, match="layers/1/attention/key/bias is missing"):
        validate_params(without, config, "here")
    half = {p: a for p, a in flat.items() if p != "pooler/dense/bias"}
    with pytest.raises(UserError, match="pooler/dense/bias is missing"):
        validate_params(half, config, "here")
    more = {**flat, "encoder/layers/2/attention/key/bias": np.zeros(16)}
    with pytest.raises(UserError, match="encoder/layers/2/attention/key/bias is not expected"):
        validate_params(more, config, "here")
    longer = small_config(positions=LearnedPositions(max_position_embeddings=24))
    with pytest.raises(UserError, match=r"shape \[20, 16\], the config requires \[24, 16\]"):
        validate_params(flat, longer, "here")
