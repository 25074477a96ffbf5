"""Compares files of ALBERT with Hugging Face: spiece.model, Google's checkpoints, real weights.

Covers bert_jax/text/sentencepiece.py, bert_jax/models/albert/tf1.py and
huggingface.py.
"""

import importlib.util
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.albert.tf1 import TF1
from bert_jax.models.model import run_forward
from bert_jax.params import paths
from bert_jax.pretrained.initial import load_model_or_tf1
from bert_jax.pretrained.load import load_encoder
from bert_jax.text.files import read_text
from bert_jax.text.load_tokenizer import load_tokenizer
from tests.parity.albert_test import GROUPS, TOLERANCE, params_of, torch_fields, torch_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SPECIAL = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def lines(shared: Path) -> list[str]:
    text = read_text(shared / "text/novels/Burnett_Garden_1911.txt.gz")
    return [line for line in text.splitlines() if line.strip()][:1500]


@pytest.fixture(scope="module")
def spiece(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> Path:
    """Trains a model with the settings and special tokens of ALBERT's."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line.lower() for line in lines]),
        model_writer=model,
        vocab_size=400,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece="<pad>",
        control_symbols=SPECIAL[2:],
        num_threads=1,
        minloglevel=2,
    )
    folder = tmp_path_factory.mktemp("spiece")
    (folder / "spiece.model").write_bytes(model.getvalue())
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}))
    return folder


def test_spiece_model_gives_the_tokens_of_hugging_face(spiece, lines, tmp_path):
    tokenizer = load_tokenizer(spiece)
    reference = transformers.AlbertTokenizer.from_pretrained(spiece)
    assert [tokenizer.id_to_token(i) for i in range(5)] == SPECIAL
    assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (0, 2, 3, 4)
    texts = [*lines, "``Ünïcode''  FULL  CASE ﬁ ①", "the [MASK] sat", "", " ", "漢字 🎉"]
    expected = reference(texts, add_special_tokens=False)["input_ids"]
    assert [ids.tolist() for ids in tokenizer.encode_ids(texts)] == expected
    pair = tokenizer.build_inputs_with_special_tokens(*map(tokenizer.encode, texts[:2]))
    assert pair.tolist() == reference(*texts[:2])["input_ids"]
    tokenizer.save(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again(texts, add_special_tokens=False)["input_ids"] == expected
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


def test_rules_of_albert_need_albert_in_the_folder(spiece, tmp_path):
    shutil.copy(spiece / "spiece.model", tmp_path)
    plain = load_tokenizer(tmp_path)
    assert plain.kind == "sentencepiece"
    options = {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False, "keep_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    cased = load_tokenizer(tmp_path)
    text = "Thé ``Cat''"
    assert cased.encode(text) != load_tokenizer(spiece).encode(text)
    reference = transformers.AlbertTokenizer.from_pretrained(tmp_path)
    assert list(cased.encode(text)) == reference(text, add_special_tokens=False)["input_ids"]


def test_damaged_model_is_refused(spiece, tmp_path):
    shutil.copytree(spiece, tmp_path, dirs_exist_ok=True)
    (tmp_path / "spiece.model").write_bytes(b"\x0a\xff\xff\xff\xff\x0f")
    with pytest.raises(UserError, match=r"spiece\.model: not a SentencePiece model"):
        load_tokenizer(tmp_path)


def google_name(name: str) -> str:
    """Returns the variable of Google's checkpoint for a tensor of `AlbertForPreTraining`."""
    rules = [
        (r"^albert\.", "bert/"),
        (r"encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.",
         r"encoder/transformer/group_\1/inner_group_\2/"),
        (r"attention\.(query|key|value)\.", r"attention_1/self/\1/"),
        (r"attention\.dense\.", "attention_1/output/dense/"),
        (r"attention\.LayerNorm\.", "LayerNorm/"),
        (r"ffn_output\.", "ffn_1/intermediate/output/dense/"),
        (r"ffn\.", "ffn_1/intermediate/dense/"),
        (r"full_layer_layer_norm\.", "LayerNorm_1/"),
        (r"pooler\.", "pooler/dense/"),
        (r"^predictions\.bias$", "cls/predictions/output_bias"),
        (r"^predictions\.", "cls/predictions/transform/"),
        (r"^sop_classifier\.classifier\.", "cls/seq_relationship/output_"),
        (r"output_weight$", "output_weights"),
        (r"(LayerNorm(?:_1)?)[./]weight$", r"\1/gamma"),
        (r"(LayerNorm(?:_1)?)[./]bias$", r"\1/beta"),
        (r"embeddings\.weight$", "embeddings"),
        (r"weight$", "kernel"),
        (r"kernels$", "weights"),
        (r"\.", "/"),
    ]  # fmt: skip
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def google_variables(model: Any) -> dict[str, np.ndarray]:
    """Returns the variables of Google's checkpoint for a model, and two that are no weights."""
    variables = {"global_step": np.array(7), "bert/pooler/dense/kernel/lamb_m": np.zeros((48, 48))}
    for name, tensor in model.state_dict().items():
        if not name.startswith("predictions.decoder"):
            is_dense = tensor.ndim == 2 and "embeddings.weight" not in name
            transposed = is_dense and "sop_classifier" not in name
            variables[google_name(name)] = tensor.numpy().T if transposed else tensor.numpy()
    return variables


def assert_same_parameters(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def test_variables_of_google_are_the_parameters_of_hugging_face():
    model = torch_model(GROUPS, "ForPreTraining")
    found = TF1.from_external(google_variables(model), "variables")
    assert_same_parameters(found, paths.flatten(params_of(model)))


@pytest.mark.slow  # TensorFlow takes ten seconds to import
def test_checkpoints_of_google_are_read(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    model = torch_model(GROUPS, "ForPreTraining")
    variables = google_variables(model)
    tensorflow.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt-best"),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tensorflow.constant(value) for value in variables.values()],
    )
    config = {
        "vocab_size": 103, "embedding_size": 20, "hidden_size": 48, "num_hidden_layers": 3,
        "num_hidden_groups": 2, "inner_group_num": 2, "num_attention_heads": 3,
        "intermediate_size": 70, "max_position_embeddings": 42, "type_vocab_size": 2,
        "hidden_act": "gelu", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
        "net_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1,
    }  # fmt: skip
    (tmp_path / "albert_config.json").write_text(json.dumps(config))
    loaded = load_model_or_tf1(tmp_path)
    assert loaded.config == GROUPS and loaded.config.hidden_act == "gelu_tanh"
    assert loaded.missing == () and loaded.tokenizer is None
    assert_same_parameters(paths.flatten(loaded.params), paths.flatten(params_of(model)))


def reactions_folder() -> Path | None:
    spec = importlib.util.find_spec("rxnmapper")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "models/transformers/albert_heads_8_uspto_all_1310k"
    return folder if folder.is_dir() else None


@pytest.mark.slow
@pytest.mark.skipif(reactions_folder() is None, reason="needs the package rxnmapper 0.4.3")
def test_trained_model_of_chemical_reactions(tmp_path):
    """A published ALBERT with trained weights, in the format of torch before 1.6."""
    folder = reactions_folder()
    assert folder is not None
    loaded = load_encoder(folder)
    assert (loaded.config.word_embedding_size, loaded.config.hidden_size) == (128, 256)
    assert loaded.config.hidden_act == "gelu" and loaded.config.num_hidden_layers == 12
    model = transformers.AlbertForMaskedLM(
        transformers.AlbertConfig.from_pretrained(folder, attn_implementation="eager")
    )
    state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    unused = model.load_state_dict(state, strict=False)
    assert not unused.missing_keys
    random = np.random.default_rng(0)
    shape, lengths = (4, 48), np.array([48, 40, 31, 25])
    mask = (np.arange(48) < lengths[:, None]).astype(np.int32)
    batch: dict[str, Any] = {
        "input_ids": (random.integers(12, 591, shape) * mask).astype(np.int32),
        "token_type_ids": np.zeros(shape, np.int32),
        "attention_mask": mask,
    }
    with torch.no_grad():
        expected = model.eval()(**torch_fields(batch), output_hidden_states=True)
    found = run_forward(loaded.params, loaded.config, batch)
    # Logits of trained weights are large, so that the tolerance is relative to them.
    for a, b in [
        *zip(found["hidden_states"], expected.hidden_states, strict=True),
        (found["masked_lm"], expected.logits),
    ]:
        reference = b.numpy()[mask > 0]
        tolerance = TOLERANCE * max(1.0, np.abs(reference).max())
        np.testing.assert_allclose(a[mask > 0], reference, rtol=0, atol=tolerance)
