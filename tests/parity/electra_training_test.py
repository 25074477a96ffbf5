"""Compares ELECTRA's pretraining with a PyTorch loop over Hugging Face's classes.

Both networks are Hugging Face's, with the losses that their classes compute. They share the modules
of their embeddings. The samples of the loop are those of its own generator, with the Gumbel noise
that the objective has.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import ReplacedTokens
from bert_jax.models.electra.config import ElectraConfig, generator_config
from bert_jax.models.electra.huggingface import HUGGING_FACE
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective, gumbel_noise
from bert_jax.params import paths
from tests.helpers.families import FAMILIES
from tests.helpers.torch_training import (
    STEPS,
    long_fields,
    masked_lm_labels,
    train_config,
    train_jax,
    train_torch,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODEL = ElectraConfig(
    vocab_size=300,
    embedding_size=48,
    hidden_size=128,
    num_hidden_layers=1,  # model_test.py has networks of several layers
    num_attention_heads=4,
    intermediate_size=256,
    positions=LearnedPositions(max_position_embeddings=32),
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
GENERATOR = generator_config(MODEL, 0.5)


def params_of(model: Any, config: ElectraConfig) -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    flat = HUGGING_FACE.names(config, None).from_external(state, "torch")
    return paths.unflatten({path: jnp.asarray(leaf) for path, leaf in flat.items()})


def test_twenty_training_steps():
    discriminator = FAMILIES["electra"].torch_model(MODEL, "ForPreTraining", seed=1)
    generator = FAMILIES["electra"].torch_model(GENERATOR, "ForMaskedLM", seed=2)
    # [PAD] is never sampled here: `torch.nn.Embedding` would not train its row, because of
    # `padding_idx`. Google's code and this project have no such exception.
    generator.generator_lm_head.bias.data[0] = -30.0
    params = params_of(discriminator, MODEL)
    params["generator"] = params_of(generator, GENERATOR)
    del params["generator"]["encoder"]["embeddings"]
    batches = [
        pretraining_batch(
            batch_size=4, seq_length=24, max_predictions_per_seq=4, vocab_size=300, seed=seed
        )
        for seed in range(STEPS)
    ]
    objective = ReplacedTokensObjective(
        ReplacedTokens(model=MODEL, generator=GENERATOR, mask_token_id=4)
    )
    assert {p: x.shape for p, x in paths.flatten(params).items()} == {
        p: x.shape for p, x in paths.flatten(objective.abstract()).items()
    }
    train = train_config(5e-4)
    found = train_jax(objective, params, batches, train, "mlm_loss", "rtd_loss")
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight

    def compute_losses(batch: Any) -> tuple[Any, Any, Any]:
        mlm_loss, rtd_loss = _torch_step(discriminator, generator, batch)
        return mlm_loss + 50 * rtd_loss, mlm_loss, rtd_loss

    networks = torch.nn.ModuleList([discriminator, generator])  # names each parameter once
    losses, _ = train_torch(networks, batches, train, compute_losses)
    expected = losses[:, 1:]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.ptp(expected, axis=0).min() > 0.05  # training changes both losses


def _torch_step(discriminator: Any, generator: Any, batch: Any) -> tuple[Any, Any]:
    fields = long_fields(batch, "input_ids", "token_type_ids", "attention_mask")
    rows, entries = np.nonzero(batch["masked_lm_weights"])
    columns = batch["masked_lm_positions"][rows, entries]
    labels = masked_lm_labels(batch)
    outputs = generator(**fields, labels=labels)
    noise = torch.from_numpy(np.array(gumbel_noise(batch["sampling_seeds"], 300)))
    sampled = (outputs.logits[rows, columns].detach() + noise[rows, entries]).argmax(-1)
    ids = fields["input_ids"].clone()
    ids[rows, columns] = sampled
    is_replaced = torch.zeros_like(ids)
    is_replaced[rows, columns] = (sampled != labels[rows, columns]).long()
    assert is_replaced.any()
    return outputs.loss, discriminator(**{**fields, "input_ids": ids}, labels=is_replaced).loss
