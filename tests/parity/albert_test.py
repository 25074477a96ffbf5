"""Compares ALBERT with Hugging Face's PyTorch classes in float32: outputs, training, folders.

Every parameter is random, biases and norms too, so that the layers of all groups differ. Only real
tokens are compared: the hidden states of padding have no meaning.
families_test.py has what all families are compared in.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import Pretraining
from bert_jax.export.export import export
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.albert.huggingface import TABLES
from bert_jax.models.layers.config import (
    ComputeConfig,
)
from bert_jax.models.model import run_forward
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    assert_same_tensors,
)
from tests.helpers.torch_parity import (
    load_exported,
)
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

FAMILY = FAMILIES["albert"]
GROUPS, EQUAL_WIDTHS, torch_model = FAMILY.small, FAMILY.medium, FAMILY.torch_model
both_sizes = pytest.mark.parametrize("config", [GROUPS, EQUAL_WIDTHS], ids=["groups", "equal"])

TOLERANCE = 1e-5


def params_of(model: Any) -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    return paths.unflatten(TABLES.tied.from_external(state, "torch"))


def random_batch(config: AlbertConfig, seq_length: int = 24, **changes: Any) -> Any:
    sizes = {"batch_size": 4, "max_predictions_per_seq": 4, "vocab_size": config.vocab_size}
    return pretraining_batch(**{**sizes, **changes}, seq_length=seq_length)


def torch_fields(batch: Any) -> dict[str, Any]:
    return long_fields(batch, "input_ids", "token_type_ids", "attention_mask")


@both_sizes
def test_hidden_states_and_pretraining_logits(config):
    model, batch = torch_model(config, "ForPreTraining"), random_batch(config)
    with torch.no_grad():
        expected = model(**torch_fields(batch), output_hidden_states=True)
    found = run_forward(params_of(model), config, batch)
    real = batch["attention_mask"] > 0
    assert 0.5 < real.mean() < 1
    states = zip(found["hidden_states"], expected.hidden_states, strict=True)
    for layer, (a, b) in enumerate(states):
        np.testing.assert_allclose(a[real], b.numpy()[real], atol=TOLERANCE, err_msg=f"{layer}")
    logits = expected.prediction_logits.numpy()
    assert logits.std() > 0.05
    np.testing.assert_allclose(found["masked_lm"][real], logits[real], atol=TOLERANCE)
    np.testing.assert_allclose(found["sentence_order"], expected.sop_logits.numpy(), atol=TOLERANCE)


def test_pooler_and_the_longest_sequence():
    model = torch_model(GROUPS, "Model")
    batch = random_batch(GROUPS, seq_length=42, padding=False)
    with torch.no_grad():
        expected = model(**torch_fields(batch)).pooler_output.numpy()
    state = {f"albert.{name}": tensor.numpy() for name, tensor in model.state_dict().items()}
    params = paths.unflatten(TABLES.tied.from_external(state, "torch"))
    found = run_forward(params, GROUPS, batch)["pooled"]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_pretraining_folder_comes_back_bit_identical(tmp_path):
    model = torch_model(EQUAL_WIDTHS, "ForPreTraining")
    model.save_pretrained(tmp_path / "torch")
    loaded = load_encoder(tmp_path / "torch")
    assert loaded.config == EQUAL_WIDTHS and loaded.missing == ()
    export(loaded, tmp_path / "exported")
    reopened = load_exported(transformers.AutoModelForPreTraining, tmp_path / "exported")
    assert_same_tensors(model, reopened)
    third = paths.flatten(load_encoder(tmp_path / "exported").params)
    for path, leaf in paths.flatten(loaded.params).items():
        np.testing.assert_array_equal(third[path], leaf)


@pytest.mark.slow  # albert_training_test.py takes the same steps with LAMB
def test_twenty_training_steps():
    config = dataclasses.replace(GROUPS, hidden_act="gelu")
    model = torch_model(config, "ForPreTraining", seed=3, classifier_dropout_prob=0.0)
    # No example has the id 0: `torch.nn.Embedding` would not train its row (`padding_idx`).
    batches = [random_batch(config, seed=step % 2, padding=False) for step in range(STEPS)]
    objective = PretrainingObjective(
        Pretraining(
            model=config,
            mask_token_id=4,
            nsp_weight=0.0,
            sop_weight=1.0,
            compute=ComputeConfig(layer_loop="scanned"),
        )
    )
    train = train_config(2e-3)
    losses = train_jax(objective, params_of(model), batches, train, "loss")
    expected, _ = train_torch(
        model,
        batches,
        train,
        lambda batch: (
            model(
                **torch_fields(batch),
                labels=masked_lm_labels(batch),
                sentence_order_label=torch.from_numpy(batch["sentence_order_labels"]).long(),
            ).loss,
        ),
    )
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert losses[-1] < losses[1] - 0.1  # of the same batch
