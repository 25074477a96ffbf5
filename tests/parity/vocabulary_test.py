"""Compares models with changed vocabularies with transformers: ids, rows and logits.

Covers bert_jax/apps/vocabulary/change.py for every family, with and without tied heads.
"""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.vocabulary.change import VOCABULARY_TABLES
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.model import build_network
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.text.learn import train_tokenizer
from bert_jax.text.tokenizer import Tokenizer
from tests.helpers.families import FAMILIES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = "the old man mends a net by the sea, and the ships of the harbor are counted at nine. "
WORDS = ("kubernetes", "shipmaster", "harbormaster", "netmender")
KINDS = {"albert": "unigram", "deberta_v2": "unigram", "modernbert": "bpe"}
SENTENCES = ("The harbormaster counts kubernetes, and a netmender's net.", "shipmasters at sea")


@cache
def trained(kind: Any, extra: str = "", vocab_size: int = 300) -> Tokenizer:
    texts = [TEXT + extra + " ".join("abcdefghijklmnopqrstuvwxyz")] * 2
    sizes = {"wordpiece": 110, "unigram": 80, "bpe": vocab_size}
    return train_tokenizer(texts, TokenizerTrainingConfig(kind=kind, vocab_size=sizes[kind]))[0]


def kind_of(name: str) -> str:
    return KINDS.get(name, "bpe" if FAMILIES[name].pad_token_id == 1 else "wordpiece")


def write_torch_folder(folder: Path, name: str, **fields: Any) -> Any:
    """Writes a folder of transformers with a tokenizer, and returns its model."""
    family, tokenizer = FAMILIES[name], trained(kind_of(name))
    config = dataclasses.replace(family.small, vocab_size=tokenizer.vocab_size)
    model = family.torch_model(config, "ForMaskedLM", **fields)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def logits_of(model: LoadedModel, batch: dict[str, np.ndarray]) -> np.ndarray:
    parts = ("encoder", *masked_lm_parts(model.config))
    network = build_network(model.config, parts[1:])

    def logits(params: Any) -> jax.Array:
        module = network.merge(params)
        return module.masked_lm_logits(module.encode(batch).last_hidden_state)

    return np.asarray(jax.jit(logits)({part: model.params[part] for part in parts}))


def check_opens_in_transformers(folder: Path) -> Any:
    """Checks ids and logits of the folder, and returns transformers' model."""
    model = load_encoder(folder)
    assert model.tokenizer is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == model.tokenizer.vocab_size == model.config.vocab_size
    torch_model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    for text in SENTENCES:
        batch = model.tokenize([text])
        inputs = tokenizer([text], return_tensors="pt")
        np.testing.assert_array_equal(inputs["input_ids"].numpy(), batch["input_ids"])
        with torch.no_grad():
            expected = torch_model(input_ids=inputs["input_ids"]).logits.numpy()
        np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-5)
    return torch_model


@pytest.mark.parametrize(
    ("name", "is_tied"),
    [
        pytest.param(
            name, is_tied, marks=() if name in ("electra", "roberta") else pytest.mark.slow
        )
        for name in FAMILIES
        for is_tied in (True, False)
        if not (name in ("albert", "bigbird", "longformer", "mpnet") and not is_tied)
        and not (name in ("eurobert", "ultrabert") and is_tied)
    ],
)
def test_added_words_of_all_families(tmp_path, capsys, name, is_tied):
    old_model = write_torch_folder(tmp_path / "old", name, tie_word_embeddings=is_tied)
    old = load_encoder(tmp_path / "old")
    tables = [
        path
        for path, leaf in paths.flatten(old.params).items()
        if old.config.vocab_size in leaf.shape
    ]
    assert set(tables) <= set(VOCABULARY_TABLES) and ("masked_lm/decoder" in tables) != is_tied
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    words = (
        f"vocabulary add {tmp_path / 'old'} {tmp_path / 'words.txt'} --output {tmp_path / 'new'}"
    )
    assert main(words.split()) == 0
    new_model = check_opens_in_transformers(tmp_path / "new")
    # The mean of the rows that transformers has for the tokens of the word before.
    before = transformers.AutoTokenizer.from_pretrained(tmp_path / "old")
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    for get in ("get_input_embeddings", "get_output_embeddings"):
        old_layer, new_layer = getattr(old_model, get)(), getattr(new_model, get)()
        for attribute in ("weight", "bias"):
            table = getattr(old_layer, attribute, None)
            if table is None:
                continue
            table, new_table = table.detach(), getattr(new_layer, attribute).detach()
            assert torch.equal(new_table[: len(table)], table)
            for word in WORDS:
                old_ids = before.encode(f" {word}", add_special_tokens=False)
                (new_id,) = after.encode(f" {word}", add_special_tokens=False)
                torch.testing.assert_close(new_table[new_id], table[old_ids].mean(0))


@pytest.mark.parametrize("name", ["electra", "roberta"])
def test_replaced_tokenizers_open_in_transformers(tmp_path, name):
    write_torch_folder(tmp_path / "old", name)
    extra = "kubernetes harbormaster netmender shipmasters " * 3
    trained(kind_of(name), extra, 320).save(tmp_path / "tokenizer")
    words = (
        f"vocabulary replace {tmp_path / 'old'} --tokenizer {tmp_path / 'tokenizer'} "
        f"--output {tmp_path / 'new'}"
    )
    assert main(words.split()) == 0
    check_opens_in_transformers(tmp_path / "new")
