"""Covers bert_jax/export/bundle.py and the loader that a bundle contains, load_bundle.py."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export import bundle as bundle_module
from bert_jax.export.bundle import bundle_lengths, export_bundle
from bert_jax.export.load_bundle import Bundle, BundleError
from bert_jax.export.outputs import ShippedNetwork, shipped_network, text_batch
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.sentence_encoder.config import Normalize, Prompt, SentenceEncoderConfig
from bert_jax.pretrained.load import LoadedModel

TEXTS = ["the old man mends a net", "sea", "the man sings by the sea ."]
HEAD = SequenceClassificationHead(labels=("no", "yes"))

# Imports of bert_jax fail in the process that runs this, as where it is not installed.
SCRIPT = """
import sys
sys.path.insert(0, ".")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] not in ("bert_jax", "flax", "torch"), name
sys.meta_path.insert(0, Refuse())
import json
from load_bundle import Bundle
bundle = Bundle(".")
outputs = bundle(json.loads(sys.argv[1]))
print(json.dumps({name: values.tolist() for name, values in outputs.items()}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("made")
    return small_model(folder, head=HEAD, initializer_range=0.15, num_hidden_layers=1)


@pytest.fixture(scope="module")
def network(model: LoadedModel) -> ShippedNetwork:
    return shipped_network(model)


@pytest.fixture(scope="module")
def bundle(
    model: LoadedModel, network: ShippedNetwork, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    assert model.tokenizer is not None
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    assert export_bundle(network, model.tokenizer, folder) < 1e-6
    return folder


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def expected_logits(model: LoadedModel, network: ShippedNetwork) -> np.ndarray:
    assert model.tokenizer is not None
    return network.reference_outputs(text_batch(network, TEXTS, model.tokenizer))["logits"]


def test_bundle_runs_in_a_process_without_bert_jax(model, network, bundle):
    found = subprocess.run(
        [sys.executable, "-I", "-B", "-c", SCRIPT, json.dumps(TEXTS)],
        cwd=bundle,
        capture_output=True,
        text=True,
        env={"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    expected = expected_logits(model, network)
    np.testing.assert_allclose(json.loads(found.stdout)["logits"], expected, atol=1e-6)
    assert np.ptp(expected) > 0.02


def test_bundle_has_files_for_each_length_and_describes_them(bundle):
    info = json.loads((bundle / "bundle.json").read_text())
    assert info["lengths"] == [16, 20] and info["labels"] == ["no", "yes"]
    assert info["platforms"] == ["cpu", "cuda", "tpu"]
    assert info["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    programs = {"forward-16.jaxexport", "forward-20.jaxexport"}
    settings = {"special_tokens_map.json", "tokenizer_config.json", "vocabulary.json"}
    tokenizer = {"tokenizer.json", "vocab.txt", *settings}
    assert set(info["files"]) == {*programs, *tokenizer, "model.safetensors"}
    assert {file.name for file in bundle.iterdir()} == {
        *info["files"],
        "bundle.json",
        "load_bundle.py",
    }
    # The weights are arguments, so a program does not contain them.
    weights = (bundle / "model.safetensors").read_bytes()[-1000:]
    assert all(weights not in (bundle / name).read_bytes() for name in programs)
    assert bundle_lengths(512) == [16, 32, 64, 128, 256, 512]
    program = jax.export.deserialize(bytearray((bundle / "forward-16.jaxexport").read_bytes()))
    # On accelerators the bundle would otherwise differ from the model by more than is allowed.
    products = [
        line for line in program.mlir_module().splitlines() if "stablehlo.dot_general" in line
    ]
    assert products and [line for line in products if "HIGHEST" not in line] == []
    modes = {(bundle / name).stat().st_mode for name in ("bundle.json", "model.safetensors")}
    assert len(modes) == 1


def test_outputs_do_not_depend_on_padding_or_on_other_texts(bundle, monkeypatch):
    loaded = Bundle(bundle)
    together = loaded(TEXTS)["logits"]
    for text, expected in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(loaded([text])["logits"][0], expected, atol=1e-6)
    monkeypatch.setattr("bert_jax.export.load_bundle.MAX_ROWS", 2)
    np.testing.assert_allclose(loaded(TEXTS)["logits"], together, atol=1e-6)
    longest = loaded(["sea " * 100])["logits"]
    np.testing.assert_allclose(loaded(["sea " * 18])["logits"], longest, atol=1e-6)


@pytest.mark.parametrize("name", ["forward-16.jaxexport", "model.safetensors", "tokenizer.json"])
def test_damaged_and_missing_files_are_named(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(BundleError, match=rf"{name} is damaged: .* copy the bundle again"):
        Bundle(copy)
    (copy / name).unlink()
    with pytest.raises(BundleError, match=rf"{name} cannot be read: No such file"):
        Bundle(copy)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, r"bundle.json cannot be read: No such file"),
        ("{", r"bundle.json is not JSON"),
        ("[]", r"bundle.json does not describe a bundle"),
        ('{"format": 2}', r"has format 2, and this loader reads format 1"),
    ],
)
def test_bundle_json_that_cannot_be_read_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "bundle.json").write_text(content)
    with pytest.raises(BundleError, match=message):
        Bundle(tmp_path)


def test_wrong_inputs_are_refused(bundle, copy):
    loaded = Bundle(bundle)
    ids = np.ones((1, 21), np.int32)
    with pytest.raises(BundleError, match=r"the batch has \['input_ids'\], expected"):
        loaded.run({"input_ids": ids})
    names = ("input_ids", "attention_mask", "token_type_ids")
    with pytest.raises(BundleError, match="has 21 tokens in a row, more than the model's limit of"):
        loaded.run(dict.fromkeys(names, ids))
    with pytest.raises(BundleError, match="expected a list of texts, found one text, 'sea'"):
        loaded("sea")
    info = json.loads((copy / "bundle.json").read_text())
    (copy / "bundle.json").write_text(json.dumps({**info, "platforms": ["tpu"]}))
    with pytest.raises(BundleError, match="was made for tpu, and jax runs on cpu here"):
        Bundle(copy)


def test_bundle_of_a_sentence_encoder_cuts_texts_at_its_length(model, tmp_path):
    sentence = SentenceEncoderConfig(
        pooling=("mean",),
        modules=(Normalize(),),
        max_seq_length=8,
        prompts=(Prompt(name="query", text="net "),),
        default_prompt_name="query",
    )
    encoder = dataclasses.replace(model, head=None, sentence_encoder=sentence)
    assert encoder.tokenizer is not None
    network = shipped_network(encoder)
    export_bundle(network, encoder.tokenizer, tmp_path / "bundle")
    loaded = Bundle(tmp_path / "bundle")
    assert loaded.info["lengths"] == [8] and loaded.info["pooling"] == ["mean"]
    with_prompt = loaded(["the sea"])["sentence_embedding"]
    without = loaded(["net the sea"], prompt="")["sentence_embedding"]
    np.testing.assert_allclose(with_prompt, without, atol=1e-6)
    vectors = loaded(["sea " * 6, "sea " * 50], prompt="")["sentence_embedding"]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_bundle_that_differs_leaves_no_folder(model, network, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_module, "TOLERANCE", -1.0)
    monkeypatch.setattr(bundle_module, "bundle_lengths", lambda max_length: [max_length])
    with pytest.raises(UserError, match="the bundle was not written: its logits differs by"):
        export_bundle(network, model.tokenizer, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
