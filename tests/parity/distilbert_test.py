"""Compares DistilBERT with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, biases and norms too; batches are padded.
"""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.layers.config import GeluTanh, LearnedPositions, Relu
from bert_jax.params import paths
from bert_jax.pretrained.load import load_model
from tests.helpers.folder_parity import (
    check_folder,
    check_head_folder,
    check_head_outputs,
    check_outputs,
)
from tests.helpers.torch_parity import (
    each_head_of_family,
    each_head_of_second_size,
    load_exported,
    randomize_parameters,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = DistilBertConfig(
    vocab_size=103,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=70,
    positions=LearnedPositions(max_position_embeddings=40),
)
MEDIUM = DistilBertConfig(
    vocab_size=300,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    positions=LearnedPositions(max_position_embeddings=64),
    hidden_act=Relu(),
    hidden_dropout_prob=0.2,
)
both_sizes = pytest.mark.parametrize(
    "config", [SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)], ids=["small", "medium"]
)


def torch_model(config: DistilBertConfig, name: str, **fields: Any) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    activations = {Relu(): "relu", GeluTanh(): "gelu_new"}
    hf_config = transformers.DistilBertConfig(
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        hidden_dim=config.intermediate_size,
        max_position_embeddings=config.positions.max_position_embeddings,
        activation=activations.get(config.hidden_act, "gelu"),
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        attn_implementation="eager",
        **fields,
    )
    model = getattr(transformers, f"DistilBert{name}")(hf_config)
    return randomize_parameters(model, std=0.05)


@both_sizes
@pytest.mark.parametrize("name, parts", [("Model", ()), ("ForMaskedLM", ("masked_lm",))])
def test_pretrained_models(tmp_path, config, name, parts):
    auto = transformers.AutoModel if name == "Model" else transformers.AutoModelForMaskedLM
    check_folder(torch_model(config, name), tmp_path, auto_class=auto, config=config, parts=parts)


@each_head_of_family
def test_task_heads_and_their_folders(tmp_path, head_name):
    check_head_folder(torch_model, SMALL, head_name, tmp_path)


@each_head_of_second_size
def test_task_heads_of_another_size(tmp_path, head_name):
    check_head_outputs(torch_model, MEDIUM, head_name, tmp_path)


def test_untied_head_has_its_own_table(tmp_path):
    model = torch_model(SMALL, "ForMaskedLM", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert "decoder" in loaded.params["masked_lm"]
    check_outputs(model, loaded)


def test_bare_encoder_names_and_buffers_of_old_files(tmp_path):
    torch_model(SMALL, "Model").save_pretrained(tmp_path)
    expected = paths.flatten(load_model(tmp_path).params)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "transformer.layer.0.attention.q_lin.weight" in tensors  # as transformers writes it
    old = {f"distilbert.{name}": tensor for name, tensor in tensors.items()}
    old["distilbert.embeddings.position_ids"] = np.arange(40)[None]
    save_file(old, tmp_path / "model.safetensors")
    found = paths.flatten(load_model(tmp_path).params)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[path], leaf) for path, leaf in expected.items())


def test_tokenizer_and_texts(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "."]
    tokenizer = transformers.DistilBertTokenizerFast(vocab={w: i for i, w in enumerate(words)})
    tokenizer.save_pretrained(tmp_path / "torch")
    config = DistilBertConfig(
        vocab_size=len(words), hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=30, positions=LearnedPositions(max_position_embeddings=24),
    )  # fmt: skip
    model = torch_model(config, "Model")
    loaded = check_folder(model, tmp_path, auto_class=transformers.AutoModel, config=config)
    assert loaded.tokenizer is not None
    texts = ["The cat sat on the cats.", "the [MASK] sat"]
    expected = tokenizer(texts, return_tensors="np", padding=True)
    found = loaded.tokenize(texts)
    for name in ("input_ids", "attention_mask"):
        np.testing.assert_array_equal(found[name], expected[name])
    pair = loaded.tokenizer.build_inputs_with_special_tokens(*map(loaded.tokenizer.encode, texts))
    assert pair.tolist() == tokenizer(*texts)["input_ids"]
    # What the exported tokenizer returns can be given to the exported model.
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    reopened = load_exported(transformers.AutoModel, tmp_path / "exported").eval()
    with torch.no_grad():
        states = reopened(**exported(texts, return_tensors="pt", padding=True)).last_hidden_state
        original = model(**tokenizer(texts, return_tensors="pt", padding=True)).last_hidden_state
    assert torch.equal(states, original)
