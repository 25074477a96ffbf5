"""Compares ModernBERT with Hugging Face's PyTorch classes in float32: outputs, folders, tokens.

Every parameter is random, norms and biases too; batches are padded. Only real tokens are compared.
The windows are narrower than the sequences, so that local layers differ from global ones.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import FirstTokenPooling, MeanPooling
from bert_jax.models.layers.config import NoPositions
from bert_jax.models.layers.rotary import inverse_frequencies
from bert_jax.models.model import run_forward
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.modernbert.huggingface import names
from bert_jax.params import paths
from bert_jax.pretrained.load import load_model
from tests.helpers.folder_parity import assert_same_tensors, check_head_folder, check_head_outputs
from tests.helpers.torch_parity import (
    each_head_of_family,
    each_head_of_second_size,
    load_exported,
    randomize_parameters,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
SMALL = ModernBertConfig(
    vocab_size=103,
    hidden_size=48,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=70,
    positions=NoPositions(max_position_embeddings=64),
    local_attention=8,
)
MEDIUM = ModernBertConfig(
    vocab_size=300,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=192,
    positions=NoPositions(max_position_embeddings=300),
    layer_types=("sliding_attention", "full_attention", "full_attention", "sliding_attention"),
    local_attention=24,
    global_rope_theta=40_000.0,
    local_rope_theta=160_000.0,
    classifier_pooling=FirstTokenPooling(),
)
both_sizes = pytest.mark.parametrize(
    "config", [SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)], ids=["small", "medium"]
)


def torch_model(config: ModernBertConfig, name: str, **fields: Any) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    pooling = {FirstTokenPooling(): "cls", MeanPooling(): "mean"}[config.classifier_pooling]
    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": config.global_rope_theta},
        "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
    }
    hf_config = transformers.ModernBertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.positions.max_position_embeddings,
        attn_implementation="eager",
        layer_types=list(config.layer_types),
        local_attention=config.local_attention,
        rope_parameters=rope,
        classifier_pooling=pooling,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        **fields,
    )
    model = getattr(transformers, f"ModernBert{name}")(hf_config)
    return randomize_parameters(model, std=0.05)


def params_of(model: Any, head_name: str = "classifier") -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    return paths.unflatten(names(True, head_name).from_external(state, "torch"))


def masked_lm_batch(config: ModernBertConfig, seq_length: int = 40) -> Any:
    return pretraining_batch(
        batch_size=3,
        seq_length=seq_length,
        max_predictions_per_seq=4,
        vocab_size=config.vocab_size,
    )


def torch_fields(batch: Any, *field_names: str) -> dict[str, Any]:
    return {name: torch.from_numpy(batch[name]).long() for name in field_names}


@both_sizes
def test_hidden_states_and_masked_lm_logits(config):
    seq_length = 40 if config is SMALL else 290  # one block of local attention, and several
    model, batch = torch_model(config, "ForMaskedLM"), masked_lm_batch(config, seq_length)
    with torch.no_grad():
        expected = model(
            **torch_fields(batch, "input_ids", "attention_mask"), output_hidden_states=True
        )
    found = run_forward(params_of(model), config, batch)
    real = batch["attention_mask"] > 0
    assert 0.5 < real.mean() < 1
    for layer, (a, b) in enumerate(
        zip(found["hidden_states"], expected.hidden_states, strict=True)
    ):
        np.testing.assert_allclose(a[real], b.numpy()[real], atol=TOLERANCE, err_msg=f"{layer}")
    logits = expected.logits.numpy()
    assert logits.std() > 0.05
    np.testing.assert_allclose(found["masked_lm"][real], logits[real], atol=TOLERANCE)


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_rotary_frequencies_are_those_of_hugging_face(theta):
    exponents = torch.arange(0, 64, 2, dtype=torch.float) / 64
    expected = (1.0 / (theta**exponents)).numpy()
    np.testing.assert_array_equal(inverse_frequencies(64, theta), expected)


def test_packed_examples_are_computed_as_if_alone():
    params = params_of(torch_model(SMALL, "ForMaskedLM"))
    ids = np.random.default_rng(0).integers(5, 103, (1, 40)).astype(np.int32)
    parts, zeros, ones = (ids[:, :25], ids[:, 25:]), np.zeros_like(ids), np.ones_like(ids)
    counts = [np.arange(25), np.arange(15)]
    packed = {
        "input_ids": ids,
        "token_type_ids": zeros,
        "attention_mask": ones,
        "position_ids": np.concatenate(counts)[None].astype(np.int32),
        "packing_ids": np.repeat([1, 2], [25, 15])[None].astype(np.int32),
    }
    together = run_forward(params, SMALL, packed)["masked_lm"][0]
    fields = ("input_ids", "token_type_ids", "attention_mask")
    alone = [
        run_forward(params, SMALL, dict(zip(fields, (part, part * 0, part * 0 + 1), strict=True)))[
            "masked_lm"
        ][0]
        for part in parts
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=3e-6)


@each_head_of_family
def test_task_heads_and_their_folders(tmp_path, head_name):
    check_head_folder(torch_model, SMALL, head_name, tmp_path)


@each_head_of_second_size
def test_task_heads_of_another_size(tmp_path, head_name):
    check_head_outputs(torch_model, MEDIUM, head_name, tmp_path, seq_length=40)


@pytest.mark.parametrize("config", [SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["Model", "ForMaskedLM"])
def test_pretrained_folders_come_back_bit_identical(tmp_path, config, name):
    model = torch_model(config, name)
    model.save_pretrained(tmp_path / "torch")
    loaded = load_model(tmp_path / "torch")
    assert loaded.config == config
    assert loaded.missing == (() if name == "ForMaskedLM" else ("prediction_head", "masked_lm"))
    export(loaded, tmp_path / "exported")
    auto = transformers.AutoModel if name == "Model" else transformers.AutoModelForMaskedLM
    reopened = load_exported(auto, tmp_path / "exported")
    assert_same_tensors(model, reopened)
    assert reopened.config.layer_types == list(config.layer_types)
    assert reopened.config.rope_parameters == model.config.rope_parameters


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
    config = load_model(tmp_path).config
    expected = ("full_attention", "sliding_attention") * 2
    assert config == dataclasses.replace(SMALL, layer_types=expected, local_rope_theta=20_000.0)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"norm_bias": True}, "norm_bias is True; only False is supported"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; expected 'cls' or 'mean'"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types contains 'chunked_attention'"),
        ({"layer_types": ["full_attention"]}, "model.layer_types has 1 layers, expected"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "only the rope_type 'default' is supported",
        ),
    ],
)
def test_configs_of_other_models_are_refused(tmp_path, change, message):
    torch_model(SMALL, "Model").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match="config.json: .*" + message.replace("(", r"\(")):
        load_model(tmp_path)


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
    loaded = load_model(tmp_path)
    assert loaded.config == config and loaded.tokenizer is not None
    texts = ["the [MASK] sat.", "a cat on the mat, and the dog's tail é."]
    expected = tokenizer(texts, return_tensors="np", padding=True)
    found = loaded.tokenize(texts)
    for name in ("input_ids", "attention_mask"):
        np.testing.assert_array_equal(found[name], expected[name])
    pair = loaded.tokenizer.build_inputs_with_special_tokens(*map(loaded.tokenizer.encode, texts))
    assert pair.tolist() == tokenizer(*texts)["input_ids"]
    with torch.no_grad():
        states = model(**torch_fields(found, "input_ids", "attention_mask")).last_hidden_state
    real = found["attention_mask"] > 0
    hidden_states = run_forward(loaded.params, config, found)["hidden_states"][-1]
    np.testing.assert_allclose(hidden_states[real], states.numpy()[real], rtol=0, atol=TOLERANCE)
