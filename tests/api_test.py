"""Covers bert_jax/__init__.py, pretrained/load.py and examples/."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.pretrained.load import LoadedModel, load_encoder

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    export(small_model(folder / "vocabulary"), folder / "exported")
    return folder / "exported"


def test_import_is_fast_and_public_names_exist():
    code = (
        "import sys, bert_jax\n"
        "assert not {'jax', 'flax', 'tensorflow', 'numpy'} & set(sys.modules)\n"
        "assert set(bert_jax.__all__) <= set(dir(bert_jax))\n"
        "names = {name: getattr(bert_jax, name) for name in bert_jax.__all__}\n"
        "import bert_jax.train.run\n"
        "assert all(getattr(bert_jax, name) is names[name] for name in names)\n"
        "assert all(callable(names[name]) for name in names if name != '__version__')\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Preditor'"):
        bert_jax.Preditor  # noqa: B018


def test_encoder_holds_the_pretrained_weights(exported):
    model = bert_jax.load_model(exported)
    assert isinstance(model, LoadedModel)
    texts = ["the old man", "a net by the sea ."]
    batch: dict[str, Any] = dict(model.tokenize(texts))
    states = np.asarray(model.encoder()(**batch).last_hidden_state)
    embed = bert_jax.Embedder(model, pooling="cls")
    np.testing.assert_allclose(states[:, 0], embed(texts), atol=1e-5)


def test_objects_print_as_one_line(exported, tmp_path):
    model = load_encoder(exported)
    head = SequenceClassificationHead(labels=("no", "yes"))
    classifier = small_model(tmp_path / "vocabulary", head=head)
    shown = [
        repr(each)
        for each in (
            *(model, classifier, bert_jax.FillMask(model, top_k=2), bert_jax.Embedder(model)),
            bert_jax.Predictor(classifier),
        )
    ]
    number = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    assert shown == [
        f"<LoadedModel {exported}: BERT, 2 layers of width 16, {number:,} parameters>",
        shown[1],
        f"<FillMask {exported}: 2 candidates>",
        f"<Embedder {exported}: vectors of 16, at most 20 tokens>",
        "<Predictor small model: classification (no, yes)>",
    ]
    assert shown[1].endswith(" parameters, SequenceClassificationHead>")


def test_tokenize_truncates_long_texts_and_rejects_a_single_text(exported):
    model = bert_jax.load_model(exported)
    assert isinstance(model, LoadedModel)
    batch = model.tokenize(["the " * 100, "sea"])
    assert batch["input_ids"].shape == (2, model.config.max_length)
    assert batch["attention_mask"].sum(axis=1).tolist() == [model.config.max_length, 3]
    with pytest.raises(TypeError, match="list of texts"):
        model.tokenize("one text")


def test_custom_loop_trains_encoder_and_head(exported):
    spec = importlib.util.spec_from_file_location("loop", ROOT / "examples" / "custom_loop.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with jax.numpy_dtype_promotion(
        "standard"
    ):  # Optax's Adam raises a float to an integer power, which strict promotion forbids.
        losses = example.train(str(exported), steps=8, learning_rate=1e-2)
    assert losses[-1] < losses[0]
