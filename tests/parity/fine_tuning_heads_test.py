"""Compares each task head with Hugging Face's PyTorch: logits, losses, gradients, folders.

Every parameter is random, biases and norms too; batches are padded, with both token types.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import small_model
from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS
from bert_jax.config.objectives import FineTuning
from bert_jax.export.export import export
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bert.huggingface import TABLES
from bert_jax.models.heads.config import (
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.tasks.registry import head_spec
from tests.helpers.torch_parity import (
    HEADS,
    jax_head_outputs,
    load_exported,
    randomize_parameters,
    torch_head_outputs,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
MODEL = BertConfig.from_size("tiny", vocab_size=300, max_position_embeddings=64)
each_kind = pytest.mark.parametrize("kind", HEADS)
# Regression has the class and the weights of "sequence".
each_kind_of_weights = pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=[pytest.mark.slow] if x == "regression" else []) for x in HEADS]
)


@functools.cache
def torch_model(kind: str):
    """Builds the transformers model with random parameters and without dropout."""
    _, name, fields = HEADS[kind]
    config = transformers.BertConfig(
        vocab_size=300,
        hidden_size=MODEL.hidden_size,
        num_hidden_layers=MODEL.num_hidden_layers,
        num_attention_heads=MODEL.num_attention_heads,
        intermediate_size=MODEL.intermediate_size,
        max_position_embeddings=64,
        attn_implementation="eager",
        **fields,
    )
    model = getattr(transformers, f"BertFor{name}")(config)
    return randomize_parameters(model, std=0.04)


def jax_params(kind: str):
    state = {name: tensor.numpy() for name, tensor in torch_model(kind).state_dict().items()}
    return paths.unflatten(TABLES.tied.from_external(state, kind))


def make_batch(kind: str, vocab_size: int = 300, length: int = 24) -> Any:
    return fine_tuning_batch(
        HEADS[kind][0],
        batch_size=6,
        seq_length=length,
        vocab_size=vocab_size,
        num_padding_examples=1,
    )


def torch_inputs(batch, *, labels: bool):
    """Returns the arguments for transformers, without padding examples."""
    names = CHOICE_FIELDS if CHOICE_FIELDS[0] in batch else ENCODER_FIELDS
    arrays = {name.removeprefix("choice_"): batch[name] for name in names}
    if labels and "token_labels" in batch:
        arrays["labels"] = np.where(batch["token_label_weights"] > 0, batch["token_labels"], -100)
    elif labels and "start_positions" in batch:
        arrays |= {name: batch[name] for name in ("start_positions", "end_positions")}
    elif labels and "labels" in batch:
        arrays["labels"] = batch["labels"]
    tensors = {name: torch.from_numpy(array[:5]).long() for name, array in arrays.items()}
    if labels and "label_values" in batch:
        tensors["labels"] = torch.from_numpy(batch["label_values"][:5])
    return tensors


def torch_predictions(model, batch):
    return torch_head_outputs(model, torch_inputs(batch, labels=False))


def jax_predictions(params, config, head, batch):
    return jax_head_outputs(params, config, head, batch, num_examples=5)


def assert_same(found, expected, tolerance: float = TOLERANCE):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert values.std() > 0.02
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)
        if values.shape[-1] > 1:
            np.testing.assert_array_equal(found[name].argmax(-1), values.argmax(-1))


@each_kind_of_weights
def test_folder_written_by_transformers_gives_the_same_logits(tmp_path, kind):
    model = torch_model(kind)
    model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.head == HEADS[kind][0] and loaded.config == MODEL
    batch = make_batch(kind)
    found = jax_predictions(loaded.params, loaded.config, loaded.head, batch)
    assert_same(found, torch_predictions(model, batch))


@each_kind
def test_export_gives_the_same_logits_in_transformers(tmp_path, kind):
    head, name, _ = HEADS[kind]
    made = small_model(tmp_path / "made", head=head, initializer_range=0.1)
    export(made, tmp_path / "exported")
    model = load_exported(getattr(transformers, f"AutoModelFor{name}"), tmp_path / "exported")
    if isinstance(head, SequenceClassificationHead | TokenClassificationHead):
        assert model.config.id2label == dict(enumerate(head.labels))
        assert model.config.label2id == {label: n for n, label in enumerate(head.labels)}
    if isinstance(head, RegressionHead):
        assert model.config.problem_type == "regression" and model.config.num_labels == 1
    batch = make_batch(kind, vocab_size=18, length=16)
    found = jax_predictions(made.params, made.config, head, batch)
    assert_same(found, torch_predictions(model.eval(), batch))


@each_kind
def test_loss_and_gradients(kind):
    model, batch = torch_model(kind), make_batch(kind)
    model.zero_grad()
    expected = model(**torch_inputs(batch, labels=True)).loss
    expected.backward()

    objective = FineTuningObjective(FineTuning(model=MODEL, head=HEADS[kind][0]))
    params = jax_params(kind)

    @jax.jit
    @jax.value_and_grad
    def jax_loss(params):
        return objective.compute_loss(params, batch, objective.loss_denominators(batch), None).loss

    loss, gradient = jax_loss(params)
    assert float(loss) == pytest.approx(expected.item(), rel=1e-6)
    flat = jax.tree.map(np.array, paths.flatten(gradient))
    jax_gradient = TABLES.tied.to_external(flat)
    torch_gradient = {name: p.grad.numpy() for name, p in model.named_parameters()}
    assert jax_gradient.keys() == torch_gradient.keys()
    # Span scores include padding, where PyTorch's embedding has no gradient for [PAD].
    jax_gradient["bert.embeddings.word_embeddings.weight"][0] = 0
    for name, leaf in torch_gradient.items():
        np.testing.assert_allclose(jax_gradient[name], leaf, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("weights", [(), (0.2, 1.0, 3.0)], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_class_weights_and_label_smoothing(kind, weights, smoothing):
    head = {"sequence": SequenceClassificationHead, "token": TokenClassificationHead}[kind](
        labels=("a", "b", "c")
    )
    batch: Any = fine_tuning_batch(
        head, batch_size=9, seq_length=12, vocab_size=30, num_padding_examples=2
    )
    shape = (9, 3) if kind == "sequence" else (9, 12, 3)
    logits: Any = np.random.default_rng(5).normal(0, 3, shape).astype(np.float32)
    if kind == "sequence":
        labels = np.where(batch["example_weights"] > 0, batch["labels"], -100)
    else:
        labels = np.where(batch["token_label_weights"] > 0, batch["token_labels"], -100)
    loss, _ = head_spec(head).compute_loss({"logits": logits}, batch, weights, smoothing)
    criterion = torch.nn.CrossEntropyLoss(
        weight=torch.tensor(weights, dtype=torch.float64) if weights else None,
        label_smoothing=smoothing,
    )
    expected = criterion(
        torch.from_numpy(logits.reshape(-1, 3)).double(), torch.from_numpy(labels.ravel()).long()
    )
    assert float(loss.total) / float(loss.weight) == pytest.approx(expected.item(), rel=1e-6)
