"""Compares vocabulary training with a slow reference; tests determinism and encoding."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.learn import train_tokenizer, train_tokenizer_from_files, train_wordpiece_vocab
from bert_jax.text.load_tokenizer import load_tokenizer

KINDS = ("wordpiece", "bpe", "unigram")


@pytest.fixture(scope="module")
def speeches(shared):
    files = sorted((shared / "text/inaugural").glob("19*.txt"))[:12]
    return [file.read_text(encoding="utf-8") for file in files]


def random_words(seed: int, alphabet: str = "abcd") -> Counter[str]:
    rng = random.Random(seed)
    words: Counter[str] = Counter()
    for _ in range(60):
        words["".join(rng.choices(alphabet, k=rng.randint(1, 7)))] += rng.randint(1, 9)
    return words


def slow_merges(words: Counter[str], letters: list[str], merges: int) -> list[str]:
    """Counts all pairs again for each merge; in ties the earlier token is preferred."""
    tokens = list(letters)
    spelled = {w: [w[0], *("##" + c for c in w[1:])] for w in words}
    while len(tokens) < len(letters) + merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in spelled.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        rank = {token: n for n, token in enumerate(tokens)}
        best = min(pairs, key=lambda p: (-pairs[p], rank[p[0]], rank[p[1]]))
        if pairs[best] < 2:
            break
        merged = best[0] + best[1].removeprefix("##")
        if merged not in rank:
            tokens.append(merged)
        for parts in spelled.values():
            n = 0
            while n < len(parts) - 1:
                if (parts[n], parts[n + 1]) == best:
                    parts[n : n + 2] = [merged]
                n += 1
    return tokens


@pytest.mark.parametrize("seed", range(20))
def test_wordpiece_equals_a_slow_reference(seed):
    # One or two letters give words such as "aaaa", where pairs overlap.
    words = random_words(seed, alphabet="abcd"[: 1 + seed % 4])
    learned = train_wordpiece_vocab(words, vocab_size=60, min_frequency=2, character_coverage=1.0)
    letters = [token for token in learned if len(token.removeprefix("##")) == 1]
    assert learned == slow_merges(words, letters, 60 - len(letters))


def test_rare_characters_are_not_in_the_vocabulary():
    words = {"common": 99_999, "rar\u00e9": 1}
    full = train_wordpiece_vocab(words, vocab_size=100, min_frequency=1, character_coverage=1.0)
    vocab = train_wordpiece_vocab(words, vocab_size=100, min_frequency=1, character_coverage=0.9999)
    assert "##\u00e9" in full and "rar\u00e9" in full
    assert not any("\u00e9" in token for token in vocab) and "common" in vocab


def test_vocab_size_smaller_than_the_alphabet_raises():
    with pytest.raises(UserError, match=r"too small: the corpus has 8 letters"):
        train_wordpiece_vocab(
            random_words(0), vocab_size=6, min_frequency=1, character_coverage=1.0
        )


@pytest.mark.parametrize("kind", KINDS)
def test_trained_tokenizer_encodes_its_text(kind, speeches):
    vocabulary, corpus = train_tokenizer(
        speeches, TokenizerTrainingConfig(kind=kind, vocab_size=1000)
    )
    assert vocabulary.kind == kind and vocabulary.vocab_size == 1000
    assert vocabulary.special_ids == {0, 1, 2, 3, 4}
    assert corpus.documents == len(speeches) and corpus.characters == sum(map(len, speeches))
    if kind != "bpe":
        assert [vocabulary.id_to_token(i) for i in range(5)] == [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
        ]
    text = " ".join(speeches[0].split())
    ids = vocabulary.encode(text)
    assert ids.count(vocabulary.unk_id) < 0.001 * len(ids)
    assert len(text) / 6 < len(ids) < len(text) / 2
    # Without case and spaces, which the kinds treat differently, it is the same text.
    assert "".join(vocabulary.decode(ids).lower().split()) == "".join(text.lower().split())
    if kind == "wordpiece":
        assert [vocabulary.id_to_token(i) for i in vocabulary.encode("the [MASK]")] == [
            "the",
            "[MASK]",
        ]


def test_sentinels_have_the_last_ids_in_reverse(speeches, tmp_path):
    config = TokenizerTrainingConfig(kind="unigram", vocab_size=600, sentinels=20)
    tokenizer, _ = train_tokenizer(speeches, config)
    assert tokenizer.sentinel_ids == list(range(599, 579, -1))
    special = [tokenizer.id_to_token(token_id) for token_id in range(3)]
    assert special == ["<pad>", "</s>", "<unk>"] and tokenizer.sep_id == 1
    ids = tokenizer.build_inputs_with_special_tokens(tokenizer.encode("We <extra_id_0> people"))
    assert ids[-1] == 1 and 599 in ids
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    with pytest.raises(ConfigError, match=r"kind is 'bpe'; expected kind 'unigram'"):
        TokenizerTrainingConfig(kind="bpe", sentinels=100)


@pytest.mark.parametrize("kind", ["wordpiece", pytest.param("unigram", marks=pytest.mark.slow)])
def test_cased_keeps_upper_case(kind, speeches):
    cased, _ = train_tokenizer(
        speeches, TokenizerTrainingConfig(kind=kind, vocab_size=600, cased=True)
    )
    uncased, _ = train_tokenizer(speeches, TokenizerTrainingConfig(kind=kind, vocab_size=600))
    assert cased.encode("America") != cased.encode("america")
    assert uncased.encode("America") == uncased.encode("america")


SCRIPT = """
import sys
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.text.learn import train_tokenizer
texts = [open(name, encoding="utf-8").read() for name in sys.argv[1:]]
for kind in ("wordpiece", "bpe", "unigram"):
    config = TokenizerTrainingConfig(kind=kind, vocab_size=600)
    print(train_tokenizer(texts, config)[0].fingerprint)
"""


def test_training_does_not_depend_on_hash_seed_or_threads(shared):
    files = sorted(map(str, (shared / "text/inaugural").glob("193*.txt")))
    runs = []
    for seed, parallel, threads in (("1", "true", "2"), ("2", "false", "1"), ("3", "true", "4")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "TOKENIZERS_PARALLELISM": parallel,
            "RAYON_NUM_THREADS": threads,
        }
        command = [sys.executable, "-c", SCRIPT, *files]
        shown = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout
        runs.append(shown.split())
    assert len(runs[0]) == 3 and runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("kind", KINDS)
def test_training_from_files_writes_a_manifest(kind, tmp_path):
    words = ["alpha", "beta", "gamma", "delta", "alphabet"]
    (tmp_path / "a.txt").write_text("\ufeffAlpha beta.\r\nGamma delta alphabet. " * 20)
    (tmp_path / "b.jsonl").write_text('{"text": "alpha beta gamma"}\n{"text": "delta"}\n')
    size = {"wordpiece": 60, "bpe": 280, "unigram": 40}[kind]
    config = TokenizerTrainingConfig(kind=kind, vocab_size=size)
    patterns = [str(tmp_path / "*.txt"), str(tmp_path / "*.jsonl")]
    learned = train_tokenizer_from_files(patterns, tmp_path / "out", config)
    loaded = load_tokenizer(tmp_path / "out")
    assert loaded.fingerprint == learned.fingerprint
    for word in words:
        assert loaded.encode(word) == learned.encode(word)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["corpus"]["files"] == ["a.txt", "b.jsonl"]
    assert manifest["corpus"]["documents"] == 3
    assert len(manifest["corpus"]["sha256"]) == 64
    assert manifest["settings"]["kind"] == kind
    assert manifest["tokenizer"] == {
        "vocab_size": learned.vocab_size,
        "fingerprint": learned.fingerprint,
    }
    assert set(manifest["versions"]) == {"bert_jax", "python", "tokenizers", "sentencepiece"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b.jsonl", "out"]
    with pytest.raises(UserError, match="the folder is not empty"):
        train_tokenizer_from_files(patterns, tmp_path / "out", config)


def test_file_name_that_is_not_utf8_is_written_with_a_question_mark(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("Alpha beta. " * 20)
    config = TokenizerTrainingConfig(vocab_size=60)
    train_tokenizer_from_files([str(tmp_path / name)], tmp_path / "out", config)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text("utf-8"))
    assert manifest["corpus"]["files"] == ["caf?.txt"]


def test_training_without_text_raises(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    for kind in KINDS:
        with pytest.raises(UserError, match="expected text to train on"):
            train_tokenizer_from_files(
                [str(tmp_path / "empty.txt")], tmp_path / "out", TokenizerTrainingConfig(kind=kind)
            )
    assert not (tmp_path / "out").exists()


def test_invalid_settings_raise():
    impossible: tuple[dict[str, Any], ...] = (
        {"kind": "bytes"},
        {"vocab_size": 3},
        {"min_frequency": 0},
        {"character_coverage": 2.0},
    )
    for wrong in impossible:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TokenizerTrainingConfig(**wrong)
    with pytest.raises(UserError, match="byte-level BPE needs at least"):
        train_tokenizer(["text"], TokenizerTrainingConfig(kind="bpe", vocab_size=100))
