"""Compares UltraBERT with Hugging Face's PyTorch classes where it differs from other families.

Covers bert_jax/models/ultrabert/; `families_test.py` compares outputs and folders.
"""

import dataclasses
import json

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.models.ultrabert.config import UltraBertConfig
from bert_jax.objectives.base import masked_lm_flops
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import check_outputs

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

FAMILY = FAMILIES["ultrabert"]


def test_published_folders_have_windows_and_bases_by_layer_and_other_names(tmp_path):
    model = FAMILY.torch_model(FAMILY.small, "ForMaskedLM")
    model.save_pretrained(tmp_path)
    expected = load_encoder(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    for name in ("layer_types", "sliding_window", "rope_parameters"):
        del fields[name]
    fields["attention_windows"] = [4, 4, None, 4]
    fields["rope_theta"] = [10_000.0, 10_000.0, 2_560_000.0, 10_000.0]
    file.write_text(json.dumps(fields))
    tensors = {
        name.replace("head.decoder.", "cls.").replace("model.", "ultrabert."): tensor
        for name, tensor in safetensors.load_file(tmp_path / "model.safetensors").items()
    }
    safetensors.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = load_encoder(tmp_path)
    assert loaded.config == FAMILY.small
    found = paths.flatten(loaded.params)
    for path, leaf in paths.flatten(expected.params).items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
    # transformers reads the same folder in the same way.
    check_outputs(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path), loaded, 40)


def test_late_pooling_is_refused():
    with pytest.raises(
        ConfigError, match=r"classifier_pooling is 'late', .*expected 'first_token'"
    ):
        dataclasses.replace(FAMILY.small, classifier_pooling="late")


def test_costs_of_local_layers_and_of_the_head():
    config = UltraBertConfig(num_hidden_layers=6)
    assert config.attended_keys(2048) == (257, 257, 2048) * 2
    assert config.attended_keys(100) == (100,) * 6
    assert masked_lm_flops(config) == 2 * 768 * (768 + 768 + 32_000)
