"""Covers bert_jax/text/input_template.py and where tokenizers save and load their template."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.text.input_template import BertTemplate, InputTemplate, RobertaTemplate
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import TOKENIZER_INFO_FILE


@pytest.mark.parametrize(
    ("template", "ids", "types"),
    [
        (BertTemplate(), [1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1]),
        (RobertaTemplate(), [1, 7, 8, 2, 2, 9, 2], [0] * 7),
    ],
)
def test_pairs_get_special_tokens(
    template: InputTemplate, ids: list[int], types: list[int]
) -> None:
    pair = template.build_inputs(1, 2, [7, 8], np.array([9], np.uint16))
    assert pair.tolist() == ids and pair.dtype == np.int32
    assert template.token_type_ids(2, 1).tolist() == types
    assert len(pair) == 3 + template.num_pair_special_tokens
    assert pair[template.second_start(2)] == 9
    single = template.build_inputs(1, 2, [7, 8], None)
    assert single.tolist() == [1, 7, 8, 2]
    assert template.token_type_ids(2, None).tolist() == [0] * 4
    assert len(single) == 2 + template.num_single_special_tokens


def test_published_tokenizers_have_their_template(shared: Path) -> None:
    assert load_tokenizer(shared / "vocab/roberta-base").template == RobertaTemplate()
    assert load_tokenizer(shared / "vocab/bert-base-cased").template == BertTemplate()


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased"])
def test_inputs_equal_transformers(name: str, shared: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    tokenizer = load_tokenizer(shared / "vocab" / name)
    tokenizer.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first, second = "It was the best of times,", " it was the worst of times"
    ids = [tokenizer.encode(text) for text in (first, second)]
    pair = reference(first, second, return_token_type_ids=True)
    assert tokenizer.build_inputs_with_special_tokens(*ids).tolist() == pair["input_ids"]
    types = tokenizer.template.token_type_ids(len(ids[0]), len(ids[1]))
    assert types.tolist() == pair["token_type_ids"]
    single = reference(first)["input_ids"]
    assert tokenizer.build_inputs_with_special_tokens(ids[0]).tolist() == single


def test_saved_folders_keep_their_template(shared: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(shared / "vocab/roberta-base")
    tokenizer.save(tmp_path)
    info_file = tmp_path / TOKENIZER_INFO_FILE
    info = json.loads(info_file.read_text())
    assert info["template"] == "roberta"
    assert load_tokenizer(tmp_path).template == RobertaTemplate()

    # Folders of versions that had BERT's template only do not name it.
    del info["template"]
    info_file.write_text(json.dumps(info))
    assert load_tokenizer(tmp_path).template == BertTemplate()
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint

    info_file.write_text(json.dumps(info | {"template": "xlnet"}))
    with pytest.raises(UserError, match="template is 'xlnet', expected 'bert' or 'roberta'"):
        load_tokenizer(tmp_path)


def test_pickling_keeps_the_template(shared: Path) -> None:
    for path in ("roberta-base", "t5-base"):
        tokenizer = load_tokenizer(shared / "vocab" / path)
        tokenizer.template = RobertaTemplate()
        assert pickle.loads(pickle.dumps(tokenizer)).template == RobertaTemplate()
