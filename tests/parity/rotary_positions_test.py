"""Compares what only one of NomicBERT, GTE and jina-embeddings-v3 has with PyTorch's classes.

families_test.py compares their outputs and folders. transformers writes the tensor names of the
folders that were published first, and exports here have the names of its classes, so both are read.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import read_config
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import check_outputs

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

NOMIC, GTE, JINA = (FAMILIES[name] for name in ("nomic_bert", "gte", "jina_embeddings_v3"))


def test_published_folder_of_nomic_bert_is_read(tmp_path):
    config = NOMIC.small
    model = NOMIC.torch_model(config, "ForMaskedLM")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert "nomic_bert.encoder.layers.0.attn.Wqkv.weight" in tensors
    tensors = {name.removeprefix("nomic_"): tensor for name, tensor in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    published = {
        "activation_function": "swiglu",
        "architectures": ["NomicBertForPreTraining"],
        "attn_pdrop": 0.0,
        "causal": False,
        "layer_norm_epsilon": 1e-12,
        "max_trained_positions": 40,
        "mlp_fc1_bias": False,
        "model_type": "nomic_bert",
        "n_embd": 48,
        "n_head": 3,
        "n_inner": 70,
        "n_layer": 2,
        "n_positions": 8192,
        "prenorm": False,
        "qkv_proj_bias": False,
        "resid_pdrop": 0.0,
        "rotary_emb_base": 10_000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "type_vocab_size": 2,
        "vocab_size": 103,
    }
    (tmp_path / "config.json").write_text(json.dumps(published))
    loaded = load_encoder(tmp_path)
    assert loaded.config == config
    check_outputs(model, loaded)
    for field, value in (("qkv_proj_bias", True), ("rotary_emb_fraction", 0.5)):
        (tmp_path / "config.json").write_text(json.dumps(published | {field: value}))
        with pytest.raises(UserError, match=f"config.json: {field} is {value}; only "):
            load_encoder(tmp_path)


def test_joint_tensors_that_cannot_be_split_are_refused(tmp_path):
    NOMIC.torch_model(NOMIC.small, "Model").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "encoder.layers.1.attn.Wqkv.weight"
    save_file({**tensors, name: tensors[name][:-1]}, file)
    with pytest.raises(UserError, match=r"Wqkv.weight' has shape \[143, 48\]; expected a first"):
        load_encoder(tmp_path)


def test_gte_in_the_format_of_its_own_code_is_refused(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "new", "architectures": ["NewModel"]}))
    with pytest.raises(UserError, match=r"model_type is 'new' .*use a folder of transformers'"):
        read_config(file)


# As the adapters of the five tasks of jina-embeddings-v3. peft calls deprecated functions.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [JINA, NOMIC], ids=["jina", "nomic"])
def test_lora_adapter_of_peft_is_read(tmp_path, family):
    model = family.torch_model(family.small, "Model")
    model.save_pretrained(tmp_path / "base")
    lora = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj"])
    adapted = peft.get_peft_model(model, lora)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = load_encoder(tmp_path / "adapter", base=tmp_path / "base")
    base = load_encoder(tmp_path / "base")
    query = [m.params["encoder"]["layers"]["0"]["attention"]["query"] for m in (loaded, base)]
    assert np.abs(query[0]["kernel"] - query[1]["kernel"]).max() > 0.01
    check_outputs(adapted.merge_and_unload().eval(), loaded, pad_token_id=family.pad_token_id)
