"""Covers the modules of bert_jax/export/onnx and bert_jax/export/outputs.py.

Every head and every family is run by onnxruntime and compared with JAX.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.testing.models import random_parameters, small_model
from bert_jax.errors import MissingExtraError, UserError
from bert_jax.export.export import export
from bert_jax.export.onnx import write
from bert_jax.export.onnx.write import run_onnx, write_onnx
from bert_jax.export.outputs import shipped_network, text_batch
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bigbird.config import BigBirdConfig
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import (
    LabelTokens,
    MultiLabelHead,
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
)
from bert_jax.models.layers.config import PaddingOffsetPositions
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.models.sentence_encoder.config import (
    POOLING_MODES,
    Dense,
    Normalize,
    Prompt,
    SentenceEncoderConfig,
)
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel

pytest.importorskip("onnxruntime")

# Weights of this size make every layer matter: with BERT's, an error would be below the tolerance.
SIZES = {
    "vocab_size": 18,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "initializer_range": 0.15,
}
POSITIONS = PaddingOffsetPositions(max_position_embeddings=24, pad_token_id=1)
TAGS = TokenClassificationHead(labels=("O", "B"))
LABELS = SequenceClassificationHead(labels=("no", "yes", "maybe"))
TEXTS = ["the old man mends a net", "sea", "the man sings by the sea .", "a net and the old sea"]

HEADS: dict[str, TaskHead | None] = {
    "masked-lm": None,
    "classification": LABELS,
    "multi-label": MultiLabelHead(labels=("no", "yes", "maybe")),
    "regression": RegressionHead(),
    "tokens": TAGS,
    "questions": QuestionAnsweringHead(),
    "choices": MultipleChoiceHead(),
}
FAMILIES: dict[str, EncoderConfig] = {
    "roberta": RobertaConfig(**SIZES, positions=POSITIONS, hidden_act="gelu_tanh"),
    "electra": ElectraConfig(**SIZES, embedding_size=8),
    "distilbert": DistilBertConfig(**SIZES, hidden_act="relu"),
    "albert": AlbertConfig(
        **{**SIZES, "num_hidden_layers": 3}, embedding_size=8, num_hidden_groups=2
    ),
    "mpnet": MPNetConfig(**SIZES, positions=POSITIONS, hidden_act="silu"),
    "modernbert": ModernBertConfig(**SIZES, local_attention=4),
}
SLOW_FAMILIES = ("electra", "distilbert", "albert", "mpnet")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("made")
    return small_model(folder, initializer_range=0.15, num_hidden_layers=1)


@pytest.fixture(autouse=True)
def few_sample_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "sample_texts", lambda: TEXTS)


def with_head(
    model: LoadedModel, head: TaskHead | None, config: EncoderConfig | None = None
) -> LoadedModel:
    config = config or model.config
    params = paths.unflatten(random_parameters(config, head=head))
    return dataclasses.replace(model, config=config, head=head, params=params)


def check_equal(model: LoadedModel, folder: Path) -> None:
    """Writes a model and compares what onnxruntime computes with JAX."""
    assert model.tokenizer is not None
    network = shipped_network(model)
    facts = write_onnx(network, model.tokenizer, folder, "fp32")
    assert facts.difference < 1e-5
    batch = text_batch(network, TEXTS[:2], model.tokenizer)  # another shape than the texts above
    found = run_onnx(folder / "onnx" / "model.onnx", batch)
    assert tuple(found) == facts.outputs
    sizes = {"batch": 2, "sequence": batch["input_ids"].shape[-1], "choices": 2}
    if isinstance(model.head, MultipleChoiceHead):
        sizes["batch"] = 1
    for name, dims in network.output_dims.items():
        assert found[name].shape == tuple(sizes.get(str(dim), dim) for dim in dims)
        # Outputs that are the same for all texts or tokens would be equal by chance.
        assert np.ptp(found[name]) > 0.02, name


@pytest.mark.parametrize("head", HEADS)
def test_every_head_in_onnx_equals_jax(bert, tmp_path, head):
    check_equal(with_head(bert, HEADS[head]), tmp_path)


@pytest.mark.parametrize(
    "family",
    [
        "roberta",
        "modernbert",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_FAMILIES),
    ],
)
def test_every_family_in_onnx_equals_jax(bert, tmp_path, family):
    # ModernBERT's classification has the prediction head and the mean over tokens as well.
    head = LABELS if family in ("electra", "modernbert") else TAGS
    model = with_head(bert, head, FAMILIES[family])
    names = shipped_network(model).input_names
    assert ("token_type_ids" in names) == (family in ("electra", "albert"))
    check_equal(model, tmp_path)


def test_sentence_encoder_in_onnx_equals_jax(bert, tmp_path):
    width = len(POOLING_MODES) * 16
    sentence = SentenceEncoderConfig(
        pooling=POOLING_MODES,
        modules=(Dense(in_features=width, out_features=12), Normalize()),
        truncate_dim=10,
    )
    kernel = np.random.default_rng(0).normal(0, 0.2, (width, 12)).astype(np.float32)
    dense = {"dense": {"0": {"kernel": kernel, "bias": kernel[0]}}}
    model = dataclasses.replace(bert, sentence_encoder=sentence, sentence_head=dense)
    check_equal(model, tmp_path)


def test_sentence_encoder_that_skips_prompts_is_refused(bert):
    prompts = (Prompt(name="query", text="query: "),)
    sentence = SentenceEncoderConfig(include_prompt=False, prompts=prompts)
    with pytest.raises(UserError, match="leaves the tokens of a prompt out"):
        shipped_network(dataclasses.replace(bert, sentence_encoder=sentence))


def test_export_writes_onnx_files_and_describes_them(bert, tmp_path, caplog):
    caplog.set_level("INFO")
    model = with_head(bert, LABELS)
    export(model, tmp_path / "exported", "int8")
    files = {file.name for file in (tmp_path / "exported" / "onnx").iterdir()}
    assert files == {"model.onnx", "model_quantized.onnx"}
    card = (tmp_path / "exported" / "README.md").read_text()
    for words in ("## ONNX", "computes `logits` in float32", "int8 weights", "% of the examples"):
        assert words in card, words
    assert "onnx/model_quantized.onnx" in caplog.text
    assert "pre-processing" not in caplog.text
    assert model.tokenizer is not None
    network = shipped_network(model)
    batch = text_batch(network, TEXTS, model.tokenizer)
    onnx_folder = tmp_path / "exported" / "onnx"
    expected = run_onnx(onnx_folder / "model.onnx", batch)["logits"]
    quantized = run_onnx(onnx_folder / "model_quantized.onnx", batch)["logits"]
    assert 1e-6 < np.abs(quantized - expected).max() < 0.2
    # More padding, and a row of padding alone, change no other row and are not NaN.
    padded = {name: np.pad(ids, ((0, 1), (0, 3))) for name, ids in batch.items()}
    found = run_onnx(onnx_folder / "model.onnx", padded)["logits"]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:-1], expected, atol=1e-6)


def test_onnx_file_that_differs_leaves_no_folder(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match=r"its logits differs by .* from that of small model"):
        export(with_head(bert, LABELS), tmp_path / "exported", "fp32")
    assert not (tmp_path / "exported").exists()


def test_weights_of_large_models_are_in_a_file_of_their_own(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "LARGEST_FILE", 0)
    model = with_head(bert, LABELS)
    check_equal(model, tmp_path)
    names = {file.name for file in (tmp_path / "onnx").iterdir()}
    assert names == {"model.onnx", "model.onnx_data"}


def test_families_without_onnx_and_prompts_are_refused(bert, tmp_path):
    config = BigBirdConfig(**SIZES)
    model = dataclasses.replace(with_head(bert, None), config=config)
    assert model.tokenizer is not None
    with pytest.raises(UserError, match="BigBird models cannot be exported to ONNX, only BERT, "):
        write_onnx(shipped_network(model), model.tokenizer, tmp_path, "fp32")
    tokens = LabelTokens(mask_token_id=4, token_ids=(((5,),), ((6,),)))
    head = SequenceClassificationHead(labels=("no", "yes"), label_tokens=tokens)
    with pytest.raises(UserError, match="fine-tuned with a prompt, so it cannot be exported"):
        shipped_network(dataclasses.replace(bert, head=head))


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setattr(write.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--onnx needs onnx, .*bert_jax\[onnx\]"):
        write.check_onnx_installed()
