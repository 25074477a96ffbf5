"""Compares EuroBERT with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, norms and biases too; batches are padded. Only real tokens are compared.
families_test.py has what all families are compared in.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import (
    QuestionAnsweringHead,
)
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import check_head_outputs

transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["eurobert"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model

POOLINGS = {"late": "late", "mean": "mean", "bos": "first_token"}


@pytest.mark.parametrize(
    ("head_name", "pooling"), [("regression", "mean"), ("sequence", "bos"), ("token", "late")]
)
def test_task_heads_of_another_size(tmp_path, head_name, pooling):
    config = dataclasses.replace(FAMILY.medium, classifier_pooling=POOLINGS[pooling])
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
    loaded = load_encoder(tmp_path)
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
    expected = dataclasses.replace(SMALL, rope_theta=30_000.0, classifier_pooling="mean")
    assert load_encoder(tmp_path).config == expected


def test_export_without_a_class_is_refused(tmp_path):
    torch_model(SMALL, "Model").save_pretrained(tmp_path / "torch")
    loaded = load_encoder(tmp_path / "torch")
    with_head = dataclasses.replace(loaded, head=QuestionAnsweringHead())
    with pytest.raises(UserError, match="transformers has no class EuroBertForQuestionAnswering"):
        export(with_head, tmp_path / "exported")
