"""Compares DeBERTa with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, biases and norms too; batches are padded.
families_test.py has what all families are compared in.
"""

import dataclasses
import functools
import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.model import run_forward
from bert_jax.params import paths
from bert_jax.predict.fill_mask import FillMask
from bert_jax.pretrained.load import load_encoder
from bert_jax.text.load_tokenizer import load_tokenizer
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    check_outputs,
    check_texts,
)
from tests.helpers.torch_parity import (
    HEADS,
    randomize_parameters,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["deberta_v2"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model


# Like the published table, it has more rows than the tokenizer has tokens.
PUBLISHED = dataclasses.replace(SMALL, vocab_size=100)


@functools.cache
def detector() -> Any:
    """Builds the layers of `LMMaskPredictionHead` in DeBERTa's code, which transformers lacks."""
    layers = {
        "LayerNorm": torch.nn.LayerNorm(48, eps=1e-7),
        "dense": torch.nn.Linear(48, 48),
        "classifier": torch.nn.Linear(48, 1),
    }
    return randomize_parameters(torch.nn.ModuleDict(layers), std=0.2)


def detector_logits(states: np.ndarray) -> np.ndarray:
    head, states_BLD = detector(), torch.from_numpy(states.copy())
    with torch.no_grad():
        normed = head["LayerNorm"](states_BLD[:, 0].unsqueeze(-2) + states_BLD)
        return head["classifier"](torch.nn.functional.gelu(head["dense"](normed)))[..., 0].numpy()


def published_folder(folder: Any, **changes: Any) -> Any:
    """Writes a folder with the fields and tensor names of the published DeBERTa-v3 models."""
    model = torch_model(PUBLISHED, "Model")
    model.save_pretrained(folder)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1,
                "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 48,
                "initializer_range": 0.02, "intermediate_size": 70,
                "max_position_embeddings": 40, "relative_attention": True,
                "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
                "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "conv_kernel_size": 0,
                "max_relative_positions": -1, "position_biased_input": False,
                "num_attention_heads": 3, "num_hidden_layers": 2, "type_vocab_size": 0,
                "vocab_size": 100,
            }
            | changes
        )
    )  # fmt: skip
    tensors = load_file(folder / "model.safetensors")
    tensors = {f"deberta.{name}": tensor for name, tensor in tensors.items()}
    tensors |= {f"mask_predictions.{n}": t.numpy() for n, t in detector().state_dict().items()}
    tensors["lm_predictions.lm_head.dense.weight"] = np.ones((48, 48), np.float32)
    tensors["deberta.embeddings.position_embeddings.weight"] = np.ones((40, 48), np.float32)
    save_file(tensors, folder / "model.safetensors")
    return model


def test_published_file_is_an_encoder_that_cannot_fill_masks(tmp_path):
    model = published_folder(tmp_path)
    write_sentencepiece(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.config == PUBLISHED and loaded.missing == ("masked_lm",)
    encoder = dataclasses.replace(loaded, params={"encoder": loaded.params["encoder"]})
    check_outputs(model, encoder)
    with pytest.raises(UserError, match=r"no masked-LM head.*DeBERTa-v3 was pretrained to find"):
        FillMask(loaded)


def test_head_that_detects_replaced_tokens(tmp_path):
    published_folder(tmp_path / "published")
    loaded = load_encoder(tmp_path / "published")
    batch = pretraining_batch(batch_size=2, seq_length=40, max_predictions_per_seq=4, vocab_size=99)
    found, real = run_forward(loaded.params, PUBLISHED, batch), batch["attention_mask"] > 0
    expected = detector_logits(found["hidden_states"][-1])
    assert expected[real].std() > 0.05
    np.testing.assert_allclose(found["replaced_token"][real], expected[real], rtol=0, atol=1e-5)
    export(loaded, tmp_path / "exported")
    tensors = load_file(tmp_path / "exported/model.safetensors")
    for name, tensor in detector().state_dict().items():
        np.testing.assert_array_equal(tensors[f"mask_predictions.{name}"], tensor.numpy())
    reopened = transformers.AutoModel.from_pretrained(tmp_path / "exported")
    assert type(reopened) is transformers.DebertaV2Model
    again = paths.flatten(load_encoder(tmp_path / "exported").params)
    for path, leaf in paths.flatten(loaded.params).items():
        np.testing.assert_array_equal(again[path], leaf, err_msg=path)


def test_detector_reads_the_first_token_of_each_packed_example(tmp_path):
    published_folder(tmp_path)
    params = load_encoder(tmp_path).params
    ids = np.random.default_rng(0).integers(5, 99, (1, 20)).astype(np.int32)
    together = {
        "input_ids": ids,
        "token_type_ids": ids * 0,
        "attention_mask": ids * 0 + 1,
        "position_ids": np.concatenate([np.arange(12), np.arange(8)])[None].astype(np.int32),
        "packing_ids": np.repeat([1, 2], [12, 8])[None].astype(np.int32),
    }
    found = run_forward(params, PUBLISHED, together)
    states = found["hidden_states"][-1]
    expected = [detector_logits(part) for part in (states[:, :12], states[:, 12:])]
    np.testing.assert_allclose(found["replaced_token"], np.hstack(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "deberta"}, r"model_type is 'deberta' \(DeBERTa v1 has another attention"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3; only 0 .* DeBERTa-v2-xlarge's convol"),
        ({"share_att_key": False}, "share_att_key is False; only True is supported"),
        ({"pos_att_type": ["c2p"]}, r"pos_att_type is \['c2p'\]; only 'p2c\|c2p' is supported"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none'; only 'layer_norm' is supported"),
        ({"position_biased_input": True}, "position_biased_input is True; only False is"),
        ({"position_buckets": -1}, "position_buckets is -1"),
        ({"type_vocab_size": 2}, "type_vocab_size is 2; only 0 is supported"),
    ],
)
def test_unsupported_variants_are_refused(tmp_path, changes, message):
    published_folder(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        load_encoder(tmp_path)


def test_absent_fields_have_the_defaults_of_hugging_face(tmp_path):
    published_folder(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    del fields["relative_attention"]
    file.write_text(json.dumps(fields))
    with pytest.raises(UserError, match="relative_attention is absent, which means False"):
        load_encoder(tmp_path)


def write_sentencepiece(folder: Any) -> Any:
    """Trains the `spm.model` of a folder as DeBERTa-v3 has it; [MASK] is not among its pieces."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat and a dog ran over the hill to see The Cat\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "spm"), vocab_size=60, model_type="unigram",
        hard_vocab_limit=False, pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]",
        bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", minloglevel=2,
    )  # fmt: skip
    text.unlink()
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    return sentencepiece.SentencePieceProcessor(str(folder / "spm.model"))


def test_sentencepiece_folder_has_the_mask_after_all_tokens(tmp_path):
    processor = write_sentencepiece(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    pieces = processor.get_piece_size()
    special_ids = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id)
    assert special_ids == (0, 1, 2, 3) and tokenizer.mask_id == pieces
    assert tokenizer.vocab_size == pieces + 1
    first, second = processor.encode("The cat sat"), processor.encode("on a hill")
    assert tokenizer.encode("The cat [MASK] sat")[-1] == first[-1]
    built = tokenizer.build_inputs_with_special_tokens(first, second)
    assert built.tolist() == [1, *first, 2, *second, 2]
    tokenizer.save(tmp_path / "saved")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    texts = ("The cat [MASK] on the mat", "a dog ran")
    built = tokenizer.build_inputs_with_special_tokens(*map(tokenizer.encode, texts))
    assert exported(*texts)["input_ids"] == built.tolist() and pieces in built


def test_tokenizer_of_hugging_face_and_texts(tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz."
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁", "▁the", "▁cat", *letters]
    vocab = [(t, -len(t) / 10 if i > 3 else 0.0) for i, t in enumerate(tokens)]
    tokenizer = transformers.DebertaV2Tokenizer(vocab=vocab, unk_id=3)
    tokenizer.save_pretrained(tmp_path)
    config = DebertaV2Config(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=30, position_buckets=8,
    )  # fmt: skip
    model = torch_model(config, "Model")
    model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.config == config and loaded.tokenizer is not None
    assert loaded.tokenizer.mask_id == len(tokens) == tokenizer.mask_token_id
    texts = ["the [MASK] sat.", "a cat on the mat and the dog."]
    check_texts(loaded, tokenizer, texts)


def test_prefix_of_the_bare_encoder_is_not_that_of_the_head(tmp_path):
    _, name, fields = HEADS["sequence"]
    torch_model(SMALL, f"For{name}", **fields).save_pretrained(tmp_path)
    flat = paths.flatten(load_encoder(tmp_path).params)
    assert flat["classifier/dense/kernel"].shape == (48, 48)
    assert flat["classifier/out_proj/kernel"].shape == (48, 3)
