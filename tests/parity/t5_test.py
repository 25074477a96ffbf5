"""Compares T5 1.0 and 1.1 with Hugging Face's PyTorch classes: outputs and folders.

Every parameter is random, and the head of 1.1 differs from the token embeddings: a new model of
transformers 5 would have tied ones. Covers bert_jax/models/t5, bert_jax/models/seq2seq and
bert_jax/interop/seq2seq.py.
"""

import dataclasses
import json

import pytest

from bert_jax.interop.seq2seq import read_seq2seq_folder
from bert_jax.models.seq2seq.config import GatedFeedForward
from bert_jax.models.t5.config import T5Config
from tests.helpers.seq2seq_parity import T5_SMALL, check_seq2seq_model, torch_t5

MEDIUM = dataclasses.replace(
    T5_SMALL,
    vocab_size=301,
    hidden_size=64,
    d_kv=24,
    num_attention_heads=4,
    intermediate_size=130,
    num_encoder_layers=2,
    relative_attention_num_buckets=12,
    relative_attention_max_distance=20,
)


def version_1_1(config: T5Config) -> T5Config:
    return dataclasses.replace(
        config,
        feed_forward=GatedFeedForward(activation="gelu_tanh"),
        tie_word_embeddings=False,
        scale_decoder_outputs=False,
    )


@pytest.mark.parametrize(
    "config",
    [T5_SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)],
    ids=["small", "medium"],
)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_outputs_cached_decoding_and_folders(tmp_path, config, version):
    config = config if version == "1.0" else version_1_1(config)
    check_seq2seq_model(torch_t5(config), config, tmp_path)


def test_weights_decide_whether_the_head_is_tied(tmp_path):
    config = version_1_1(T5_SMALL)
    torch_t5(config).save_pretrained(tmp_path / "untied")
    # transformers 5 ties the head of a new model whatever its config contains.
    tied = dataclasses.replace(config, tie_word_embeddings=True)
    torch_t5(tied).save_pretrained(tmp_path / "tied")
    for name, expected in (("untied", config), ("tied", tied)):
        file = tmp_path / name / "config.json"
        fields = json.loads(file.read_text())
        assert fields["tie_word_embeddings"] and not fields["scale_decoder_outputs"]
        assert read_seq2seq_folder(tmp_path / name).config == expected
        del fields["scale_decoder_outputs"]  # earlier versions wrote only the other field
        file.write_text(json.dumps(fields | {"tie_word_embeddings": False}))
        assert read_seq2seq_folder(tmp_path / name).config == expected
