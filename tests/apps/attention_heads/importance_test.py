"""Covers bert_jax/apps/attention_heads/importance.py and its verb."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.attention_heads.importance import (
    head_importance,
    mask_heads,
    num_evaluations,
)
from bert_jax.apps.testing.models import random_parameters, small_model, word_tokenizer
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import LoadedModel, build_model
from tests.helpers.report_markup import Report

HEAD = SequenceClassificationHead(labels=("no", "yes"))
TEXTS = ("the old man", "a net by the sea", "the sea sings", "a man and a net", "old . man", "sea")


def toy_task(splits: dict[str, tuple[Any, ...]]) -> Task:
    return Task(
        name="toy",
        kind="classification",
        labels=HEAD.labels,
        metrics=("accuracy",),
        splits=splits,
    )


def make_task(model: LoadedModel, *, flipped: int = 1) -> Task:
    """Returns a task whose labels are the model's predictions, except `flipped` of them."""
    labels = [each["label"] for each in Predictor(model)(list(TEXTS))]
    labels = [{"no": "yes", "yes": "no"}[x] if i < flipped else x for i, x in enumerate(labels)]
    examples = tuple(
        TextExample(id=str(i), text=text, label=label)
        for i, (text, label) in enumerate(zip(TEXTS, labels, strict=True))
    )
    return toy_task({"dev": examples})


def without(model: LoadedModel, heads: set[tuple[int, int]]) -> LoadedModel:
    """Returns the model with rows of output projections set to 0, written row by row."""
    params = json_copy(model.params)
    for layer, head in heads:
        kernel = np.array(params["encoder"]["layers"][str(layer)]["attention"]["output"]["kernel"])
        kernel[4 * head : 4 * head + 4] = 0
        params["encoder"]["layers"][str(layer)]["attention"]["output"]["kernel"] = kernel
    return dataclasses.replace(model, params=params)


def json_copy(tree: Any) -> Any:
    return {k: json_copy(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def accuracy(model: LoadedModel, task: Task) -> float:
    examples: Any = task.splits["dev"]
    found = Predictor(model)([example.text for example in examples])
    labels = [example.label for example in examples]
    return float(np.mean([x["label"] == y for x, y in zip(found, labels, strict=True)]))


def test_ablation_and_curves_equal_models_without_heads(tmp_path):
    model = small_model(tmp_path / "v", head=HEAD, initializer_range=0.5)
    task = make_task(model)
    calls: list[int] = []
    found = head_importance(model, task, "dev", on_progress=calls.append)
    assert found.value == pytest.approx(5 / 6) and sum(calls) == num_evaluations(model.config)
    expected = [
        [found.value - accuracy(without(model, {(n, h)}), task) for h in range(4)] for n in (0, 1)
    ]
    np.testing.assert_allclose(found.ablation, expected, atol=1e-6)
    assert np.ptp(found.ablation) > 0.1
    np.testing.assert_allclose(np.linalg.norm(found.gradient, axis=1), 1)
    everything = {(n, h) for n in (0, 1) for h in range(4)}
    for name, curve in found.curves.items():
        assert [count for count, _ in curve] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
        assert curve[-1][1] == pytest.approx(accuracy(without(model, everything), task)), name
    first = divmod(int(found.gradient.argmin()), 4)
    assert found.curves["gradient"][1][1] == pytest.approx(accuracy(without(model, {first}), task))


def test_only_the_head_that_has_an_effect_is_important(tmp_path):
    model = small_model(tmp_path / "v", head=HEAD, initializer_range=0.5)
    others = {(n, h) for n in (0, 1) for h in range(4)} - {(1, 2)}
    found = head_importance(without(model, others), make_task(model, flipped=0), "dev")
    expected = np.zeros((2, 4))
    expected[1, 2] = 1.0
    np.testing.assert_array_equal(found.gradient, expected)
    assert not found.ablation[expected == 0].any()


def test_masks_scale_heads_and_leave_the_bias(tmp_path):
    model = small_model(tmp_path / "v")
    mask = np.array([[1, 0.5, 0, 1], [1, 1, 1, 1]], np.float32)
    masked = mask_heads(model.params, mask)["encoder"]["layers"]  # type: ignore[arg-type]
    own = model.params["encoder"]["layers"]
    for layer in ("0", "1"):
        kernel = own[layer]["attention"]["output"]["kernel"].reshape(4, 4, 16)
        expected = (kernel * mask[int(layer)][:, None, None]).reshape(16, 16)
        np.testing.assert_array_equal(masked[layer]["attention"]["output"]["kernel"], expected)
        assert (
            masked[layer]["attention"]["output"]["bias"]
            is own[layer]["attention"]["output"]["bias"]
        )


def test_verb_prints_curves_and_writes_a_page(tmp_path, capsys):
    model = small_model(tmp_path / "v", head=HEAD, initializer_range=0.5)
    export(model, tmp_path / "exported")
    for split in ("train", "dev"):
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            examples: Any = make_task(model).splits["dev"]
            csv.writer(file).writerows([("text", "label"), *((e.text, e.label) for e in examples)])
    files = [f"--{split}={tmp_path / split}.csv" for split in ("train", "dev")]
    command = ["head-importance", str(tmp_path / "exported"), *files]
    command += ["--text", "text", "--label", "label", "--limit", "4"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    first, heads, curve = capsys.readouterr().out.split("\n\n")
    assert first == "accuracy with all heads: 0.7500"
    assert len(heads.splitlines()) == 3 and len(curve.splitlines()) == 1 + 9
    results = json.loads((tmp_path / "out" / "head-importance.json").read_text())
    assert results["examples"] == 4 and np.shape(results["ablation"]) == (2, 4)
    page = (tmp_path / "out" / "head-importance.html").read_text()
    assert "svg" in Report(page).tags  # well-formed, nothing is loaded
    assert page.count("<table") == 2 and "removed heads 8" in page


def test_layers_that_share_parameters_are_refused(tmp_path: Path):
    config = AlbertConfig(
        vocab_size=18,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        positions=LearnedPositions(max_position_embeddings=20),
    )
    params = random_parameters(config, head=HEAD)
    imported = ImportedModel(params, config, word_tokenizer(tmp_path), HEAD)
    model = build_model(imported, "albert")
    with pytest.raises(UserError, match="whose layers share their parameters"):
        head_importance(model, toy_task({}), "dev")
