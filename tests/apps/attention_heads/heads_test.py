"""Covers bert_jax/apps/attention_heads/: statistics and relations equal slow definitions."""

import itertools
import json
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon, pdist, squareform
from scipy.special import entr

from bert_jax.__main__ import main
from bert_jax.apps.attention_heads.relations import DIRECTIONS, best_heads
from bert_jax.apps.attention_heads.statistics import describe_heads, head_distances, head_map
from bert_jax.apps.testing.models import small_model
from bert_jax.apps.treebanks.conllu import TreebankSentence, read_treebank
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.predict.attention import AttentionExtractor
from bert_jax.pretrained.load import LoadedModel
from tests.helpers.report_markup import Report

TEXTS = ["the old man mends a net by the sea .", "the sea sings", "a man and the sea ."]
WORDS = ("the", "old", "man", "mends", "nets", "by", "sea", "and", "sings", ".")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("model"), initializer_range=0.5)


def random_sentences(count: int) -> list[TreebankSentence]:
    """Returns sentences whose words have the head before them, or sometimes another one."""
    rng = np.random.default_rng(0)
    sentences = []
    for _ in range(count):
        length = int(rng.integers(2, 8))
        words = tuple(rng.choice(WORDS, length).tolist())
        heads = tuple(
            i - 1 if rng.random() < 0.6 else int(rng.integers(0, i or 1)) for i in range(length)
        )
        heads = (-1, *heads[1:])
        deprels = ("root", *rng.choice(["det", "obj:x"], length - 1).tolist())
        sentences.append(
            TreebankSentence(words, words, words, ({},) * length, heads, deprels, first_line=1)
        )
    return sentences


def test_statistics_equal_sums_over_single_texts(model):
    found = describe_heads(model, [TEXTS[:2], [""], TEXTS[2:]])
    sums: dict[str, Any] = defaultdict(float)
    counts: Counter[str] = Counter()
    for text in TEXTS:
        tokens, weights = AttentionExtractor(model)(text)
        kinds = {"[CLS]": ["[CLS]"], "[SEP]": ["[SEP]"], "punctuation": [".", ","]}
        for query in range(len(tokens)):
            for key, token in enumerate(tokens):
                names = [name for name, kind in kinds.items() if token in kind]
                names += [{-1: "previous", 0: "self", 1: "next"}.get(key - query, "other")]
                for name in names:
                    sums[name] += weights[:, :, query, key]
            sums["entropy"] += entr(weights[:, :, query]).sum(-1)
        counts.update({"tokens": len(tokens), "pairs": len(tokens) - 1})
    assert found.num_tokens == counts["tokens"]
    for name, values in {**found.attention, "entropy": found.entropy}.items():
        count = counts["pairs" if name in ("previous", "next") else "tokens"]
        np.testing.assert_allclose(values, sums[name] / count, atol=1e-5)


def test_distances_equal_those_of_scipy_and_are_embedded(model):
    found = head_distances(model, TEXTS)
    total, count = np.zeros((8, 8)), 0
    for text in TEXTS:
        weights = AttentionExtractor(model)(text).attentions
        for query in range(weights.shape[-1]):
            heads = weights[:, :, query].reshape(8, -1)
            total += squareform(pdist(heads, lambda p, q: jensenshannon(p, q) ** 2))
            count += 1
    np.testing.assert_allclose(found, total / count, atol=1e-5)


def test_map_recovers_points_of_a_plane():
    points = np.random.default_rng(0).normal(size=(9, 2))
    found = head_map(squareform(pdist(points)) ** 2)
    np.testing.assert_allclose(pdist(found), pdist(points), atol=1e-8)


def slow_relations(model: LoadedModel, sentences: list[TreebankSentence]) -> dict[str, Any]:
    """Counts by relation: the most correct of a head, all counts, the best offset."""
    extract = AttentionExtractor(model)
    correct: dict[int, Counter[Any]] = {0: Counter(), 1: Counter()}
    for index, sentence in enumerate(sentences):
        tokens, weights = extract(" ".join(sentence.words))
        starts = [i for i, token in enumerate(tokens) if not token.startswith("##")][1:]
        spans = [range(a, b) for a, b in itertools.pairwise(starts)]
        assert len(spans) == len(sentence.words)
        for word, head in enumerate(sentence.heads):
            if head < 0:
                continue
            name = sentence.deprels[word].split(":")[0]
            counts = correct[index % 2]
            counts[name, "words"] += 1
            counts[name, "offset", head - word] += 1
            for n, h in np.ndindex(*weights.shape[:2]):
                between = [
                    [np.mean([weights[n, h, q, list(v)].sum() for q in w]) for v in spans]
                    for w in spans
                ]
                for direction, matrix in zip(
                    DIRECTIONS, (between, np.transpose(between)), strict=True
                ):
                    row = [-1.0 if v == word else float(x) for v, x in enumerate(matrix[word])]
                    counts[name, "head", direction, n + 1, h] += int(np.argmax(row)) == head
    result: dict[str, Any] = {}
    for name in ("det", "obj"):
        keys = [key for key in correct[0] if key[0] == name and key[1] == "head"]
        best = max(correct[0][key] for key in keys)
        offset = max(
            (key for key in correct[0] if key[0] == name and key[1] == "offset"),
            key=lambda key: correct[0][key],
        )
        result[name] = (best, correct, offset)
    return result


def test_best_heads_equal_a_slow_count(model):
    sentences = random_sentences(24)
    found = {relation.name: relation for relation in best_heads(model, sentences)}
    assert set(found) == {"det", "obj", "all"}
    for name, (best, correct, offset) in slow_relations(model, sentences).items():
        relation = found[name]
        key = (name, "head", relation.direction, relation.layer, relation.head)
        assert correct[0][key] == best and relation.words == correct[1][name, "words"]
        assert relation.accuracy == pytest.approx(correct[1][key] / relation.words)
        assert relation.offset == offset[2] == -1
        assert relation.offset_accuracy == pytest.approx(correct[1][offset] / relation.words)


TREEBANK = """\
1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tman\tman\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tmends\tmend\tVERB\t_\t_\t0\troot\t_\t_
4\tnets\tnet\tNOUN\t_\t_\t3\tobj\t_\t_
"""


def test_verb_prints_tables_and_writes_a_page(model, tmp_path, capsys):
    export(model, tmp_path / "exported")
    file = tmp_path / "tiny.conllu"
    file.write_text(f"{TREEBANK}\n{TREEBANK}\n")
    command = ["heads", str(tmp_path / "exported"), "--treebank", str(file)]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    statistics, relations = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in statistics.splitlines()[1:3]] == ["[CLS]", "[SEP]"]
    assert [line.split()[0] for line in relations.splitlines()[1:]] == [
        "all",
        "det",
        "nsubj",
        "obj",
    ]
    results = json.loads((tmp_path / "out" / "heads.json").read_text())
    assert np.shape(results["divergences"]) == (8, 8) and np.shape(results["map"]) == (8, 2)
    assert results["tokens"] == 2 * 8  # "mends" and "nets" are two tokens
    page = (tmp_path / "out" / "heads.html").read_text()
    assert "svg" in Report(page).tags  # well-formed, nothing is loaded
    assert page.count("<table") == 1 + 7 and "layer 2, head 3" in page


def test_bad_inputs_are_explained(model, tmp_path, capsys):
    with pytest.raises(UserError, match="there is no text; expected a file"):
        describe_heads(model, [["", " "]])
    (tmp_path / "one.conllu").write_text(f"{TREEBANK}\n")
    with pytest.raises(UserError, match="no relation is in both halves of the 1 sentences"):
        best_heads(model, read_treebank(str(tmp_path / "one.conllu")))
    assert main(["heads", "exported"]) == 2
    assert "there is no text; give --file, --treebank or both" in capsys.readouterr().err
    assert main(["heads", "exported", "--file", "a.txt", "--limit", "3"]) == 2
    assert "--limit needs --treebank" in capsys.readouterr().err
