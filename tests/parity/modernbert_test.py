"""Compares ModernBERT with Hugging Face's PyTorch classes in float32: outputs, folders, tokens.

families_test.py compares its outputs and folders; here are its configs and tokens.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from bert_jax.export.export import export
from bert_jax.models.layers.rotary import inverse_frequencies
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import check_states, check_texts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["modernbert"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_rotary_frequencies_are_those_of_hugging_face(theta):
    exponents = torch.arange(0, 64, 2, dtype=torch.float) / 64
    expected = (1.0 / (theta**exponents)).numpy()
    np.testing.assert_array_equal(inverse_frequencies(64, theta), expected)


@pytest.mark.parametrize(
    "config", [SMALL, pytest.param(FAMILY.medium, marks=pytest.mark.slow)], ids=["small", "medium"]
)
def test_exported_config_has_the_layers_of_the_model(tmp_path, config):
    model = torch_model(config, "ForMaskedLM")
    model.save_pretrained(tmp_path / "torch")
    export(load_encoder(tmp_path / "torch"), tmp_path / "exported")
    exported = transformers.AutoConfig.from_pretrained(tmp_path / "exported")
    assert exported.layer_types == list(config.layer_types)
    assert exported.rope_parameters == model.config.rope_parameters


def test_config_keys_of_transformers_4_are_read(tmp_path):
    model = torch_model(SMALL, "ForMaskedLM")
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    for name in ("layer_types", "rope_parameters"):
        del fields[name]
    # The keys of the published file of ModernBERT-base.
    old = {
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 20000.0,
        "position_embedding_type": "absolute",
        "layer_norm_eps": 1e-5,
        "gradient_checkpointing": False,
        "deterministic_flash_attn": False,
        "sparse_prediction": False,
    }
    file.write_text(json.dumps(fields | old))
    config = load_encoder(tmp_path).config
    expected = ("full_attention", "sliding_attention") * 2
    assert config == dataclasses.replace(SMALL, layer_types=expected, local_rope_theta=20_000.0)


def write_tokenizer(folder: Any) -> Any:
    """Writes a byte-level BPE tokenizer with ModernBERT's special tokens and templates."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *letters, "Ġt", "[MASK]"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "t")], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True), *special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")},
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.save_pretrained(folder)
    return fast


def test_folders_with_tokenizer_open_and_encode_texts(tmp_path):
    tokenizer = write_tokenizer(tmp_path)
    # The published tables are padded to a multiple of 64.
    config = dataclasses.replace(SMALL, vocab_size=-(-len(tokenizer) // 64) * 64)
    model = torch_model(config, "Model")
    model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.config == config and loaded.tokenizer is not None
    texts = ["the [MASK] sat.", "a cat on the mat, and the dog's tail é."]
    check_states(model, loaded, check_texts(loaded, tokenizer, texts))
