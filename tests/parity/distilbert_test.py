"""Compares DistilBERT with Hugging Face: names of old files, and tokens.

families_test.py compares its outputs and folders.
"""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    check_exported_texts,
    check_folder,
    check_texts,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["distilbert"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model


def test_bare_encoder_names_and_buffers_of_old_files(tmp_path):
    torch_model(SMALL, "Model").save_pretrained(tmp_path)
    expected = paths.flatten(load_encoder(tmp_path).params)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "transformer.layer.0.attention.q_lin.weight" in tensors  # as transformers writes it
    old = {f"distilbert.{name}": tensor for name, tensor in tensors.items()}
    old["distilbert.embeddings.position_ids"] = np.arange(40)[None]
    save_file(old, tmp_path / "model.safetensors")
    found = paths.flatten(load_encoder(tmp_path).params)
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
    texts = ["The cat sat on the cats.", "the [MASK] sat"]
    check_texts(loaded, tokenizer, texts)
    check_exported_texts(model, tokenizer, tmp_path / "exported", texts)
