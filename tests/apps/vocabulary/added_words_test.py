"""Covers apps/vocabulary/added_words.py: new entries, unchanged texts, words that are refused."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.testing.models import word_tokenizer
from bert_jax.apps.vocabulary.added_words import add_words, read_words
from bert_jax.config.text import TokenizerKind, TokenizerTrainingConfig
from bert_jax.errors import UserError
from bert_jax.text.learn import train_tokenizer
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer

TEXT = (
    "The old man mends a net by the sea, and the harbor lies still. A container ship arrives; its "
    "master greets the fishermen. Containers are stacked on the quay, orchestrated by cranes. "
    "Émile's café opens early: who sits there reads the news and counts the ships. "
)
WORDS = ("kubernetes", "shipmaster", "netmender", "harbormaster", "orchestration", "statefulset")


def trained(kind: TokenizerKind, vocab_size: int = 330) -> Tokenizer:
    texts = [TEXT + "abcdefghijklmnopqrstuvwxyz " + " ".join("abcdefghijklmnopqrstuvwxyz")]
    return train_tokenizer(texts * 3, TokenizerTrainingConfig(kind=kind, vocab_size=vocab_size))[0]


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def old(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param, {"wordpiece": 140, "bpe": 330, "unigram": 90}[request.param])


def lines(*words: str) -> dict[int, str]:
    return dict(enumerate(words, start=1))


def test_each_word_is_one_token_and_old_tokens_keep_their_ids(old, tmp_path):
    new, old_ids = add_words(old, lines(*WORDS), "words.txt")
    assert new.kind == old.kind and new.template == old.template
    old_tokens = [old.id_to_token(i) for i in range(old.vocab_size)]
    assert [new.id_to_token(i) for i in range(old.vocab_size)] == old_tokens
    assert new.vocab_size == old.vocab_size + len(old_ids)
    new_ids = set(range(old.vocab_size, new.vocab_size))
    for word in WORDS:
        (token_id,) = new.encode(f" {word}")
        assert token_id in new_ids
        # Its row will be the mean of exactly the tokens that it had.
        assert old_ids[token_id - old.vocab_size] == old.encode(f" {word}")
        assert new.decode([token_id]).strip() == word
    new.save(tmp_path)
    reloaded = load_tokenizer(tmp_path)
    assert reloaded.fingerprint == new.fingerprint
    assert pickle.loads(pickle.dumps(new)).encode(" netmender") == new.encode(" netmender")


def test_texts_without_the_words_have_the_same_ids(old):
    new, old_ids = add_words(old, lines(*WORDS), "words.txt")
    first = old.vocab_size
    rng = random.Random(0)
    for _ in range(200):
        words = [
            "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(1, 5)))
            for _ in range(rng.randint(1, 8))
        ]
        text = " ".join(words) + rng.choice(["", ".", ", " + TEXT])
        ids = new.encode(text)
        if old.kind == "bpe":  # the first tokens of a word may be joined in other words, too
            ids = [i for n in ids for i in ([n] if n < old.vocab_size else old_ids[n - first])]
        assert ids == old.encode(text)


def test_continuations_casing_and_punctuation_follow_wordpiece():
    old = trained("wordpiece", 140)
    new, _ = add_words(old, lines("Kubernetes"), "words.txt")
    (token_id,) = new.encode("kubernetes")
    assert new.id_to_token(token_id) == "kubernetes"  # the tokenizer is uncased
    tokens = [new.id_to_token(i) for i in new.encode("KUBERNETES's kubernetesy xkubernetes")]
    assert tokens[:5] == ["kubernetes", "'", "s", "kubernetes", "##y"]
    assert "kubernetes" not in tokens[5:]
    encoding = new.encode_batch(["a kubernetesy b"])[0]
    assert encoding.offsets[1:3] == [(2, 12), (12, 13)] and encoding.word_ids == [0, 1, 1, 2]
    assert new.word_starts[token_id]


def test_helper_tokens_of_merges_are_made_of_old_tokens():
    old = trained("bpe")
    new, old_ids = add_words(old, lines("zzyzx", "zzyzxq"), "words.txt")
    for token_id, ids in enumerate(old_ids, start=old.vocab_size):
        assert new.id_to_token(token_id) == "".join(old.id_to_token(i) for i in ids)
    # The second word begins with the first one, so it needs a single merge more.
    assert len(new.encode(" zzyzxq")) == len(new.encode(" zzyzx")) == 1
    assert len(old_ids) == len(old.encode(" zzyzx"))
    assert new.encode("zzyzx") == old.encode("zzyzx")  # no space before it


def test_words_with_repeated_tokens_become_one_token():
    old = trained("bpe")
    words = ("qxqxqx", "xqxqxqxq", "qqqqqqq", "qxqxq")
    new, _ = add_words(old, lines(*words), "words.txt")
    assert all(len(new.encode(f" {word}")) == 1 for word in words)


def test_unigram_entries_of_added_special_tokens_keep_their_ids(tmp_path):
    # As in DeBERTa-v3, [MASK] has an id after the list of the model.
    from tokenizers import Tokenizer as BackendTokenizer

    trained("unigram", 90).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    backend = BackendTokenizer.from_file(str(file))
    backend.add_special_tokens(["<late>"])
    backend.save(str(file))
    (tmp_path / "vocabulary.json").unlink()
    old = load_tokenizer(tmp_path)
    assert old.token_to_id("<late>") == old.vocab_size - 1
    new, _ = add_words(old, lines("netmender"), "words.txt")
    assert new.token_to_id("<late>") == old.vocab_size - 1
    assert new.encode("a netmender <late>")[-2:] == [old.vocab_size, old.vocab_size - 1]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("man", "line 2: 'man' is in the vocabulary already"),
        ("Man", "line 2: 'Man' is in the vocabulary already"),
        ("[MASK]", "line 2: '[MASK]' is a special token"),
        ("<mask>", "line 2: '<mask>' is a special token"),
        ("\u0301", "line 2: '\u0301' is nothing after normalization"),
        ("sea-net", "line 2: 'sea-net' is several words for the tokenizer: sea - net"),
        ("two words", "line 2: 'two words' is several words"),
        ("##ing", "line 2: '##ing' is several words for the tokenizer: # # ing"),
        ("Docker", "line 2: 'Docker' is the word of line 1 again"),
        ("x" * 101, "would still be split into [UNK]"),
    ],
)
def test_words_that_cannot_be_added(tmp_path, word, message):
    tokenizer = word_tokenizer(tmp_path)
    with pytest.raises(UserError) as error:
        add_words(tokenizer, lines("docker", word), "words.txt")
    assert message in str(error.value)
    assert str(error.value).startswith("words.txt: 1 of 2 words cannot be added")
    assert str(error.value).endswith("remove these lines")


def test_all_problems_of_a_file_are_counted(tmp_path):
    tokenizer = word_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"7 of 8 words .* and 2 more"):
        add_words(tokenizer, lines("docker", *["man", "net", "sea", "by", "and", "a", "the"]), "f")


@pytest.mark.parametrize(
    ("kind", "word", "message"),
    [
        ("bpe", "sea-net", "is several words"),
        ("bpe", "the", "is in the vocabulary already"),
        ("bpe", "</s>", "is a special token"),
        ("unigram", "▁", "is nothing after normalization"),
        ("unigram", "two words", "is several words"),
        ("unigram", "[SEP]", "is a special token"),
    ],
)
def test_words_of_bpe_and_unigram_that_cannot_be_added(kind, word, message):
    with pytest.raises(UserError, match=message):
        add_words(trained(kind), lines(word), "words.txt")


def test_sentencepiece_models_are_refused():
    class OtherTokenizer(Tokenizer):
        def __init__(self):
            pass

        encode_ids = encode_batch = decode = save = None  # type: ignore[assignment]

    with pytest.raises(UserError, match=r"SentencePiece \.model .* write its tokenizer\.json"):
        add_words(OtherTokenizer(), lines("docker"), "words.txt")


def test_files_of_words(tmp_path: Path):
    file = tmp_path / "words.txt"
    file.write_bytes("\ufeffdocker\r\n\n  kubernetes \n".encode())
    assert read_words(file) == {1: "docker", 3: "kubernetes"}
    file.write_text("\n \n")
    with pytest.raises(UserError, match=r"words\.txt: no words; expected a word on each line"):
        read_words(file)
    with pytest.raises(UserError, match="no such file"):
        read_words(tmp_path / "absent.txt")


def test_added_tokens_are_within_the_old_order(old):
    new, _ = add_words(old, lines("kubernetes"), "words.txt")
    np.testing.assert_array_equal(new.word_starts[: old.vocab_size], old.word_starts)
    assert new.special_ids == old.special_ids
