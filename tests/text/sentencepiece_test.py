"""Tests SentencePiece models: reading the file, special tokens, offsets, saving."""

import pickle

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.sentencepiece import parse_model

T5 = "vocab/t5-base/spiece.model"
ALBERT = "vocab/albert-style-30k/30k-clean.model"


@pytest.fixture(scope="module")
def t5(shared):
    return load_tokenizer(shared / T5)


def test_model_file_is_read_like_the_library(shared):
    sentencepiece = pytest.importorskip("sentencepiece")
    for name in (T5, ALBERT):
        data = (shared / name).read_bytes()
        model = parse_model(data)
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        size = processor.get_piece_size()
        assert [piece for piece, _ in model.pieces] == [
            processor.id_to_piece(i) for i in range(size)
        ]
        np.testing.assert_array_equal(
            [score for _, score in model.pieces], [processor.get_score(i) for i in range(size)]
        )
        assert model.unk_id == processor.unk_id() and model.model_type == "unigram"
        assert not model.byte_fallback and model.add_dummy_prefix
        assert model.remove_extra_whitespaces and len(model.precompiled_charsmap) > 100_000


def test_truncated_model_file_raises(shared, tmp_path):
    data = (shared / T5).read_bytes()
    with pytest.raises(ValueError, match="ends inside"):
        parse_model(data[:1001])
    path = tmp_path / "cut.model"
    path.write_bytes(data[: len(data) // 2 + 1])
    with pytest.raises(UserError, match=r"cut.model: not a SentencePiece model"):
        load_tokenizer(path)


def test_model_file_of_xlm_roberta_alone_is_refused(shared, tmp_path):
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes((shared / "vocab/t5-base/spiece.model").read_bytes())
    for source in (path, tmp_path):
        with pytest.raises(UserError, match=r"not those of this file; expected a tokenizer\.json"):
            load_tokenizer(source)


def test_missing_special_tokens_are_appended(t5):
    assert t5.kind == "sentencepiece" and t5.vocab_size == 32002
    assert (t5.pad_id, t5.sep_id, t5.unk_id, t5.cls_id, t5.mask_id) == (0, 1, 2, 32000, 32001)
    assert t5.special_ids == {0, 1, 2, 32000, 32001}


def test_present_special_tokens_are_used(shared):
    vocabulary = load_tokenizer(shared / ALBERT)
    assert vocabulary.vocab_size == 30000 and vocabulary.special_ids == {0, 1, 2, 3, 4}
    assert vocabulary.encode("a [MASK] b")[1] == vocabulary.mask_id == 4


def test_special_tokens_in_text(t5):
    ids = t5.encode("Paris is the [MASK] of France.</s>")
    assert ids.count(t5.mask_id) == 1 and ids[-1] == t5.sep_id
    assert t5.decode(ids) == "Paris is the [MASK] of France. </s>"


def test_offsets_exclude_spaces_and_cover_every_letter(t5):
    text = "  Hello  wörld ﬁne [MASK] 力加 x\u00a0Z "
    (encoding,) = t5.encode_batch([text])
    assert encoding.ids == t5.encode(text)
    spans = [text[a:b] for a, b in encoding.offsets]
    assert all(span == span.strip() for span in spans)
    assert "".join(spans) == "".join(text.split())
    assert spans[:1] == ["Hello"] and "[MASK]" in spans and "ﬁne" in spans


def test_word_starts_have_the_space_mark(t5):
    ids = t5.encode("unaffable dogs")
    starts = [t5.id_to_token(i) for i in ids if t5.word_starts[i]]
    assert starts == ["▁un", "▁dogs"] and len(ids) > 2


def test_saved_folder_loads_as_the_same_tokenizer(t5, tmp_path):
    t5.save(tmp_path)
    again = load_tokenizer(tmp_path)
    copy = pickle.loads(pickle.dumps(t5))
    assert again.fingerprint == copy.fingerprint == t5.fingerprint
    text = "The dogs [MASK] of 1853."
    assert again.encode(text) == copy.encode(text) == t5.encode(text)


def test_tokenizer_json_of_a_model_loads(t5, tmp_path):
    t5.save(tmp_path)
    unigram = load_tokenizer(tmp_path / "tokenizer.json")
    assert unigram.kind == "unigram" and unigram.vocab_size == t5.vocab_size
    assert unigram.fingerprint != t5.fingerprint
    text = "The unaffable dogs [MASK] of 1853."
    assert unigram.encode(text) == t5.encode(text)
    np.testing.assert_array_equal(unigram.word_starts, t5.word_starts)
