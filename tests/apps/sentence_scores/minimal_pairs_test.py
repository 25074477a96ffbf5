"""Covers bert_jax/apps/sentence_scores: minimal pairs, the verbs and their messages."""

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.sentence_scores.minimal_pairs import (
    MinimalPair,
    PairColumns,
    PairScores,
    accuracies,
    mean_accuracy,
    read_pairs,
    read_published,
    score_pairs,
)
from bert_jax.apps.sentence_scores.scorer import SentenceScore, SentenceScorer
from bert_jax.apps.testing.models import small_model, write_run
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.pretrained.load import load_model


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("scores")
    export(small_model(folder / "vocabulary", initializer_range=0.2), folder / "exported")
    return str(folder / "exported")


def blimp_rows(uid: str, term: str, pairs: Sequence[tuple[str, str]]) -> str:
    rows = (
        {"sentence_good": good, "sentence_bad": bad, "linguistics_term": term, "UID": uid}
        for good, bad in pairs
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def blimp(tmp_path_factory) -> Path:
    """Three paradigms of two phenomena, one of them compressed."""
    folder = tmp_path_factory.mktemp("blimp")
    pairs = [("The man mends a net.", "The man mend a net."), ("a net sings", "a sings net")]
    (folder / "verbs.jsonl").write_text(blimp_rows("verbs", "agreement", pairs * 2))
    (folder / "order.jsonl").write_text(blimp_rows("order", "islands", pairs[1:]))
    with gzip.open(folder / "nouns.jsonl.gz", "wt") as file:
        file.write(blimp_rows("nouns", "agreement", [("the old man", "the man old")] * 3))
    systems = [
        {"UID": uid, "linguistics_term": "x", "ngram": value}
        for uid, value in {"verbs": 0.5, "nouns": 0.7, "order": 0.1, "other": 0.9}.items()
    ]
    (folder / "summary.json.jsonl").write_text("".join(json.dumps(row) + "\n" for row in systems))
    return folder


def scored(credits: Sequence[float], paradigms: Sequence[str], groups: Sequence[str]) -> PairScores:
    pairs = [MinimalPair("a", "b", p, g) for p, g in zip(paradigms, groups, strict=True)]
    good = [SentenceScore("a", ["a"], np.array([-1.0])) for _ in pairs]
    values = {1.0: -2.0, 0.0: -0.5, 0.5: -1.0}
    bad = [SentenceScore("b", ["b"], np.array([values[credit]])) for credit in credits]
    return PairScores(pairs, good, bad)


def test_paradigms_count_equally_and_ties_half():
    scores = scored([1, 1, 1, 0, 0, 0.5], ["p", "p", "p", "p", "q", "r"], ["one"] * 5 + ["two"])
    assert scores.credits().tolist() == [1, 1, 1, 0, 0, 0.5]
    found = accuracies(scores)
    values = {name: accuracy.value for name, accuracy in found["paradigms"].items()}
    assert values == {"p": 0.75, "q": 0.0, "r": 0.5}
    assert {name: a.value for name, a in found["groups"].items()} == {"one": 0.375, "two": 0.5}
    assert found["all"]["all"].value == pytest.approx(1.25 / 3)
    assert found["groups"]["one"].pairs == 5


def test_interval_of_one_paradigm_is_that_of_scipy():
    from scipy.stats import binomtest

    for right, count in ((0, 7), (13, 20), (1000, 1000)):
        found = mean_accuracy([[1.0] * right + [0.0] * (count - right)])
        expected = binomtest(right, count).proportion_ci(method="wilson")
        assert found == pytest.approx((right / count, expected.low, expected.high, count))


def test_interval_of_several_paradigms_covers_their_mean():
    rng = np.random.default_rng(0)
    probabilities, counts = (0.9, 0.55, 0.7), (200, 100, 300)
    samples = [
        mean_accuracy(
            [(rng.random(n) < p).tolist() for p, n in zip(probabilities, counts, strict=True)]
        )
        for _ in range(2000)
    ]
    covered = np.mean([s.low <= np.mean(probabilities) <= s.high for s in samples])
    assert covered == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / 2000) + 0.01)


def test_verb_scores_blimp_and_lists_published_systems(exported, blimp, tmp_path, capsys):
    files = [str(blimp / name) for name in ("verbs.jsonl", "order.jsonl", "nouns.jsonl.gz")]
    published = ["--published", str(blimp / "summary.json.jsonl")]
    output = tmp_path / "result.json"
    command = ["minimal-pairs", exported, *files, *published, "--output", str(output)]
    assert main(command) == 0
    streams = capsys.readouterr()
    lines = [line.split() for line in streams.out.splitlines()]
    assert [line[0] for line in lines] == ["accuracy", "agreement", "islands", "all"]
    assert [line[-1] for line in lines] == ["ngram", "60.0", "10.0", "43.3"]
    assert "in 2 of 8 pairs, the sentences have different numbers of tokens" in streams.err
    result = json.loads(output.read_text())
    assert result["groups"]["agreement"]["pairs"] == 7

    score = SentenceScorer(load_model(exported))
    pairs = read_pairs(files)
    expected = [score(p.good).log_probability > score(p.bad).log_probability for p in pairs]
    by_file = {name: result["paradigms"][name]["value"] for name in ("verbs", "order", "nouns")}
    assert by_file == {
        name: np.mean([e for e, p in zip(expected, pairs, strict=True) if p.paradigm == name])
        for name in by_file
    }
    assert score_pairs(score, pairs).credits().tolist() == expected
    assert len(read_pairs(files, limit=1)) == 3


def test_published_means_of_groups_within_a_file(blimp):
    pairs = [MinimalPair("a", "b", uid, group) for uid, group in (("verbs", "x"), ("verbs", "y"))]
    pairs.append(MinimalPair("a", "b", "nouns", "y"))
    found = read_published(str(blimp / "summary.json.jsonl"), pairs)["ngram"]
    assert found == pytest.approx({"x": 0.5, "y": 0.6, "all": 1.7 / 3})


def test_long_texts_are_scored_in_groups(exported, monkeypatch):
    texts = ["the old man mends a net", "", "the sea sings", "a", "the man"] * 2
    score = SentenceScorer(load_model(exported))
    expected = [score(text).log_probability for text in texts]
    monkeypatch.setattr("bert_jax.apps.sentence_scores.scorer._TOKENS_AT_ONCE", 40)
    assert [each.log_probability for each in score(texts)] == pytest.approx(expected, abs=1e-5)


def test_own_tables_have_their_own_columns(exported, tmp_path, capsys):
    (tmp_path / "pairs.csv").write_text("right,wrong,rule\nthe man,man the,order\n")
    command = ["minimal-pairs", exported, str(tmp_path / "pairs.csv"), "--good", "right"]
    assert main([*command, "--bad", "wrong"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "all"
    assert main([*command, "--bad", "wrong", "--group", "rule"]) == 0
    assert "order" in capsys.readouterr().out
    assert main([*command, "--bad", "wrog"]) == 1
    assert "no column 'wrog'; did you mean 'wrong'" in capsys.readouterr().err


def test_texts_and_their_tokens_are_printed(exported, capsys):
    assert main(["score", exported, "The man mends.", ""]) == 0
    streams = capsys.readouterr()
    first, empty = map(json.loads, streams.out.splitlines())
    values = [token["log_probability"] for token in first["tokens"]]
    assert [token["token"] for token in first["tokens"]] == ["the", "man", "mend", "##s", "."]
    assert first["log_probability"] == pytest.approx(sum(values), abs=1e-5)
    assert empty == {"text": "", "log_probability": 0.0, "tokens": []}
    assert f"5 tokens, perplexity {np.exp(-np.mean(values)):.2f}" in streams.err


def test_bad_inputs_are_explained(exported, blimp, tmp_path):
    score = SentenceScorer(load_model(exported))
    with pytest.raises(UserError, match=r"has 27 tokens with special tokens, but .* reads 20"):
        score("the old man " + "mends " * 11)
    (tmp_path / "empty.csv").write_text("sentence_good,sentence_bad\na net, \n")
    with pytest.raises(UserError, match="line 2: the unacceptable sentence in the column"):
        read_pairs([str(tmp_path / "empty.csv")])
    (tmp_path / "none.csv").write_text("sentence_good,sentence_bad\n")
    with pytest.raises(UserError, match=r"none\.csv: no pairs"):
        read_pairs([str(tmp_path / "none.csv")], PairColumns())
    (tmp_path / "summary.jsonl").write_text('{"UID": "v", "linguistics_term": "x", "gpt2": "?"}\n')
    with pytest.raises(UserError, match=r"accuracy of 'gpt2' on v is '\?'; expected a number"):
        read_published(str(tmp_path / "summary.jsonl"), [MinimalPair("a", "b", "v", "x")])
    own = [MinimalPair("a", "b", "mine", "all")]
    with pytest.raises(UserError, match=r"no results for mine; expected BLiMP's files, such as v"):
        read_published(str(blimp / "summary.json.jsonl"), own)


def test_models_without_a_head_are_refused(exported, tmp_path):
    head = SequenceClassificationHead(labels=("no", "yes"))
    with pytest.raises(UserError, match="has no masked-LM head, so it cannot score texts"):
        SentenceScorer(small_model(tmp_path / "vocabulary", head=head))
    with pytest.raises(ConfigError, match="masking is 'left'; expected original or within_word"):
        SentenceScorer(load_model(exported), masking="left")  # type: ignore[arg-type]


def test_every_checkpoint_is_scored_once_and_is_in_the_report(blimp, tmp_path, capsys):
    model = small_model(tmp_path / "vocabulary", initializer_range=0.2)
    run = write_run(tmp_path / "run", model, steps=(10, 20))
    arguments = ["minimal-pairs", str(run), str(blimp / "[nov]*.jsonl*"), "--every-checkpoint"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "10", "20"]
    saved = json.loads((run / "minimal_pairs.json").read_text())
    names = ("nouns.jsonl.gz", "order.jsonl", "verbs.jsonl")
    pairs = read_pairs([str(blimp / name) for name in names])
    for row in saved["checkpoints"]:
        scorer = SentenceScorer(load_model(run / "checkpoints" / str(row["step"])))
        found = accuracies(score_pairs(scorer, pairs))
        assert row["all"] == pytest.approx(found["all"]["all"].value)
        assert row["agreement"] == pytest.approx(found["groups"]["agreement"].value)
    assert "Accuracy on minimal pairs" in (run / "report.html").read_text()
    # A checkpoint that the run has deleted since keeps its row, and others are not scored again.
    saved["checkpoints"][1]["all"] = 0.125
    (run / "minimal_pairs.json").write_text(json.dumps(saved))
    shutil.rmtree(run / "checkpoints" / "10")
    assert main(arguments) == 0
    assert json.loads((run / "minimal_pairs.json").read_text()) == saved
    assert main([*arguments, "--limit", "1"]) == 0
    saved = json.loads((run / "minimal_pairs.json").read_text())
    assert [row["step"] for row in saved["checkpoints"]] == [20] and saved["pairs"] == 3
    assert main([*arguments, "--output", "x.json"]) == 2


def test_equal_sentences_count_as_half_right(exported, tmp_path, caplog):
    (tmp_path / "same.csv").write_text("sentence_good,sentence_bad\na net,a net\n")
    pairs = read_pairs([str(tmp_path / "same.csv")])
    assert "1 of 1 pairs have two equal sentences" in caplog.text
    assert "same.csv, line 2" in caplog.text
    scores = score_pairs(SentenceScorer(load_model(exported)), pairs)
    assert scores.credits().tolist() == [0.5]


@pytest.mark.parametrize("paradigm", ["passive_1", "principle_A_case_2"])
def test_files_of_blimp_with_equal_sentences_are_read(shared, paradigm):
    pairs = read_pairs([str(shared / f"blimp/{paradigm}.jsonl.gz")])
    assert len(pairs) == 1000
