"""Covers `bert-jax probe` with a tiny model, and its messages for bad input."""

import json

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.probes import probe as probe_module
from bert_jax.apps.probes.probe import MODEL, RANDOM, VECTORS, probe_task
from bert_jax.apps.probes.tasks import SPLITS, ProbingTask, Split
from bert_jax.apps.probes.training import ProbeConfig
from bert_jax.apps.testing.models import small_model
from bert_jax.apps.treebanks.word_features import WordFeatures
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.pretrained.load import load_encoder
from tests.helpers.report_markup import Report

UPOS = {"the": "DET", "old": "ADJ", "man": "NOUN", "sings": "VERB", ".": "PUNCT"}


def rows(words: list[str]) -> str:
    """Returns a sentence whose words depend on the last but one."""
    root = len(words) - 1
    return "".join(
        f"{i}\t{word}\t_\t{UPOS[word]}\t_\t_\t{0 if i == root else root}\t"
        f"{'root' if i == root else 'dep'}\t_\t_\n"
        for i, word in enumerate(words, 1)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    """Writes a model, treebanks and word vectors, and returns the arguments of a command."""
    folder = tmp_path_factory.mktemp("probe")
    export(small_model(folder / "vocabulary"), folder / "model")
    sentences = [["the", "old", "man", "sings", "."], ["the", "man", "sings", "."]] * 8
    text = "\n".join(map(rows, [*sentences, ["the"] * 30 + ["sings", "."]]))
    (folder / "a.conllu").write_text(text, "utf-8")
    (folder / "vectors.txt").write_text("the 1 0\nman 0 1\nsings 1 1\n", "utf-8")
    flags = [word for split in ("train", "dev", "test") for word in (f"--{split}", "a.conllu")]
    return [str(folder), "model", *flags]


def run(files, monkeypatch, *flags: str) -> int:
    folder, *arguments = files
    monkeypatch.chdir(folder)
    return main(["probe", *arguments, *flags])


def test_table_and_output(files, monkeypatch, capsys, tmp_path):
    flags = ("--tasks", "upos", "structure", "--seeds", "1", "--rank", "4")
    output = ("--vectors", "vectors.txt", "--output", str(tmp_path / "new" / "out"))
    assert run(files, monkeypatch, *flags, *output) == 0
    found = capsys.readouterr()
    header, row, _, structure_header, *measures = found.out.splitlines()
    assert "majority  vectors  random  layer 0" in header and "UUAS" in measures[0]
    assert "linear" in structure_header and len(measures) == 4
    assert "3 sentences are longer" in found.err  # one in each file
    results = json.loads((tmp_path / "new" / "out" / "probes.json").read_text())
    upos = results["tasks"]["upos"]
    assert upos["majority"] == pytest.approx(16 / 72) and upos["num_examples"]["test"] == 72
    assert list(upos["sources"]) == [MODEL, RANDOM, VECTORS]
    model = upos["sources"][MODEL]
    assert model["accuracy"][0] == 1  # the embedding of a word gives its part of speech
    assert f"{100 * model['accuracy'][0]:.1f}" in row
    assert len(model["compression"]) == 3 and len(upos["sources"][VECTORS]["accuracy"]) == 1
    # Without order, two edges of "the old man sings" are right: (man, sings), and none other.
    assert results["structure"]["linear"]["uuas"] == pytest.approx(2 / 5, abs=0.2)
    assert len(results["structure"]["sources"][MODEL]["uuas"]) == 3
    page = (tmp_path / "new" / "out" / "probes.html").read_text()
    assert page.count("<svg") == 5 and "selectivity" in page
    assert Report(page).tables["Tasks", "Tasks"][0][1][:3] == ["upos", "5", "22.2"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--tasks", "upso"), 1, "no task 'upso' for these files; did you mean 'upos'?"),
        (("--tasks", "xpos"), 1, "task xpos: 1 classes in train"),
        (("--dev", "vectors.txt"), 1, "expected either treebanks"),
        (("--sentences", "0"), 2, "--sentences is 0"),
        (("--train", "b.conllu"), 1, "b.conllu: no such file"),
    ],
)
def test_wrong_input(files, monkeypatch, capsys, flags, code, message):
    assert run(files, monkeypatch, *flags) == code
    assert message in capsys.readouterr().err


def test_tasks_of_one_class_are_left_out(files, monkeypatch, capsys):
    monkeypatch.setattr(probe_module, "probe_task", lambda task, *_: task.name)
    monkeypatch.setattr(probe_module, "probe_structure", lambda *_: None)
    folder, *_ = files
    splits = {split: f"{folder}/a.conllu" for split in SPLITS}
    results = probe_module.probe(load_encoder(f"{folder}/model"), splits)
    # All sentences have the same number of words in a bin, and no features.
    assert {"upos", "deprel", "arc", "swapped-words"} <= set(results.tasks)
    assert not {"xpos", "tense", "subject-number"} & set(results.tasks)
    assert results.num_too_long == 3


def test_features_that_are_not_finite():
    labels = [str(index % 4) for index in range(9)]
    spans = np.stack([np.arange(9), np.arange(9) + 1], -1)[:, None]
    splits = dict.fromkeys(SPLITS, Split([labels], spans, labels, labels))
    task = ProbingTask(name="x", kind="words", splits=splits)
    values = np.full((1, 9, 2), np.nan, np.float32)
    sources = {MODEL: lambda sentences: WordFeatures(("0",), values)}
    with pytest.raises(UserError, match="layer 0 contain NaN"):
        probe_task(task, sources, (0,), ProbeConfig())
