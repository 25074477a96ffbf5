"""Compares MPNet with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, biases and norms too; batches are padded with MPNet's id 1.
"""

from typing import Any

import numpy as np
import pytest

from bert_jax.models.layers.config import GeluTanh, PaddingOffsetPositions
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.pretrained.load import load_model
from tests.helpers.folder_parity import check_folder, check_outputs
from tests.helpers.torch_parity import HEADS, load_exported, randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = MPNetConfig(
    vocab_size=103,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=70,
    positions=PaddingOffsetPositions(max_position_embeddings=42),
)
MEDIUM = MPNetConfig(
    vocab_size=300,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    positions=PaddingOffsetPositions(max_position_embeddings=302),
    hidden_act=GeluTanh(),
    hidden_dropout_prob=0.2,
)
sizes = pytest.mark.parametrize(
    # Distances from 128 on are in the last bucket.
    "config, seq_length",
    [(SMALL, 24), (MEDIUM, 300)],
    ids=["small", "long"],
)


def torch_model(config: MPNetConfig, name: str, **fields: Any) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    hf_config = transformers.MPNetConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.positions.max_position_embeddings,
        layer_norm_eps=config.layer_norm_eps,
        hidden_act="gelu_new" if config.hidden_act == GeluTanh() else "gelu",
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        attn_implementation="eager",
        **fields,
    )
    model = getattr(transformers, f"MPNet{name}")(hf_config)
    randomize_parameters(model, std=0.05)
    for module in model.modules():
        if type(module).__name__ == "MPNetEncoder":  # a bias of usual size changes little
            with torch.no_grad():
                module.relative_attention_bias.weight.mul_(20.0)
    return model


@sizes
@pytest.mark.parametrize("name, parts", [("Model", ("pooler",)), ("ForMaskedLM", ("masked_lm",))])
def test_pretrained_models(tmp_path, config, seq_length, name, parts):
    auto = transformers.AutoModel if name == "Model" else transformers.AutoModelForMaskedLM
    check_folder(
        torch_model(config, name),
        tmp_path,
        auto_class=auto,
        config=config,
        parts=parts,
        seq_length=seq_length,
        pad_token_id=1,
    )


@pytest.mark.parametrize("head_name", HEADS)
def test_task_heads_and_their_folders(tmp_path, head_name):
    head, name, fields = HEADS[head_name]
    check_folder(
        torch_model(SMALL, f"For{name}", **fields),
        tmp_path,
        auto_class=getattr(transformers, f"AutoModelFor{name}"),
        config=SMALL,
        head=head,
        pad_token_id=1,
    )


@pytest.mark.parametrize("head_name", HEADS)
def test_task_heads_on_long_texts(tmp_path, head_name):
    head, name, fields = HEADS[head_name]
    model = torch_model(MEDIUM, f"For{name}", **fields)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == MEDIUM and loaded.head == head
    check_outputs(model, loaded, seq_length=160, pad_token_id=1)


def test_tokenizer_and_texts(tmp_path):
    words = ["[CLS]", "[UNK]", "the", "cat", "sat", "##s", "on", "."]  # as in the published one
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    tokenizer = transformers.MPNetTokenizer(vocab={w: i for i, w in enumerate(tokens)})
    tokenizer.save_pretrained(tmp_path / "torch")
    config = MPNetConfig(
        vocab_size=len(tokens), hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=30, positions=PaddingOffsetPositions(max_position_embeddings=26),
    )  # fmt: skip
    model = torch_model(config, "Model")
    loaded = check_folder(
        model, tmp_path, auto_class=transformers.AutoModel, config=config, parts=("pooler",),
        pad_token_id=1,
    )  # fmt: skip
    assert loaded.tokenizer is not None
    texts = ["The cat sat on the cats.", "a <mask> sat"]
    expected = tokenizer(texts, return_tensors="np", padding=True)
    found = loaded.tokenize(texts)
    for name in ("input_ids", "attention_mask"):
        np.testing.assert_array_equal(found[name], expected[name])
    pair = tokenizer(*texts)["input_ids"]
    encode, build = loaded.tokenizer.encode, loaded.tokenizer.build_inputs_with_special_tokens
    assert build(*map(encode, texts)).tolist() == pair
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert type(exported) is type(tokenizer) and exported(*texts)["input_ids"] == pair
    reopened = load_exported(transformers.AutoModel, tmp_path / "exported").eval()
    with torch.no_grad():
        states = reopened(**exported(texts, return_tensors="pt", padding=True)).last_hidden_state
        original = model(**tokenizer(texts, return_tensors="pt", padding=True)).last_hidden_state
    assert torch.equal(states, original)
