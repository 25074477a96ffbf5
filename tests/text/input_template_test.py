"""Covers bert_jax/text/input_template.py, tokenizer_json.py, and templates in saved folders."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.text.input_template import BertTemplate, InputTemplate, RobertaTemplate, T5Template
from bert_jax.text.learn import BERT_TOKENS, ROBERTA_TOKENS
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import TOKENIZER_INFO_FILE, SpecialTokens, Tokenizer
from bert_jax.text.tokenizer_json import declared_template


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


def write_bpe(folder: Path, special_tokens: SpecialTokens) -> Path:
    """Writes a byte-level BPE with two merges as vocab.json and merges.txt."""
    merges = ["Ġ t", "h e"]
    tokens = [*special_tokens.as_dict().values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [merge.replace(" ", "") for merge in merges]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", "utf-8")
    return folder


def assert_pairs_equal_transformers(tokenizer: Tokenizer, folder: Path) -> None:
    """Compares one text and a pair with what AutoTokenizer makes of them for a folder."""
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    first, second = "It was the best of times,", " it was the worst of times"
    ids = [tokenizer.encode(text) for text in (first, second)]
    pair = reference(first, second, return_token_type_ids=True)
    assert tokenizer.build_inputs_with_special_tokens(*ids).tolist() == pair["input_ids"]
    types = tokenizer.template.token_type_ids(len(ids[0]), len(ids[1]))
    assert types.tolist() == pair["token_type_ids"]
    single = reference(first)["input_ids"]
    assert tokenizer.build_inputs_with_special_tokens(ids[0]).tolist() == single


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased"])
def test_inputs_equal_transformers(name: str, shared: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(shared / "vocab" / name)
    tokenizer.save(tmp_path)
    assert_pairs_equal_transformers(tokenizer, tmp_path)


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.json"])
def test_roberta_tokenizer_with_tokens_of_bert(file: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    write_bpe(tmp_path, BERT_TOKENS)
    roles = {f"{role}_token": token for role, token in BERT_TOKENS.as_dict().items()}
    reference = transformers.RobertaTokenizerFast(
        vocab=str(tmp_path / "vocab.json"),
        merges=str(tmp_path / "merges.txt"),
        bos_token=BERT_TOKENS.cls,
        eos_token=BERT_TOKENS.sep,
        **roles,
    )
    if file == "tokenizer.json":
        reference.save_pretrained(tmp_path)
    else:  # as saved by the first releases of transformers
        config = {"tokenizer_class": "RobertaTokenizer", **roles}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.template == RobertaTemplate()
    pair = tokenizer.build_inputs_with_special_tokens(*map(tokenizer.encode, ("One.", " Two.")))
    assert pair.tolist() == reference("One.", " Two.")["input_ids"]


@pytest.mark.parametrize(
    ("single", "pair", "expected"),
    [
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", BertTemplate()),
        ("<s> $A </s>", "<s> $A </s> </s> $B </s>", RobertaTemplate()),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", None),
        ("$A </s>", "$A </s> $B </s>", T5Template()),
        ("$A </s>", "$A </s> </s> $B </s>", None),
    ],
)
def test_template_of_a_post_processor(
    single: str, pair: str, expected: InputTemplate | None
) -> None:
    backend = BackendTokenizer(models.BPE())
    words = ("<s>", "</s>", "[CLS]", "[SEP]")
    template = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(word, n) for n, word in enumerate(words)]
    )
    byte_level = processors.ByteLevel(trim_offsets=True)
    for post_processor in (template, processors.Sequence([byte_level, template])):
        backend.post_processor = post_processor
        assert declared_template(json.loads(backend.to_str())["post_processor"]) == expected
    assert declared_template(None) is None


def test_saved_folders_keep_their_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_bpe(tmp_path, ROBERTA_TOKENS))
    tokenizer.save(tmp_path)
    info_file = tmp_path / TOKENIZER_INFO_FILE
    info = json.loads(info_file.read_text())
    assert info["template"] == "roberta"
    assert load_tokenizer(tmp_path).template == RobertaTemplate()

    # Folders of versions that had BERT's template only do not name it.
    del info["template"]
    info_file.write_text(json.dumps(info))
    old = load_tokenizer(tmp_path)
    assert old.template == BertTemplate()
    assert old.fingerprint == tokenizer.fingerprint
    # An export contains the template that the model was trained with, also for Hugging Face.
    old.save(tmp_path / "exported")
    exported = load_tokenizer(tmp_path / "exported")
    assert_pairs_equal_transformers(exported, tmp_path / "exported")
    text = "The  sea, it was!"
    assert exported.encode_batch([text]) == tokenizer.encode_batch([text])

    info_file.write_text(json.dumps(info | {"template": "xlnet"}))
    with pytest.raises(UserError, match="is 'xlnet', expected 'bert' or 'roberta' or 't5'"):
        load_tokenizer(tmp_path)


def test_pickling_keeps_the_template(shared: Path) -> None:
    for path in ("roberta-base", "t5-base"):
        tokenizer = load_tokenizer(shared / "vocab" / path)
        tokenizer.template = RobertaTemplate()
        assert pickle.loads(pickle.dumps(tokenizer)).template == RobertaTemplate()
