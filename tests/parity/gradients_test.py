"""Compares the gradients of masked LM with Hugging Face's PyTorch classes, for all parameters.

The gradients of the PyTorch model are saved as if they were its parameters, so that reading the
folder gives them by the paths here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.models.model import forward
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES

torch = pytest.importorskip("torch")

FAST = ("esm", "gte", "nomic_bert")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in FAMILIES
        # BigBird's plan and Longformer's global tokens are in files of their own.
        if name not in ("bigbird", "longformer")
    ],
)
def test_gradients_of_masked_lm(tmp_path, name):
    family = FAMILIES[name]
    config = family.small
    model = family.torch_model(config, "ForMaskedLM")
    model.save_pretrained(tmp_path / "model")
    params = load_encoder(tmp_path / "model").params
    batch = pretraining_batch(
        batch_size=3, seq_length=20, max_predictions_per_seq=4, vocab_size=config.vocab_size
    )
    is_real = batch["attention_mask"] > 0
    ids = np.where(is_real, batch["input_ids"], family.pad_token_id).astype(np.int32)
    labels = np.random.default_rng(0).integers(0, config.vocab_size, ids.shape)

    fields = {"input_ids": ids, "attention_mask": batch["attention_mask"]}
    logits = model(**{name: torch.tensor(field).long() for name, field in fields.items()}).logits
    real_logits, real_labels = logits[torch.tensor(is_real)], torch.tensor(labels[is_real])
    loss = torch.nn.functional.cross_entropy(real_logits, real_labels)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.0 * parameter if parameter.grad is None else parameter.grad)
    model.save_pretrained(tmp_path / "gradients")
    expected = paths.flatten(load_encoder(tmp_path / "gradients").params)

    @jax.jit
    @jax.value_and_grad
    def loss_and_gradients(params):
        types = np.zeros_like(ids)
        logits = forward(params, config, {**fields, "token_type_ids": types})["masked_lm"]
        log_likelihoods = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        total = jnp.sum(jnp.where(is_real, log_likelihoods[..., 0], 0.0))
        return -total / np.float32(is_real.sum())

    found_loss, found = loss_and_gradients(params)
    np.testing.assert_allclose(found_loss, loss.item(), rtol=1e-6)
    flat = {p: leaf for p, leaf in paths.flatten(found).items() if "/inverse_freq" not in p}
    assert len(flat) > 20
    for path, leaf in flat.items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-4, atol=1e-6, err_msg=path)
