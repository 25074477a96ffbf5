"""Compares ELECTRA with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, biases and norms too; batches are padded. "small" has embeddings
narrower than the layers, as ELECTRA-small and every generator; "medium" has none.
"""

import json
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import read_config
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.layers.config import GeluTanh, LearnedPositions
from bert_jax.pretrained.load import load_model
from tests.helpers.folder_parity import (
    check_folder,
    check_head_folder,
    check_head_outputs,
    check_outputs,
    config_fields,
)
from tests.helpers.torch_parity import (
    each_head_of_family,
    each_head_of_second_size,
    randomize_parameters,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = ElectraConfig(
    vocab_size=103,
    embedding_size=20,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=70,
    positions=LearnedPositions(max_position_embeddings=40),
)
MEDIUM = ElectraConfig(
    vocab_size=300,
    embedding_size=128,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    positions=LearnedPositions(max_position_embeddings=64),
    hidden_act=GeluTanh(),  # not that of the masked-LM head, nor of the classifiers
)
both_sizes = pytest.mark.parametrize(
    "config",
    [SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)],
    ids=["small", "medium"],
)


def torch_model(config: ElectraConfig, name: str, **fields: Any) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    hf_config = transformers.ElectraConfig(
        **config_fields(config),
        embedding_size=config.embedding_size,
        **fields,
    )
    model = getattr(transformers, f"Electra{name}")(hf_config)
    return randomize_parameters(model, std=0.05)


@both_sizes
@pytest.mark.parametrize(
    "name, parts",
    [("Model", ()), ("ForPreTraining", ("replaced_token",)), ("ForMaskedLM", ("masked_lm",))],
)
def test_pretrained_models(tmp_path, config, name, parts):
    loaded = check_folder(
        torch_model(config, name),
        tmp_path,
        auto_class=getattr(transformers, f"Auto{'Model' if name == 'Model' else f'Model{name}'}"),
        config=config,
        parts=parts,
    )
    assert ("embedding_projection" in loaded.params["encoder"]) == (config is SMALL)


@each_head_of_family
def test_task_heads_and_their_folders(tmp_path, head_name):
    check_head_folder(torch_model, SMALL, head_name, tmp_path)


@each_head_of_second_size
def test_task_heads_of_another_size(tmp_path, head_name):
    check_head_outputs(torch_model, MEDIUM, head_name, tmp_path)


def test_untied_head_has_its_own_table(tmp_path):
    model = torch_model(SMALL, "ForMaskedLM", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.params["masked_lm"]["decoder"].shape == (103, 20)
    check_outputs(model, loaded)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"embedding_size": ...}, "integer in the field 'embedding_size'; it is absent"),
        ({"embedding_size": 0}, "embedding_size is 0, expected an integer from 1"),
        ({"summary_activation": "tanh"}, "summary_activation is 'tanh'; only 'gelu' is supported"),
        ({"architectures": ["ElectraForCausalLM"]}, "'ElectraForCausalLM'; expected one of"),
    ],
)
def test_unsupported_config_error_names_the_field(tmp_path, fields, message):
    torch_model(SMALL, "Model").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    data = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in data.items() if value is not ...}))
    with pytest.raises(UserError, match=message):
        read_config(file)


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
