"""Compares the ModernBERT decoder with Hugging Face's PyTorch class: outputs, folders, scores.

Covers bert_jax/models/modernbert_decoder/, and what other code does with a decoder.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.sentence_scores.scorer import SentenceScorer
from bert_jax.config.objectives import Pretraining
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.model import build_network
from bert_jax.models.modernbert_decoder.config import ModernBertDecoderConfig
from bert_jax.params import paths
from bert_jax.predict.generator import Generator
from bert_jax.pretrained.initial import load_model_or_tf1
from bert_jax.pretrained.load import LoadedCausalLM, load_encoder, load_model
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import TOLERANCE, assert_same_tensors, check_outputs
from tests.helpers.torch_parity import load_exported, randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def decoder(size: str) -> ModernBertDecoderConfig:
    """Returns the decoder of the sizes of the encoder with which `families_test.py` compares."""
    encoder = getattr(FAMILIES["modernbert"], size)
    fields: dict[str, Any] = {
        field.name: getattr(encoder, field.name) for field in dataclasses.fields(encoder)
    }
    fields["classifier_pooling"] = "mean"
    return ModernBertDecoderConfig(**fields)


def torch_decoder(config: ModernBertDecoderConfig, **fields: Any) -> Any:
    fields = {**FAMILIES["modernbert"].fields(config), **fields}
    del fields["classifier_pooling"]
    model = transformers.ModernBertDecoderForCausalLM(
        transformers.ModernBertDecoderConfig(**fields)
    )
    return randomize_parameters(model, std=0.05)


# One block of local attention, and several.
@pytest.mark.parametrize(("size", "seq_length"), [("small", 40), ("medium", 290)])
def test_outputs_and_folders(tmp_path, size, seq_length):
    config = decoder(size)
    model = torch_decoder(config, tie_word_embeddings=size == "small")
    model.save_pretrained(tmp_path / "torch")
    loaded = load_model(tmp_path / "torch")
    assert isinstance(loaded, LoadedCausalLM)
    network = loaded.network
    assert network.config == dataclasses.replace(config, tie_word_embeddings=size == "small")
    assert network.params.keys() == {"encoder", "prediction_head", "masked_lm"}
    check_outputs(model, network, seq_length)
    assert export(network, tmp_path / "exported") == 0.0
    reopened = load_exported(transformers.AutoModelForCausalLM, tmp_path / "exported")
    assert_same_tensors(model, reopened)
    again = load_model_or_tf1(tmp_path / "exported")
    assert again.config == network.config
    expected = paths.flatten(network.params)
    for path, leaf in paths.flatten(again.params).items():
        np.testing.assert_array_equal(leaf, expected[path], err_msg=path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes a small decoder and a tokenizer of words."""
    folder = tmp_path_factory.mktemp("decoder")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *["a", "cat", "dog", "sat", "on", "the", "mat", "."],
    ]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    config = dataclasses.replace(decoder("small"), vocab_size=len(words))
    torch_decoder(config).save_pretrained(folder)
    return folder


def test_scores_are_those_of_hugging_face(folder):
    score = SentenceScorer(load_model(folder))("the cat sat on a mat.")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[2, 10, 6, 8, 9, 5, 11, 12, 3]])
    with torch.no_grad():
        log_probabilities = model(ids).logits[0].log_softmax(-1)
    expected = [log_probabilities[i, ids[0, i + 1]].item() for i in range(7)]
    assert score.tokens == ["the", "cat", "sat", "on", "a", "mat", "."]
    np.testing.assert_allclose(score.log_probabilities, expected, rtol=0, atol=TOLERANCE)


def test_a_decoder_is_no_encoder(folder):
    with pytest.raises(UserError, match=r"left to right .*cannot be used as an encoder"):
        load_encoder(folder)
    with pytest.raises(UserError, match="is a left-to-right language model, with which no text"):
        Generator(load_model(folder))
    config = decoder("small")
    head = SequenceClassificationHead(labels=("a", "b"))
    with pytest.raises(ConfigError, match="is a ModernBERT decoder, which has no task heads"):
        build_network(config, (), head).abstract()
    with pytest.raises(ConfigError, match="is a ModernBERT decoder, which reads left to right"):
        Pretraining(model=config, mask_token_id=4, nsp_weight=0.0)


def test_published_keys_are_read(tmp_path):
    torch_decoder(decoder("small")).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    del fields["layer_types"], fields["rope_parameters"]
    old = {"global_attn_every_n_layers": 2, "global_rope_theta": 160000.0}
    file.write_text(json.dumps({**fields, **old, "local_rope_theta": 160000.0}))
    found = load_model_or_tf1(tmp_path).config
    assert isinstance(found, ModernBertDecoderConfig) and found.local_rope_theta == 160_000.0
    assert found.layer_types == ("full_attention", "sliding_attention") * 2
