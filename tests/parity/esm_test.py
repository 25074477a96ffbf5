"""Compares ESM-2 with Hugging Face's PyTorch classes: contacts, old files, its tokenizer.

families_test.py compares its outputs and folders. Covers bert_jax/text/protein.py, too.
"""

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import QuestionAnsweringHead
from bert_jax.models.model import build_network
from bert_jax.predict.fill_mask import FillMask
from bert_jax.pretrained.load import load_encoder
from bert_jax.text.learn import train_tokenizer
from bert_jax.text.load_tokenizer import load_tokenizer
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    check_exported_texts,
    check_outputs,
    check_states,
    check_texts,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["esm"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model
PROTEINS = ["MKTVRQERLKSIVRILERSKEPVSGAQLAEELSVSRQ", "GLSDGEWQQVLNVWGK<mask>EADIAGHG<mask>QEVLIRLF"]


def test_contacts(tmp_path):
    model = torch_model(SMALL, "ForMaskedLM")
    with torch.no_grad():  # small weights would give all pairs nearly the same probability
        model.esm.contact_head.regression.weight.mul_(1000.0)
    model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    ids = np.random.default_rng(0).integers(5, 103, (3, 20)).astype(np.int32)
    mask = np.ones_like(ids)
    for row, length in enumerate((20, 13, 9)):
        ids[row, length - 1], ids[row, length:], mask[row, length:] = 2, 1, 0
    with torch.no_grad():
        expected = model.predict_contacts(torch.tensor(ids).long(), torch.tensor(mask).long())
    encoder: Any = build_network(SMALL, ("masked_lm",)).merge(loaded.params).encoder
    found = encoder.predict_contacts(ids, mask)
    assert found.shape == (3, 18, 18) and expected.std() > 0.01
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


def test_model_without_token_dropout(tmp_path):
    config = dataclasses.replace(SMALL, token_dropout=False)
    model = torch_model(config, "ForMaskedLM")
    model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.config == config
    check_outputs(model, loaded, pad_token_id=1)


def test_names_and_angles_of_the_published_files_are_read(tmp_path):
    model = torch_model(SMALL, "ForMaskedLM")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    frequencies = next(name for name in tensors if name.endswith("inv_freq"))
    # Rounded to 16 bits, as the models were trained.
    rounded = tensors.pop(frequencies).astype(np.float16).astype(np.float32)
    for layer in range(2):
        tensors[frequencies.replace("*", str(layer))] = rounded
    tensors["esm.embeddings.position_embeddings.weight"] = np.zeros((40, 48), np.float32)
    tensors["esm.embeddings.position_ids"] = np.arange(40)[None]
    save_file(tensors, file, metadata={"format": "pt"})
    loaded = load_encoder(tmp_path)
    found = loaded.params["encoder"]["untrained"]["inverse_frequencies"]
    np.testing.assert_array_equal(found, rounded)
    assert np.any(found != model.esm.rotary_embeddings.inv_freq.numpy())
    model.esm.rotary_embeddings.inv_freq.copy_(torch.tensor(rounded))
    check_outputs(model, loaded, pad_token_id=1)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """Writes the tokenizer of ESM-2."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer, stats = train_tokenizer(PROTEINS, TokenizerTrainingConfig(kind="amino_acids"))
    assert tokenizer.vocab_size == 33 and stats.characters == sum(map(len, PROTEINS))
    tokenizer.save(folder)
    return folder


def test_tokens_are_those_of_hugging_face(vocabulary):
    reference = transformers.AutoTokenizer.from_pretrained(vocabulary)
    assert type(reference) is transformers.EsmTokenizer and len(reference) == 33
    published = transformers.models.esm.configuration_esm.get_default_vocab_list()
    assert list(reference.get_vocab()) == list(published)
    tokenizer = load_tokenizer(vocabulary / "vocab.txt")
    assert load_tokenizer(vocabulary).fingerprint == tokenizer.fingerprint
    generator = random.Random(0)
    pieces = [*published[4:], "<mask>", "<cls>", " ", "\n", "j", "xy", "J", "1", "é", "<", "]", "^"]
    texts = ["".join(generator.choices(pieces, k=generator.randint(0, 40))) for _ in range(400)]
    expected = reference(texts, add_special_tokens=False)["input_ids"]
    assert [ids.tolist() for ids in tokenizer.encode_ids(texts)] == expected
    for encoding, text in zip(tokenizer.encode_batch(PROTEINS), PROTEINS, strict=True):
        assert len(encoding.ids) == len(encoding.offsets) == len(set(encoding.word_ids))
        assert "".join(text[slice(*span)] for span in encoding.offsets) == text
    assert tokenizer.word_starts.all()
    assert tokenizer.decode(tokenizer.encode(PROTEINS[1])) == PROTEINS[1]


def test_texts_and_their_export(tmp_path, vocabulary):
    config = dataclasses.replace(SMALL, vocab_size=33, mask_token_id=32)
    model = torch_model(config, "Model")
    reference = transformers.AutoTokenizer.from_pretrained(vocabulary)
    for folder in (model, reference):
        folder.save_pretrained(tmp_path / "torch")
    loaded = load_encoder(tmp_path / "torch")
    check_states(model, loaded, check_texts(loaded, reference, PROTEINS))
    export(loaded, tmp_path / "exported")
    check_exported_texts(model, reference, tmp_path / "exported", PROTEINS)


def test_masks_are_filled_as_by_hugging_face(tmp_path, vocabulary):
    config = dataclasses.replace(SMALL, vocab_size=33, mask_token_id=32)
    model = torch_model(config, "ForMaskedLM")
    reference = transformers.AutoTokenizer.from_pretrained(vocabulary)
    for folder in (model, reference):
        folder.save_pretrained(tmp_path)
    inputs = reference(PROTEINS[1:], return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0]
    positions = (inputs["input_ids"][0] == 32).nonzero()[:, 0]
    expected = [reference.convert_ids_to_tokens(int(logits[p].argmax())) for p in positions]
    filled = FillMask(load_encoder(tmp_path), top_k=1)(PROTEINS[1])
    assert [mask["candidates"][0]["token"] for mask in filled["masks"]] == expected


def test_export_without_a_class_is_refused(tmp_path):
    torch_model(SMALL, "Model").save_pretrained(tmp_path / "torch")
    with_head = dataclasses.replace(load_encoder(tmp_path / "torch"), head=QuestionAnsweringHead())
    with pytest.raises(UserError, match="transformers has no class EsmForQuestionAnswering"):
        export(with_head, tmp_path / "exported")
