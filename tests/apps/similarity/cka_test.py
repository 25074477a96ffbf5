"""Covers bert_jax/apps/similarity/: CKA equals the definition by centered Gram matrices."""

import json

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.similarity.cka import LinearCka, linear_cka
from bert_jax.apps.testing.models import small_model, write_run
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.model import run_forward
from bert_jax.pretrained.load import LoadedModel
from tests.helpers.report_markup import Report

TEXTS = ["the old man mends a net by the sea", "the sea sings", "a man", "", "old nets . the man"]


def slow_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Computes CKA as Kornblith et al. define it: HSIC of Gram matrices, which H centers."""
    n = len(x)
    centering = np.eye(n) - np.ones((n, n)) / n

    def hsic(k: np.ndarray, gram: np.ndarray) -> float:
        return float(np.trace(k @ centering @ gram @ centering)) / (n - 1) ** 2

    k, gram = x @ x.T, y @ y.T
    return hsic(k, gram) / np.sqrt(hsic(k, k) * hsic(gram, gram))


def slow_layers(model: LoadedModel, unit: str) -> list[np.ndarray]:
    """Returns the hidden states of each layer without special tokens, one text at a time."""
    layers: list[list[np.ndarray]] = [[] for _ in range(model.config.num_applied_layers + 1)]
    for text in filter(None, TEXTS):
        hidden = run_forward(model.params, model.config, model.tokenize([text]))["hidden_states"]
        for layer, states in zip(layers, hidden, strict=True):
            tokens = states[0, 1:-1]
            layer.append(tokens if unit == "token" else tokens.mean(0, keepdims=True))
    return [np.concatenate(layer).astype(np.float64) for layer in layers]


def test_streamed_sums_equal_centered_gram_matrices():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 60, 5)) + 100.0  # far from the origin
    y = np.concatenate([x[:1] @ rng.normal(size=(5, 7)), rng.normal(size=(1, 60, 7))])
    cka = LinearCka()
    for rows in (slice(0, 7), slice(7, 40), slice(40, 60)):
        block_x, block_y = (np.pad(each[:, rows], ((0, 0), (0, 3), (0, 0))) for each in (x, y))
        weights = np.pad(np.ones(block_x.shape[1] - 3), (0, 3))
        cka.add(*(np.asarray(each, np.float32) for each in (block_x, block_y, weights)))  # type: ignore[arg-type]
    expected = [[slow_cka(a, b) for b in y] for a in x]
    assert cka.num_examples == 60
    np.testing.assert_allclose(cka.value(), expected, atol=1e-5)


@pytest.mark.parametrize("unit", ["token", "text"])
def test_layers_of_two_models_equal_the_slow_definition(tmp_path, unit):
    model = small_model(tmp_path / "v", initializer_range=0.3)
    other = small_model(tmp_path / "v", initializer_range=0.3, hidden_size=8, num_hidden_layers=1)
    (found, own), count = linear_cka(model, [other, model], [TEXTS[:2], TEXTS[2:]], unit=unit)
    x, y = slow_layers(model, unit), slow_layers(other, unit)
    assert count == len(x[0]) and found.shape == (3, 2)
    np.testing.assert_allclose(found, [[slow_cka(a, b) for b in y] for a in x], atol=1e-4)
    np.testing.assert_allclose(own, [[slow_cka(a, b) for b in x] for a in x], atol=1e-4)
    np.testing.assert_allclose(np.diag(own), 1, atol=1e-5)


def test_verb_compares_checkpoints_and_writes_a_page(tmp_path, capsys):
    model = small_model(tmp_path / "v", initializer_range=0.5)
    run = write_run(tmp_path / "run", model, steps=(5, 10))
    export(model, tmp_path / "exported")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    step = str(run / "checkpoints" / "5")
    command = ["cka", str(tmp_path / "exported"), step, str(run)]
    command += ["--file", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "out")]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 6 and lines[1].split() == ["0", "1", "2"]
    results = json.loads((tmp_path / "out" / "cka.json").read_text())
    first, second = (np.array(each["values"]) for each in results["cka"])
    np.testing.assert_allclose(np.diag(second), 1, atol=1e-5)
    assert first[2, 2] < 0.999  # half of the parameters are not the same function
    page = (tmp_path / "out" / "cka.html").read_text()
    assert page.count("<table") == 2 and "caption" in Report(page).tags


def test_bad_inputs_are_explained(tmp_path):
    model = small_model(tmp_path / "v")
    with pytest.raises(UserError, match="there are 0 examples to compare; expected at least 2"):
        linear_cka(model, [model], [["", " "]])
    with pytest.raises(UserError, match="there are 1 examples"):
        linear_cka(model, [model], [["the man"]], unit="text")
    with pytest.raises(UserError, match="layer 0 is the same for all 3 examples"):
        linear_cka(model, [model], [["the man"] * 3], unit="text")
