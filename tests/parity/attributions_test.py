"""Tests attributions: equal to gradients and occlusions of Hugging Face's models in PyTorch.

Covers bert_jax/apps/attributions/.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.attributions.attributor import Attribution, Attributor
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.models.heads.config import RegressionHead, SequenceClassificationHead
from bert_jax.pretrained.load import LoadedModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PAIR = ("the old man mends a net", "the sea sings")
HEAD = SequenceClassificationHead(labels=("no", "yes", "maybe"))


class Reference:
    """Computes the logit of a label from word embeddings, with Hugging Face's model."""

    def __init__(self, model: LoadedModel, folder: Path, found: Attribution, index: int):
        export(model, folder)
        self.network = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        self.network.eval().requires_grad_(False)
        assert model.tokenizer is not None
        self.ids = [model.tokenizer.token_to_id(token) for token in found.tokens]
        self.index, self.sep_id = index, model.tokenizer.sep_id
        self.embed = self.network.get_input_embeddings()
        self.inputs = self.embed(torch.tensor(self.ids))

    def baseline(self, replacement: Any) -> Any:
        is_special = torch.tensor([token in (2, 3) for token in self.ids])
        return torch.where(is_special[:, None], self.inputs, replacement)

    def __call__(self, embeddings: Any) -> Any:
        types = np.cumsum([token == self.sep_id for token in self.ids])
        types = np.roll(types, 1)
        types[0] = 0
        outputs = self.network(
            inputs_embeds=embeddings,
            token_type_ids=torch.tensor(types)[None].expand(len(embeddings), -1),
            attention_mask=torch.ones(embeddings.shape[:2], dtype=torch.long),
        )
        return outputs.logits[:, self.index]

    def integrated_gradients(self, replacement: Any, steps: int = 300) -> np.ndarray:
        """Integrates with the midpoint rule, as Sundararajan et al. write the sum."""
        baseline = self.baseline(replacement)
        fractions = (torch.arange(steps) + 0.5) / steps
        points = baseline + fractions[:, None, None] * (self.inputs - baseline)
        points.requires_grad_(True)
        (gradients,) = torch.autograd.grad(self(points).sum(), points)
        return ((self.inputs - baseline) * gradients.mean(0)).sum(-1).numpy()

    def occlusion(self, replacement: Any) -> np.ndarray:
        baseline = self.baseline(replacement)
        points = self.inputs.repeat(len(self.ids), 1, 1)
        for position in range(len(self.ids)):
            points[position, position] = baseline[position]
        with torch.no_grad():
            return (self(self.inputs[None]) - self(points)).numpy()


@pytest.mark.parametrize("baseline", ["pad", "zero"])
def test_attributions_equal_those_in_pytorch(tmp_path, baseline):
    model = small_model(tmp_path / "v", head=HEAD, initializer_range=0.2)
    found = Attributor(model, baseline=baseline)(PAIR, "maybe")
    reference = Reference(model, tmp_path / "exported", found, index=2)
    replacement = reference.embed(torch.tensor(0)) if baseline == "pad" else torch.zeros(16)
    expected = reference.integrated_gradients(replacement)
    assert expected.std() > 0.02 and found.target == "maybe"
    np.testing.assert_allclose(found.attributions, expected, atol=1e-4)
    assert abs(found.completeness_error) < 1e-4
    outputs = reference(torch.stack([reference.inputs, reference.baseline(replacement)]))
    np.testing.assert_allclose([found.output, found.baseline_output], outputs, atol=1e-5)
    occluded = Attributor(model, baseline=baseline, method="occlusion")(PAIR, "maybe")
    np.testing.assert_allclose(occluded.attributions, reference.occlusion(replacement), atol=1e-5)


def test_regression_has_one_output_and_coarse_integrals_an_error(tmp_path):
    model = small_model(tmp_path / "v", head=RegressionHead(), initializer_range=0.2)
    found = Attributor(model)(PAIR[0])
    reference = Reference(model, tmp_path / "exported", found, index=0)
    expected = reference.integrated_gradients(reference.embed(torch.tensor(0)))
    np.testing.assert_allclose(found.attributions, expected, atol=1e-4)
    assert found.target is None and found.prediction["value"] == pytest.approx(found.output)
    coarse = Attributor(model, steps=1)(PAIR[0])
    assert abs(coarse.completeness_error) > 100 * abs(found.completeness_error)
