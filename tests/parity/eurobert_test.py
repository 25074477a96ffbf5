"""Compares EuroBERT with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, norms and biases too; batches are padded. Only real tokens are compared.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.heads.config import (
    FirstTokenPooling,
    LatePooling,
    MeanPooling,
    QuestionAnsweringHead,
)
from bert_jax.models.layers.config import Gelu, NoPositions
from bert_jax.pretrained.load import load_model
from tests.helpers.folder_parity import check_folder, check_head_folder, check_head_outputs
from tests.helpers.torch_parity import randomize_parameters

transformers = pytest.importorskip("transformers")

SMALL = EuroBertConfig(
    vocab_size=103,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=70,
    positions=NoPositions(max_position_embeddings=40),
)
MEDIUM = EuroBertConfig(
    vocab_size=300,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=192,
    hidden_act=Gelu(),
    positions=NoPositions(max_position_embeddings=200),
    layer_norm_eps=1e-6,
    rope_theta=10_000.0,
    classifier_pooling=MeanPooling(),
)
both_sizes = pytest.mark.parametrize(
    "config", [SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)], ids=["small", "medium"]
)
POOLINGS = {"late": LatePooling(), "mean": MeanPooling(), "bos": FirstTokenPooling()}


def torch_model(config: EuroBertConfig, name: str, **fields: Any) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    hf_config = transformers.EuroBertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.positions.max_position_embeddings,
        hidden_act="gelu" if config.hidden_act == Gelu() else "silu",
        rms_norm_eps=config.layer_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        classifier_pooling=next(
            name for name, kind in POOLINGS.items() if kind == config.classifier_pooling
        ),
        attn_implementation="eager",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **fields,
    )
    model = getattr(transformers, f"EuroBert{name}")(hf_config)
    return randomize_parameters(model, std=0.05)


@both_sizes
@pytest.mark.parametrize("name", ["Model", "ForMaskedLM"])
def test_pretrained_folders(tmp_path, config, name):
    auto = transformers.AutoModel if name == "Model" else transformers.AutoModelForMaskedLM
    parts = () if name == "Model" else ("masked_lm",)
    model = torch_model(config, name)
    check_folder(model, tmp_path, auto_class=auto, config=config, parts=parts)


@pytest.mark.parametrize("head_name", ["sequence", "token"])
def test_task_heads_and_their_folders(tmp_path, head_name):
    check_head_folder(torch_model, SMALL, head_name, tmp_path)


@pytest.mark.parametrize(
    ("head_name", "pooling"), [("regression", "mean"), ("sequence", "bos"), ("token", "late")]
)
def test_task_heads_of_another_size(tmp_path, head_name, pooling):
    config = dataclasses.replace(MEDIUM, classifier_pooling=POOLINGS[pooling])
    check_head_outputs(torch_model, config, head_name, tmp_path, seq_length=40)


def test_tokens_of_the_vocabulary_of_llama(tmp_path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*letters, "Ġt"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "t")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    start, end = "<|begin_of_text|>", "<|end_of_text|>"
    tokenizer.add_special_tokens([start, end, AddedToken("<|mask|>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (start, end)],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=start,
        eos_token=end,
        pad_token=end,
        mask_token="<|mask|>",
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.save_pretrained(tmp_path)
    config = dataclasses.replace(SMALL, vocab_size=len(fast))
    torch_model(config, "Model").save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    texts = ["the <|mask|> sat.", "a cat on the mat, and the dog's tail é."]
    expected, found = fast(texts, return_tensors="np", padding=True), loaded.tokenize(texts)
    for name in ("input_ids", "attention_mask"):
        np.testing.assert_array_equal(found[name], expected[name])


def change_config(folder: Any, removed: tuple[str, ...], **added: Any) -> None:
    torch_model(SMALL, "Model").save_pretrained(folder)
    file = folder / "config.json"
    fields = {k: v for k, v in json.loads(file.read_text()).items() if k not in removed}
    file.write_text(json.dumps(fields | added))


def test_config_keys_of_the_published_folders_are_read(tmp_path):
    removed = ("rope_parameters", "classifier_pooling", "head_dim")
    published = {
        "clf_pooling": "mean",
        "hidden_dropout": 0.0,
        "is_decoder": False,
        "mask_token": "<|mask|>",
        "pretraining_tp": 1,
        "rope_scaling": None,
        "rope_theta": 30_000,
    }
    change_config(tmp_path, removed, **published)
    expected = dataclasses.replace(SMALL, rope_theta=30_000.0, classifier_pooling=MeanPooling())
    assert load_model(tmp_path).config == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp_bias": True}, "mlp_bias is True; only False is supported"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; expected 'bos', 'mean'"),
        ({"head_dim": 64}, "head_dim is 64; expected .* which is 12"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor of"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, expected an integer from 1 to 4"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True, but EuroBERT's"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "only the rope_type 'default' is supported"),
        ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta is '1e4'; expected a number"),
    ],
)
def test_configs_of_other_models_are_refused(tmp_path, change, message):
    change_config(tmp_path, (), **change)
    with pytest.raises(UserError, match="config.json: .*" + message):
        load_model(tmp_path)


def test_export_without_a_class_is_refused(tmp_path):
    torch_model(SMALL, "Model").save_pretrained(tmp_path / "torch")
    loaded = load_model(tmp_path / "torch")
    with_head = dataclasses.replace(loaded, head=QuestionAnsweringHead())
    with pytest.raises(UserError, match="transformers has no class EuroBertForQuestionAnswering"):
        export(with_head, tmp_path / "exported")
