"""Tests the n-gram model against its formula in plain Python, and the signals that use it.

Covers bert_jax/apps/curate/{ngrams,model_files}.py and
bert_jax/apps/curate/cli/curate_ngrams.py.
"""

import hashlib
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.curate import ngrams
from bert_jax.apps.curate.model_signals import Perplexity, PerplexityPercentile
from bert_jax.apps.curate.near_duplicates import WordHashes
from bert_jax.apps.curate.ngrams import NgramModel, train_ngrams
from bert_jax.apps.curate.signals import TextView
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import ConfigError, UserError


def _paragraphs(shared: Path) -> list[str]:
    """Returns the paragraphs of some speeches, without punctuation, in lower case."""
    source = TextFiles(str(shared / "text/inaugural/18[0-3]*.txt"), document_unit="blank-line")
    texts = source.read_texts(source.list_files())
    return ["".join(c if c.isalnum() else " " for c in text).lower() for text in texts]


def _is_held_out(text: str) -> bool:
    return hashlib.blake2b(text.encode(), digest_size=4).digest()[0] % 10 == 0


class SlowKneserNey:
    """Computes the probabilities with strings, dicts and recursion, from the definition."""

    def __init__(self, documents: list[list[str]], order: int):
        grams = [
            Counter(tuple(d[i : i + n]) for d in documents for i in range(len(d) - n + 1))
            for n in range(order + 1)
        ]
        self.vocabulary = len(grams[1])
        self.counts: list[dict[tuple[str, ...], int]] = [{}]
        for n in range(1, order + 1):
            preceded = Counter(gram[1:] for gram in grams[n + 1]) if n < order else grams[n]
            self.counts.append(dict(preceded))

    def probability(self, history: tuple[str, ...], word: str) -> float:
        n = len(history) + 1
        lower = self.probability(history[1:], word) if history else 1 / (self.vocabulary + 1)
        values = list(self.counts[n].values())
        ones, twos = values.count(1), values.count(2)
        discount = ones / (ones + 2 * twos) if ones and twos else 0.75
        after = [c for gram, c in self.counts[n].items() if gram[:-1] == history]
        if not after:
            return lower
        count = self.counts[n].get((*history, word), 0)
        return max(count - discount, 0) / sum(after) + discount * len(after) / sum(after) * lower


@pytest.mark.parametrize("order", [2, 3])
def test_probabilities_follow_the_formula(shared, order, tmp_path, monkeypatch):
    monkeypatch.setattr(ngrams, "_MAX_BUFFERED", 500)  # merges several times
    monkeypatch.setattr(ngrams, "_MIN_HELD_OUT", 1)
    texts = _paragraphs(shared)[:60]
    train_ngrams(texts, order).save(tmp_path / "model.safetensors")
    model = NgramModel.load(tmp_path / "model.safetensors")
    slow = SlowKneserNey([t.split() for t in texts if not _is_held_out(t)], order)
    assert model.info["vocabulary"] == slow.vocabulary
    # Seen, unseen and unknown words after seen and unseen words.
    words = f"{texts[1]} zyzzyva the {texts[10]} of the xylograph".split()[:120]
    hashes = WordHashes().hash_words(" ".join(words))
    expected = [
        math.log(slow.probability(tuple(words[max(0, i - order + 1) : i]), word))
        for i, word in enumerate(words)
    ]
    np.testing.assert_allclose(model.log_probabilities(hashes), expected, rtol=2e-6)
    # The probabilities of all words, and of one that is unknown, have the sum 1.
    vocabulary = sorted({w for t in texts if not _is_held_out(t) for w in t.split()})
    for history in (("of", "the"), ("the", "zyzzyva")):
        total = 0.0
        for word in [*vocabulary, "zyzzyva"]:
            sequence = WordHashes().hash_words(" ".join([*history[1 - order :], word]))
            total += math.exp(model.log_probabilities(sequence)[-1])
        assert total == pytest.approx(1, abs=1e-5)


def test_signals_rank_text_by_how_usual_it_is(shared, tmp_path, capsys):
    path = tmp_path / "speeches.safetensors"
    files = str(shared / "text/inaugural/1[89]*.txt")
    assert main(["curate-ngrams", "--reference", files, "--output", str(path)]) == 0
    assert "n-grams of 1 to 3 words" in capsys.readouterr().out
    perplexity, percentile = Perplexity(model=str(path)), PerplexityPercentile(model=str(path))
    speech = (shared / "text/inaugural/2009-Obama.txt").read_text(errors="replace")[:5000]
    quoted = (shared / "text/inaugural/1961-Kennedy.txt").read_text(errors="replace")[:5000]
    shuffled = " ".join(sorted(speech.split()))
    values = [perplexity.compute(TextView(t)) for t in (quoted, speech, shuffled)]
    assert values == sorted(values)
    assert values[0] < values[1] / 5 < values[2] / 10
    ranks = [percentile.compute(TextView(t)) for t in (quoted, speech, shuffled)]
    assert ranks[0] <= 2 and 2 < ranks[1] < 99 and ranks[2] == 100
    assert perplexity.compute(TextView("")) == 0
    again = tmp_path / "again.safetensors"
    NgramModel.load(path).save(again)
    assert again.read_bytes() == path.read_bytes()
    assert perplexity.fingerprint() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_wrong_files_and_too_few_documents_raise(tmp_path):
    with pytest.raises(UserError, match="make one with `bert-jax curate-ngrams`"):
        Perplexity(model=str(tmp_path / "none.safetensors"))
    with pytest.raises(UserError, match="0 documents to count and 1 held out"):
        train_ngrams(["one short text"])
    with pytest.raises(ConfigError, match="--order is 6"):
        train_ngrams([], order=6)
