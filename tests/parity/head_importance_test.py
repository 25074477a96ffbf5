"""Tests the gradient of head masks: equal to PyTorch's, by a hook that scales context vectors.

Covers `MaskedModel.gradient_importance` of bert_jax/apps/attention_heads/importance.py.
"""

import numpy as np
import pytest

from bert_jax.apps.attention_heads.importance import MaskedModel
from bert_jax.apps.testing.models import small_model
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ("the old man", "a net by the sea and the man", "the sea sings .")


def test_gradients_of_masks_equal_those_in_pytorch(tmp_path):
    head = SequenceClassificationHead(labels=("no", "yes"))
    model = small_model(tmp_path / "v", head=head, initializer_range=0.3)
    examples = tuple(TextExample(id=t, text=t, label="yes") for t in TEXTS)
    task = Task(
        name="toy",
        kind="classification",
        labels=head.labels,
        metrics=("accuracy",),
        splits={"dev": examples},
    )
    found = MaskedModel(model, task, batch_size=2).gradient_importance("dev")

    export(model, tmp_path / "exported")
    network = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported")
    network.eval()
    mask = torch.ones(2, 4, requires_grad=True)
    for index, layer in enumerate(network.bert.encoder.layer):
        layer.attention.output.dense.register_forward_pre_hook(
            lambda _, inputs, index=index: (inputs[0] * mask[index].repeat_interleave(4),)
        )
    expected = np.zeros((2, 4))
    for text in TEXTS:
        fields = {name: torch.tensor(value) for name, value in model.tokenize([text]).items()}
        loss = network(**fields, labels=torch.tensor([1])).loss
        expected += np.abs(torch.autograd.grad(loss, mask)[0].numpy()) / len(TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.ptp(expected) > 0.3
    np.testing.assert_allclose(found, expected, atol=1e-5)
