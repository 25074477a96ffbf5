"""Tests loading, encoding and saving tokenizers, and the errors for damaged files."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.text.load_tokenizer import load_tokenizer

_WORDS = "the un ##aff ##able dog ##s runs . , cafe"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split()]
MERGES = ["Ġ t", "h e", "Ġt he"]


def write_wordpiece(folder: Path, tokens=TOKENS) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return path


def write_bpe(folder: Path, table: dict[str, int] | None = None, merges=MERGES) -> Path:
    folder.mkdir(exist_ok=True)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *"Ġthedogs", "Ġt", "he", "Ġthe", "<mask>"]
    table = table or {piece: i for i, piece in enumerate(tokens)}
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
    (folder / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
    return folder / "vocab.json"


def test_wordpiece_matches_the_longest_token_first(tmp_path):
    vocabulary = load_tokenizer(write_wordpiece(tmp_path))
    ids = vocabulary.encode("The unaffable dogs, the [MASK] runs xyz.")
    tokens = " ".join(vocabulary.id_to_token(i) for i in ids)
    assert tokens == "the un ##aff ##able dog ##s , the [MASK] runs [UNK] ."
    assert vocabulary.kind == "wordpiece" and vocabulary.vocab_size == len(vocabulary) == len(
        TOKENS
    )
    special = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id)
    assert (*special, vocabulary.mask_id) == (0, 1, 2, 3, 4)
    assert vocabulary.special_ids == {0, 1, 2, 3, 4}
    assert (
        vocabulary.token_to_id("##able") == 8 and "##able" in vocabulary and "xyz" not in vocabulary
    )
    assert vocabulary.decode(ids[:6]) == "the unaffable dogs"


def test_word_starts_of_each_kind(tmp_path):
    wordpiece = load_tokenizer(write_wordpiece(tmp_path / "a"))
    assert [TOKENS[i] for i in np.flatnonzero(~wordpiece.word_starts)] == ["##aff", "##able", "##s"]
    bpe = load_tokenizer(write_bpe(tmp_path / "b"))
    starts = {bpe.id_to_token(int(i)) for i in np.flatnonzero(bpe.word_starts)}
    assert starts == {"<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", "Ġt", "Ġthe"}
    assert bpe.word_starts.dtype == bool


def test_offsets_are_characters_of_the_text_given(tmp_path):
    vocabulary = load_tokenizer(write_wordpiece(tmp_path))
    text = "  UNAFFABLE\tCafé 😀 dogs"
    (encoding,) = vocabulary.encode_batch([text])
    assert [text[a:b] for a, b in encoding.offsets] == [
        *("UN", "AFF", "ABLE", "Café", "😀", "dog", "s")
    ]
    assert encoding.ids == vocabulary.encode(text)


def test_encode_ids_equals_encode_batch(tmp_path):
    for path in (write_wordpiece(tmp_path / "a"), write_bpe(tmp_path / "b")):
        vocabulary = load_tokenizer(path)
        texts = ["the dogs", "", "the the [MASK] <mask> the"]
        for fast, full in zip(
            vocabulary.encode_ids(texts), vocabulary.encode_batch(texts), strict=True
        ):
            assert fast.dtype == np.int32 and fast.tolist() == full.ids


def test_bpe_applies_merges_and_mask_includes_its_space(tmp_path):
    vocabulary = load_tokenizer(write_bpe(tmp_path))
    ids = vocabulary.encode("dog the <mask>")
    assert [vocabulary.id_to_token(i) for i in ids] == ["d", "o", "g", "Ġthe", "<mask>"]
    assert vocabulary.decode(ids[:4]) == "dog the"


@pytest.mark.parametrize("write", [write_wordpiece, write_bpe])
def test_saved_folder_loads_as_the_same_tokenizer(tmp_path, write):
    vocabulary = load_tokenizer(write(tmp_path / "in"))
    vocabulary.save(tmp_path / "out")
    again = load_tokenizer(tmp_path / "out")
    assert again.fingerprint == vocabulary.fingerprint
    assert again.encode("the dogs") == vocabulary.encode("the dogs")
    # Without this project's file the folder looks like one of another tool.
    (tmp_path / "out" / "vocabulary.json").unlink()
    assert load_tokenizer(tmp_path / "out").fingerprint == vocabulary.fingerprint
    (tmp_path / "out" / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path / "out").fingerprint == vocabulary.fingerprint
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert copy.fingerprint == vocabulary.fingerprint and copy.encode("dogs") == again.encode(
        "dogs"
    )


def test_case_is_inferred_or_read_from_the_config(tmp_path):
    uncased = load_tokenizer(write_wordpiece(tmp_path / "uncased"))
    assert uncased.encode("THE") == [5]
    cased = load_tokenizer(write_wordpiece(tmp_path / "cased", [*TOKENS, "Paris"]))
    assert cased.encode("THE") == [cased.unk_id] and cased.encode("Paris") == [15]
    path = write_wordpiece(tmp_path / "lowercase")
    (path.parent / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    lowercase = load_tokenizer(path)
    assert lowercase.encode("THE") == [lowercase.unk_id]
    assert len({uncased.fingerprint, cased.fingerprint, lowercase.fingerprint}) == 3


def test_fingerprint_depends_on_the_order_of_tokens(tmp_path):
    one = load_tokenizer(write_wordpiece(tmp_path / "a"))
    other = load_tokenizer(write_wordpiece(tmp_path / "b", [*TOKENS[:-2], "cafe", ","]))
    assert one.fingerprint != other.fingerprint


def test_fingerprint_of_a_published_vocabulary_is_stable(shared):
    # Prepared corpora and checkpoints contain this fingerprint; changing it breaks them.
    vocabulary = load_tokenizer(shared / "vocab/bert-base-uncased/vocab.txt")
    assert vocabulary.fingerprint.startswith("c9866afa99b6")


def test_out_of_range_and_unknown_tokens(tmp_path):
    vocabulary = load_tokenizer(write_wordpiece(tmp_path))
    for bad in (-1, vocabulary.vocab_size):
        with pytest.raises(IndexError):
            vocabulary.id_to_token(bad)
    with pytest.raises(KeyError):
        vocabulary.token_to_id("nowhere")


@pytest.mark.parametrize(
    "tokens, message",
    [
        ([p for p in TOKENS if p != "[MASK]"], r"no \[MASK\] among its 14 tokens.*tokenizer train"),
        ([*TOKENS, "dog"], r"duplicate token 'dog' on lines 10 and 16"),
        ([*TOKENS[:6], "", *TOKENS[6:]], r"line 7: empty"),
        ([""], r"empty"),
    ],
)
def test_invalid_vocab_txt_raises(tmp_path, tokens, message):
    path = write_wordpiece(tmp_path, tokens)
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"[PAD]\n\xe9\n")
    with pytest.raises(UserError, match=r"vocab.txt: not utf-8 text at byte 6: 0xe9"):
        load_tokenizer(path)


def test_invalid_bpe_files_raise(tmp_path):
    path = write_bpe(tmp_path / "a", merges=["Ġ t", "h e x"])
    with pytest.raises(UserError, match=r"merges.txt, line 3: expected two tokens"):
        load_tokenizer(path)
    path = write_bpe(tmp_path / "b", merges=["q z"])
    with pytest.raises(UserError, match=r"merges.txt does not match"):
        load_tokenizer(path)
    path = write_bpe(tmp_path / "c")
    (path.parent / "merges.txt").unlink()
    with pytest.raises(UserError, match=r"no merges.txt in the same folder"):
        load_tokenizer(path)
    path = write_bpe(tmp_path / "d")
    path.write_text(path.read_text().replace('"<mask>": 15', '"<mask>": 15, "he": 16'))
    with pytest.raises(UserError, match=r"'he' occurs twice"):
        load_tokenizer(path)
    path = write_bpe(tmp_path / "e")
    path.write_text(path.read_text().replace('"<mask>": 15', '"<mask>": 99'))
    with pytest.raises(UserError, match=r"the id of '<mask>' is 99, expected 15"):
        load_tokenizer(path)


def test_invalid_tokenizer_json_raises(tmp_path):
    load_tokenizer(write_wordpiece(tmp_path / "in")).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[: len(whole) // 2], encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer.json: not valid JSON at line"):
        load_tokenizer(tmp_path)
    path.write_text('{"model": 3}')
    with pytest.raises(UserError, match=r"not a tokenizer.json"):
        load_tokenizer(tmp_path)
    path.write_text(whole.replace('"dog"', '"cat"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"changed after it was saved"):
        load_tokenizer(tmp_path)


def change_json(path: Path, **fields) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_hostile_tokenizer_json_is_refused_or_fails_in_one_error(tmp_path):
    load_tokenizer(write_wordpiece(tmp_path / "vocab")).save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    (tmp_path / "saved" / "vocabulary.json").unlink()
    good = json.loads(file.read_text())
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    model = {**good["model"], "vocab": {**good["model"]["vocab"], "the": 2**31}}
    for fields, message in [
        ({"model": model}, "the id of 'the' is 2147483648"),
        ({"added_tokens": [{**good["added_tokens"][0], "id": 2**31}]}, "id of '.PAD.' is 2147"),
        ({"normalizer": {"type": "Sequence", "normalizers": [replace] * 40}}, "times as long"),
        ({"model": {"type": "WordPiece", "vocab": 5}}, "not a tokenizer.json that"),
    ]:
        file.write_text(json.dumps(good | fields))
        with pytest.raises(UserError, match=message):
            load_tokenizer(file)
    # A pattern that takes exponential time: the library panics while it encodes.
    slow = {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "b"}
    file.write_text(json.dumps(good | {"normalizer": slow}))
    tokenizer = load_tokenizer(file)
    with pytest.raises(UserError, match="the library `tokenizers` fails with its rules"):
        tokenizer.encode("a" * 60 + "!")


def test_wrong_types_in_files_of_a_tokenizer_are_named(tmp_path):
    load_tokenizer(write_wordpiece(tmp_path / "vocab")).save(tmp_path / "saved")
    info = tmp_path / "saved" / "vocabulary.json"
    for field, value in [("file", ["x"]), ("fingerprint", 7), ("template", ["bert"])]:
        content = info.read_text()
        change_json(info, **{field: value})
        with pytest.raises(UserError, match=rf"vocabulary\.json: .*{field}"):
            load_tokenizer(tmp_path / "saved")
        info.write_text(content)
    vocab = write_wordpiece(tmp_path / "plain")
    for field, value in [("mask_token", ["[MASK]"]), ("do_lower_case", "yes")]:
        (vocab.parent / "tokenizer_config.json").write_text(json.dumps({field: value}))
        with pytest.raises(UserError, match=rf"tokenizer_config\.json: {field} is"):
            load_tokenizer(vocab)


def test_text_that_is_not_unicode_is_refused(tmp_path):
    tokenizer = load_tokenizer(write_wordpiece(tmp_path))
    for encode in (tokenizer.encode_ids, tokenizer.encode_batch):
        with pytest.raises(UserError, match=r"not valid Unicode: 'the dog \\udfff runs'"):
            encode(["fine", "the dog \udfff runs"])


def test_path_without_tokenizer_raises(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match="contains no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "notes.md").write_text("#")
    with pytest.raises(UserError, match=r"'\.md'"):
        load_tokenizer(tmp_path / "notes.md")
    (tmp_path / "other.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "other.model")


def test_importing_text_imports_no_heavy_library():
    code = (
        "import sys, bert_jax.text.tokenizer, bert_jax.text.learn, bert_jax.text.sentences;"
        "print(sorted({'jax', 'tensorflow', 'tokenizers', 'sentencepiece'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
