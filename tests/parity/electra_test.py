"""Compares ELECTRA with Hugging Face: tokens of pairs.

families_test.py compares its outputs and folders.
"""

import numpy as np
import pytest

from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.layers.config import LearnedPositions
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    check_folder,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["electra"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model


def test_tokenizer_and_pairs_of_texts(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "."]
    tokenizer = transformers.ElectraTokenizerFast(vocab={w: i for i, w in enumerate(words)})
    tokenizer.save_pretrained(tmp_path / "torch")
    config = ElectraConfig(
        vocab_size=len(words), embedding_size=16, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=30,
        positions=LearnedPositions(max_position_embeddings=24),
    )  # fmt: skip
    model = torch_model(config, "Model")
    loaded = check_folder(model, tmp_path, auto_class=transformers.AutoModel, config=config)
    assert loaded.tokenizer is not None
    pair = ("The cat sat on the cats.", "the [MASK] sat")
    expected = tokenizer(*pair)
    first, second = map(loaded.tokenizer.encode, pair)
    found = loaded.tokenizer.build_inputs_with_special_tokens(first, second)
    assert found.tolist() == expected["input_ids"]
    types = loaded.tokenizer.template.token_type_ids(len(first), len(second))
    assert np.asarray(types).tolist() == expected["token_type_ids"]
