"""Runs `bert-jax seen` on small runs: texts that were read, changed, or removed by curation.

Covers bert_jax/apps/seen/find_texts.py, bert_jax/apps/seen/removed_texts.py and
bert_jax/apps/seen/cli/seen.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.plan import CurationConfig, Rule, RuleSet, Source
from bert_jax.apps.seen import find_texts
from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.config.text import TokenizerKind, TokenizerTrainingConfig
from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.runs import run_folder
from bert_jax.text.learn import train_tokenizer_from_files

WORDS = [
    *("harbor", "winter", "letter", "garden", "captain", "stranger"),
    *("window", "river", "morning", "silence", "lantern", "orchard"),
    *("journey", "whisper", "marble", "saddle", "thunder", "meadow"),
    *("velvet", "compass", "sailor", "kettle", "chimney", "feather"),
]
PLANTED = (
    "The crooked lantern swung above the orchard, and nobody answered the stranger at the gate."
)
CHANGED = "The crooked lantern swung above an orchard, and nobody answered a stranger at the gate."


def _write_texts(folder: Path) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(30):
        sentences = [
            " ".join(rng.choice(WORDS, rng.integers(5, 12))).capitalize() + "." for _ in range(25)
        ]
        if number == 7:
            sentences[12] = PLANTED
        if number == 20:
            sentences[3] = CHANGED
        (folder / f"{number:02d}.txt").write_text(" ".join(sentences))


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a corpus and what `seen` needs of a run on it: its config and a checkpoint."""
    kind: TokenizerKind = request.param
    folder = tmp_path_factory.mktemp(kind)
    _write_texts(folder / "text")
    texts = str(folder / "text/*.txt")
    sizes = {"wordpiece": 200, "bpe": 380, "unigram": 150}
    training = TokenizerTrainingConfig(kind=kind, vocab_size=sizes[kind])
    train_tokenizer_from_files([texts], str(folder / "vocabulary"), training)
    corpus = str(folder / "prepared")
    config = PrepareConfig(
        source=TextFiles(texts), tokenizer=str(folder / "vocabulary"), output=corpus
    )
    prepare(config, num_workers=1)
    (folder / "run").mkdir()
    experiment = tiny_experiment("seen", corpus, two_length_phases(400))
    run_folder.write_or_check_config(folder / "run", experiment)
    (folder / "run" / run_folder.CHECKPOINTS / "400").mkdir(parents=True)
    return folder / "run"


def _seen(run: Path, *arguments: str) -> dict:
    output = run.parent / "seen.json"
    assert main(["seen", str(run), *arguments, "--output", str(output)]) == 0
    return json.loads(output.read_text())


def test_a_sentence_is_found_exactly_and_changed(run: Path, capsys) -> None:
    (found,) = _seen(run, PLANTED)["texts"]
    exact, similar = found["passages"]
    assert (exact["document"], exact["similarity"]) == (7, 1)
    assert similar["document"] == 20 and 0.8 <= similar["similarity"] < 1
    assert similar["text"].casefold().startswith("the crooked lantern swung above an")
    for passage in found["passages"]:
        assert passage["readings"]
        assert passage["end"] - passage["begin"] > max(map(max, _tokens(passage)))
        assert {t for each in passage["readings"] for t in each["predicted"]} <= {
            t for each in passage["readings"] for t in each["tokens"]
        }
    printed = capsys.readouterr().out
    assert f"{PLANTED!r}: 2 passages, 2 read in 400 updates" in printed
    assert f"document 7 (the same tokens): {exact['text']}" in printed
    first = exact["readings"][0]["update"]
    assert f"read {len(exact['readings'])} times, first by update {first}" in printed
    assert "[" in printed  # a predicted token


def _tokens(passage: dict) -> list[list[int]]:
    return [each["tokens"] for each in passage["readings"]]


def test_a_part_of_a_sentence_is_found_in_its_middle(run: Path) -> None:
    (found,) = _seen(run, "lantern swung above the orchard, and nobody")["texts"]
    assert (found["passages"][0]["document"], found["passages"][0]["similarity"]) == (7, 1)
    (found,) = _seen(run, "answered the stranger", "--similarity", "1")["texts"]
    assert [each["document"] for each in found["passages"]] == [7]


def test_texts_of_no_document_are_not_found(run: Path, capsys) -> None:
    (found,) = _seen(run, "Seven green dragons danced on a frozen volcano at midnight.")["texts"]
    assert found["passages"] == []
    assert "not in the corpus" in capsys.readouterr().out
    assert main(["seen", str(run), "\u200b"]) == 1
    assert "without tokens" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["seen", str(run)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find_texts, "MAX_PASSAGES", 20)
        assert main(["seen", str(run), WORDS[0]]) == 1
    assert "expected at most 20; give more words" in capsys.readouterr().err
    assert main(["seen", str(run), "a", "--similarity", "0"]) == 2
    assert main(["seen", str(run), "a", "--curated", "x"]) == 2
    assert "--curated and --raw belong together" in capsys.readouterr().err


def test_the_ledger_tells_why_a_document_was_removed(run: Path, capsys) -> None:
    raw, curated = run.parent / "raw", run.parent / "curated"
    if not raw.exists():
        raw.mkdir()
        (raw / "a.txt").write_text("A text with the secret phrase of three words. " + "more " * 9)
        (raw / "b.txt").write_text("No such phrase here. " * 40)
    source = Source(name="raw", files=TextFiles(str(raw / "*.txt")))
    rules = RuleSet(name="length", rules=(Rule(signal="words", at_least=50),))
    curate(CurationConfig(sources=(source,), rule_sets=(rules,)), curated, num_workers=1)
    arguments = ("--curated", str(curated), "--raw", str(raw / "*.txt"))
    _seen(run, "the Secret  phrase", "no such phrase here", "words of nobody", *arguments)
    printed = capsys.readouterr().out
    assert "in the input, raw/a.txt:1: removed by length: words (18)" in printed
    assert "in the input, raw/b.txt:1: kept, 8" in printed
    assert "not in the input files" in printed
    empty = ("--curated", str(raw), "--raw", str(raw / "*.txt"))
    assert main(["seen", str(run), "a", *empty]) == 1
    assert "has no ledger" in capsys.readouterr().err
