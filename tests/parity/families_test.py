"""Compares all families with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, biases and norms too; batches are padded, and only real tokens are
compared: the hidden states of padding have no meaning. `tests/helpers/families.py` has the models,
and the files beside this one have what single families differ in; bert_test.py has BERT.
Covers bert_jax/models/*/model.py and huggingface.py, and bert_jax/export/export.py.
"""

import json
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import read_config
from bert_jax.models.model import run_forward
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    check_folder,
    check_head_folder,
    check_head_outputs,
    check_outputs,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# The second sizes that cover code of their own: equal widths, and full attention.
FAST_SECOND_SIZES = ("albert", "bigbird")


def slow_unless(is_fast: bool, *values: Any) -> Any:
    return pytest.param(*values, marks=() if is_fast else pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "size", "class_name"),
    [
        slow_unless(size == 0 or name in FAST_SECOND_SIZES, name, size, class_name)
        for name, family in FAMILIES.items()
        for size in (0, 1)
        for class_name in family.parts
    ],
)
def test_pretrained_models_and_their_folders(tmp_path, name, size, class_name):
    family = FAMILIES[name]
    config = (family.small, family.medium)[size]
    loaded = check_folder(
        family.torch_model(config, class_name),
        tmp_path,
        auto_class=getattr(transformers, f"AutoModel{class_name.removeprefix('Model')}"),
        config=config,
        parts=family.parts[class_name],
        seq_length=family.seq_lengths[size],
        pad_token_id=family.pad_token_id,
    )
    has_projection = name == "albert" or (name == "electra" and size == 0)
    assert ("embedding_projection" in loaded.params["encoder"]) == has_projection


# Longformer's heads have global tokens (longformer_test.py). Regression has the class and the
# weights of "sequence". The linear layers of "token" and "span" read the encoder's output in every
# family; fine_tuning_heads_test.py has those of BERT.
@pytest.mark.parametrize(
    ("name", "head_name"),
    [
        slow_unless(head_name in ("sequence", "choice") or name == "eurobert", name, head_name)
        for name in FAMILIES
        for head_name in FAMILIES[name].heads
    ],
)
def test_task_heads_and_their_folders(tmp_path, name, head_name):
    family = FAMILIES[name]
    check_head_folder(
        family.torch_model, family.small, head_name, tmp_path, pad_token_id=family.pad_token_id
    )


@pytest.mark.parametrize(
    ("name", "head_name"),
    [
        slow_unless(head_name == "sequence", name, head_name)
        for name in FAMILIES
        for head_name in FAMILIES[name].heads
        if name not in ("bigbird", "eurobert", "longformer")  # the last two in files of their own
    ],
)
def test_task_heads_of_another_size(tmp_path, name, head_name):
    family = FAMILIES[name]
    check_head_outputs(
        family.torch_model,
        family.medium,
        head_name,
        tmp_path,
        seq_length=family.head_seq_length,
        pad_token_id=family.pad_token_id,
    )


@pytest.mark.parametrize(("name", "width"), [("distilbert", 48), ("electra", 20)])
def test_untied_head_has_its_own_table(tmp_path, name, width):
    family = FAMILIES[name]
    model = family.torch_model(family.small, "ForMaskedLM", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.params["masked_lm"]["decoder"].shape == (103, width)
    check_outputs(model, loaded)


@pytest.mark.parametrize(
    ("name", "size", "lengths", "tolerance"),
    [
        ("roberta", 0, (12, 8), 1e-6),
        ("modernbert", 0, (25, 15), 3e-6),
        ("longformer", 1, (150, 130), 1e-6),
        ("ultrabert", 0, (25, 15), 3e-6),
        ("esm", 0, (25, 15), 3e-6),  # with masks, in other shares
    ],
)
def test_packed_examples_are_computed_as_if_alone(tmp_path, name, size, lengths, tolerance):
    family = FAMILIES[name]
    config = (family.small, family.medium)[size]
    family.torch_model(config, "ForMaskedLM").save_pretrained(tmp_path)
    params = load_encoder(tmp_path).params
    random = np.random.default_rng(0)
    ids = random.integers(5, config.vocab_size, (1, sum(lengths))).astype(np.int32)
    ids[0, [2, 5, 9, -3]] = 4

    def masked_lm(ids: np.ndarray, **fields: np.ndarray) -> np.ndarray:
        plain = {"token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
        return run_forward(params, config, {"input_ids": ids, **plain, **fields})["masked_lm"][0]

    together = masked_lm(
        ids,
        position_ids=np.concatenate([np.arange(n) for n in lengths])[None].astype(np.int32),
        packing_ids=np.repeat([1, 2], lengths)[None].astype(np.int32),
    )
    alone = [masked_lm(part) for part in np.split(ids, [lengths[0]], axis=1)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=tolerance)


ABSENT = ...


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("electra", {"embedding_size": ABSENT}, "integer in the field 'embedding_size'; it is abs"),
        ("electra", {"embedding_size": 0}, "embedding_size is 0, expected an integer from 1"),
        ("electra", {"summary_activation": "tanh"}, "summary_activation is 'tanh'; only 'gelu' is"),
        (
            "electra",
            {"architectures": ["ElectraForCausalLM"]},
            "'ElectraForCausalLM'; expected",
        ),
        ("modernbert", {"norm_bias": True}, "norm_bias is True; only False is supported"),
        ("modernbert", {"classifier_pooling": "max"}, "'max'; expected 'cls' or 'mean'"),
        ("modernbert", {"layer_types": ["chunked_attention"] * 4}, "layer_types contains 'chunked"),
        (
            "modernbert",
            {"layer_types": ["full_attention"]},
            "layer_types has 1 layers, expected",
        ),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "only the rope_type 'default' is supported",
        ),
        (
            "esm",
            {"position_embedding_type": "absolute"},
            "supported: ESM-1b has learned",
        ),
        ("esm", {"position_embedding_type": ABSENT}, "absent, which means 'absolute'; only 'rotar"),
        ("esm", {"emb_layer_norm_before": True}, "before is True; only False is supported: ESM-1b"),
        ("esm", {"is_folding_model": True}, "is_folding_model is True; only False is supported"),
        ("esm", {"mask_token_id": 103}, "mask_token_id 103 is not an id below .* 103"),
        ("esm", {"hidden_act": "relu"}, "hidden_act is 'relu'; ESM-2 has only 'gelu'"),
        ("eurobert", {"mlp_bias": True}, "mlp_bias is True; only False is supported"),
        ("eurobert", {"classifier_pooling": "max"}, "'max'; expected 'bos', 'mean'"),
        ("eurobert", {"head_dim": 64}, "head_dim is 64; expected .* which is 12"),
        ("eurobert", {"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor of"),
        ("eurobert", {"num_key_value_heads": 8}, "heads is 8, expected an integer from 1 to 4"),
        ("eurobert", {"tie_word_embeddings": True}, "tie_word_embeddings is True, but EuroBERT's"),
        ("eurobert", {"rope_parameters": {"rope_type": "yarn"}}, "only the rope_type 'default'"),
        ("eurobert", {"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta is '1e4'; expected a"),
        ("ultrabert", {"attention_bias": True}, "attention_bias is True; only False is supported"),
        ("ultrabert", {"classifier_pooling": "max"}, "'max'; expected 'cls' or 'mean'"),
        ("ultrabert", {"head_dim": 64}, "head_dim is 64; expected .* which is 16"),
        ("ultrabert", {"num_key_value_heads": 2}, "num_key_value_heads is 2, expected a divisor"),
        ("ultrabert", {"tie_word_embeddings": True}, "embeddings is True, but UltraBERT's masked"),
        ("ultrabert", {"layer_types": ["full_attention"]}, "layer_types has 1 layers, expected"),
        ("ultrabert", {"sliding_window": 0}, "sliding_window is 0, expected"),
        ("ultrabert", {"prediction_head_size": 0}, "prediction_head_size is 0, expected"),
    ],
)
def test_unsupported_config_error_names_the_field(tmp_path, name, fields, message):
    family = FAMILIES[name]
    family.torch_model(family.small, "Model").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    data = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in data.items() if value is not ...}))
    with pytest.raises(UserError, match="config.json: .*" + message):
        read_config(file)
