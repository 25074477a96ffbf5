"""Runs `bert-jax curate` with a step Decontamination, on small files and on real evaluation sets.

Covers bert_jax/data/corpus/contamination/{decontamination,passes,summary,tables,found_items}.py and
configs/curate/contamination.py.
"""

import dataclasses
import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.decontamination import Decontamination, lines_to_remove
from bert_jax.apps.curate.exact_duplicates import ExactDuplicates
from bert_jax.apps.curate.ledger import read_ledger
from bert_jax.apps.curate.plan import CurationConfig, Source, make_units
from bert_jax.apps.curate.sample import review
from bert_jax.config.labeled_data import Squad
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.data.corpus.contamination.found_items import (
    ITEMS_FILE,
    FoundItems,
    ItemRow,
    SearchRule,
    copy_items,
    read_item_rows,
    read_matches,
    write_rows,
)
from bert_jax.data.corpus.contamination.items import (
    Action,
    DropDocuments,
    FileItems,
    RemoveParagraphs,
    ReportOnly,
    TaskItems,
    item_of_example,
    word_keys,
)
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.data.finetuning.example import TextExample
from bert_jax.errors import ConfigError, UserError
from tests.data.corpus.curate_test import paragraph, read_output

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

LONG = (
    "the old clock in the tower of the town hall stopped at noon and nobody ever repaired it again"
)
PASSAGE = (
    "a river that is fed by three springs runs south through the valley and ends in a wide lake"
)
MEDIUM = "she sold the boat to a stranger for ten coins"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Writes two sources and an evaluation set, of which three items are in the text."""
    rows = [
        {"text": LONG, "passage": PASSAGE},
        {"text": MEDIUM, "passage": ""},
        {"text": "this sentence occurs in none of the documents that are read here", "passage": ""},
        {"text": "yes", "passage": ""},
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    book = "\n\n".join([paragraph(90), LONG.upper(), paragraph(91)])
    web = [paragraph(1), f"{paragraph(2)}. {MEDIUM}.", f"{paragraph(3)} {PASSAGE}", paragraph(4)]
    (tmp_path / "book.txt").write_text(book)
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in web))
    return tmp_path


def config(files: Path, action: Action, *, id=None, **fields) -> CurationConfig:
    quiz = FileItems(
        name="quiz",
        file=str(files / "quiz.jsonl"),
        fields={"text": "input", "passage": "context"},
        id=id,
    )
    return CurationConfig(
        sources=(
            Source(name="books", files=TextFiles(str(files / "book.txt"))),
            Source(name="web", files=TextFiles(str(files / "web.jsonl"))),
        ),
        steps=(Decontamination(sets=(quiz,), action=action, **fields),),
    )


def counts_of_items(out: Path) -> list[tuple[str, int, int, int]]:
    return [
        (i.rule, i.input_documents, i.context_documents, i.removed_documents)
        for i in read_item_rows(out)
    ]


def test_inputs_are_removed_and_contexts_are_reported(files, tmp_path):
    out = tmp_path / "out"
    # The book has more words than `max_words`, so it loses a paragraph only.
    curate(config(files, DropDocuments(max_words=100)), out, num_workers=1)
    documents = read_output(out)
    retained = ("books/book.txt:1", "web/web.jsonl:1", "web/web.jsonl:3", "web/web.jsonl:4")
    assert tuple(documents) == retained
    assert documents["books/book.txt:1"] == f"{paragraph(90)}\n\n{paragraph(91)}"
    dropped = [row for row in read_ledger(sorted(out.glob("ledger-*"))) if row.reason]
    assert [(row.id, row.reason, row.value, row.twin) for row in dropped] == [
        ("web/web.jsonl:2", "contaminated: quiz", 1.0, "quiz/test/1")
    ]
    content = review(config(files, DropDocuments(max_words=100)), out)
    assert content.examples == {"contaminated: quiz": dropped} and not content.pairs
    matches = [(m.document, m.item, m.field, m.role, m.action) for m in read_matches(out)]
    assert matches == [
        ("books/book.txt:1", "0", "text", "input", "removed"),
        ("web/web.jsonl:2", "1", "text", "input", "dropped"),
        ("web/web.jsonl:3", "0", "passage", "context", "reported"),
    ]
    assert read_matches(out)[0].match == LONG.upper()
    assert counts_of_items(out) == [
        ("13-grams", 0, 1, 1),
        ("whole text", 0, 0, 1),
        ("whole text", 0, 0, 0),
        ("too short", 0, 0, 0),
    ]
    summary = json.loads((out / "contamination.json").read_text())
    assert summary["documents"] == 5
    assert summary["sets"]["quiz"]["items_with_input_found"] == 2
    assert summary["sets"]["quiz"]["items_with_input_retained"] == 0
    assert summary["sets"]["quiz"]["items_not_searchable"] == 1
    assert summary["sets"]["quiz"]["documents_with_context"] == 1
    assert json.loads((out / "manifest.json").read_text())["removed_lines"] == {"contaminated": 1}


def test_report_only_changes_no_document_with_any_number_of_workers(files, tmp_path):
    curate(config(files, ReportOnly()), tmp_path / "one", num_workers=1)
    curate(config(files, ReportOnly()), tmp_path / "two", num_workers=2)
    assert len(read_output(tmp_path / "one")) == 5
    assert {match.action for match in read_matches(tmp_path / "one")} == {"reported"}
    names = [path.name for path in (tmp_path / "one").glob("contamination*")]
    assert len(names) == 3
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_too_many_contaminated_documents_are_an_error(files, tmp_path):
    leaked = [f"{paragraph(n)}. {MEDIUM} {n}." for n in range(11)]
    others = [paragraph(n) for n in range(20, 400)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in leaked + others)
    (files / "web.jsonl").write_text(lines)
    wrong = config(files, RemoveParagraphs(), max_documents=100)
    with pytest.raises(UserError, match=r"12 of 392 documents contain.*0\.10%.*quiz \(12 docum"):
        curate(wrong, tmp_path / "out", num_workers=1)
    assert not list((tmp_path / "out").glob("documents-*"))
    # The work is kept for another limit.
    allowed = config(files, RemoveParagraphs(), max_documents=100, max_changed=0.1)
    curate(allowed, tmp_path / "out", num_workers=1)
    assert {match.action for match in read_matches(tmp_path / "out")} == {"removed", "dropped"}
    # A document of which nothing remains is not "empty" in the ledger.
    ledger = read_ledger(sorted((tmp_path / "out").glob("ledger-*")))
    assert Counter(row.reason for row in ledger if row.reason) == {"contaminated: quiz": 11}


def test_items_with_equal_ids_are_counted_one_by_one(files, tmp_path):
    """A second corpus in one process, in the same folder, also searches its own items."""
    quiz, web = files / "quiz.jsonl", files / "web.jsonl"
    whole = quiz.read_text()
    quiz.write_text(whole.splitlines()[2] + "\n")
    curate(config(files, ReportOnly()), tmp_path / "out", num_workers=1)
    assert counts_of_items(tmp_path / "out") == [("whole text", 0, 0, 0)]
    shutil.rmtree(tmp_path / "out")
    quiz.write_text(whole)
    web.write_text(web.read_text() + json.dumps({"text": f"{MEDIUM}. {PASSAGE}"}) + "\n")
    equal_ids = config(files, DropDocuments(), id="passage")
    curate(equal_ids, tmp_path / "out", num_workers=1)
    assert [item.id for item in read_item_rows(tmp_path / "out")] == [PASSAGE, "", "", ""]
    # The context of the dropped document is no longer in the corpus, that of another one is.
    assert [counts[1:] for counts in counts_of_items(tmp_path / "out")] == [
        (0, 1, 1),
        (0, 0, 2),
        (0, 0, 0),
        (0, 0, 0),
    ]


def test_examples_that_cannot_be_searched_are_not_clean():
    def group(rule: SearchRule, *documents: int) -> str:
        example = TextExample(id="0", text=LONG)
        digest = item_of_example(example, "t").digest
        found = FoundItems([item_row("a", documents[0], documents[1], rule=rule, digest=digest)])
        return found.group_of(example, "t")

    assert group("13-grams", 0, 0) == "clean"
    assert group("13-grams", 0, 1) == group("common phrase", 0, 1) == "context_found"
    assert group("common phrase", 1, 1) == "found"
    for rule in ("too short", "common phrase", "no words"):
        assert group(rule, 0, 0) == "not_searchable"


def item_row(item: str, inputs: int, contexts: int, **fields: Any) -> ItemRow:
    counts = {"input_documents": inputs, "context_documents": contexts}
    values = {"rule": "13-grams", "digest": ord(item), **counts, **fields}
    return ItemRow(set_name="quiz", split="test", id=item, **values)


def test_changed_evaluation_files_over_old_output_are_refused(files, tmp_path):
    curate(config(files, ReportOnly()), tmp_path / "out", num_workers=1)
    (files / "quiz.jsonl").write_text('{"text": "changed", "passage": ""}\n')
    with pytest.raises(UserError, match="files of an evaluation set were added, removed or chan"):
        curate(config(files, ReportOnly()), tmp_path / "out", num_workers=1)
    (files / "quiz.jsonl").unlink()
    with pytest.raises(UserError, match=r"quiz\.jsonl"):
        curate(config(files, ReportOnly()), tmp_path / "new", num_workers=1)
    assert not (tmp_path / "new" / "plan.json").exists()
    steps = (*config(files, ReportOnly()).steps, ExactDuplicates())
    with pytest.raises(ConfigError, match="ExactDuplicates comes after Decontamination"):
        dataclasses.replace(config(files, ReportOnly()), steps=steps)
    two = dataclasses.replace(config(files, ReportOnly())).steps * 2
    with pytest.raises(ConfigError, match="two steps Decontamination; expected one"):
        dataclasses.replace(config(files, ReportOnly()), steps=two)


def test_paragraphs_are_removed_whole_unless_they_are_long():
    text = "a b\nc d\n\ne f\ng h\n\ni"
    start = text.index("g h")
    assert lines_to_remove(text, [(start, start + 3)]) == {3, 4}
    assert lines_to_remove(text, [(2, start + 1)]) == {0, 1, 2, 3, 4}
    assert lines_to_remove(text, []) == set()
    long = "\n".join(["x " * 40] * 20)
    assert lines_to_remove(long, [(85, 165)]) == {1, 2}


def test_squad_2_is_found_in_squad_1(shared, tmp_path):
    """The dev sets of SQuAD 1.1 and 2.0 have the same articles: a natural contamination."""
    with gzip.open(shared / "squad" / "v2.0" / "cs224n-dev-v2.0.json.gz") as file:
        articles = json.load(file)["data"][:3]
    with gzip.open(shared / "squad" / "dev-v1.1.json.gz") as file:
        squad = json.load(file)
    titles = {article["title"] for article in articles}
    squad["data"] = [article for article in squad["data"] if article["title"] in titles]
    (tmp_path / "dev.json").write_text(json.dumps(squad))
    contexts = [p["context"] for article in articles for p in article["paragraphs"]]
    asked = [q for a in articles for p in a["paragraphs"] for q in p["qas"]]
    documents = [*contexts, "\n".join(each["question"] for each in asked)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    (tmp_path / "raw.jsonl").write_text(lines)
    dev = TaskItems(task=Squad(dev=str(tmp_path / "dev.json")), name="squad")
    source = Source(name="web", files=TextFiles(str(tmp_path / "raw.jsonl")))
    step = Decontamination(sets=(dev,), action=ReportOnly())
    curate(CurationConfig(sources=(source,), steps=(step,)), tmp_path / "out", num_workers=1)
    matches = read_matches(tmp_path / "out")
    assert len({match.document for match in matches if match.role == "context"}) == len(contexts)
    # SQuAD 2.0 has the questions of 1.1, and others without an answer.
    questions = {each["question"] for each in asked}
    expected = {
        q["id"]
        for article in squad["data"]
        for p in article["paragraphs"]
        for q in p["qas"]
        if q["question"] in questions and len(word_keys(q["question"])) >= 8
    }
    found = {match.item for match in matches if match.role == "input"}
    assert len(expected) > 50
    assert len(found & expected) >= 0.95 * len(expected)


def test_recipe_reports_glue_and_refuses_nothing_to_search(shared, tmp_path, capsys):
    rte = (shared / "glue" / "RTE" / "dev.tsv").read_text().splitlines()[:60]
    (tmp_path / "glue" / "RTE").mkdir(parents=True)
    (tmp_path / "glue" / "RTE" / "dev.tsv").write_text("\n".join(rte) + "\n")
    (tmp_path / "a.txt").write_text(rte[5].split("\t")[1] + "\n")
    arguments = [f"files={tmp_path}/a.txt", f"glue_dir={tmp_path}/glue"]
    command = ["curate", "contamination", "--output", str(tmp_path / "out"), "--workers", "1"]
    assert main([*command, "--arg", *arguments]) == 0
    assert "glue/rte: 1 of 59 items found as input (in 1 documents)" in capsys.readouterr().out
    parquet = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [rte[5].split("\t")[1]]}), parquet)
    recipe = load_recipe("curate/contamination")
    config = call_recipe(recipe, [f"files={parquet}", arguments[1]], "contamination")
    ((document,),) = [[*unit.documents()] for unit in make_units(config)]
    assert document.text == rte[5].split("\t")[1]
    assert main([*command, "--arg", arguments[0]]) == 2
    assert "expected --arg glue_dir=, squad=, conll= or items=" in capsys.readouterr().err
    assert main([*command, "--arg", arguments[0], f"glue_dir={tmp_path}"]) == 2
    assert "no task of GLUE in this folder" in capsys.readouterr().err


def test_item_files_of_several_corpora_are_added_up(tmp_path):
    phrase = item_row("b", 2, 1, rule="common phrase", removed_documents=4)
    corpora = {
        "one": [item_row("a", 0, 1), item_row("b", 1, 1)],
        "two": [phrase, item_row("c", 0, 1)],
    }
    for name, rows in corpora.items():
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / ITEMS_FILE, ItemRow, rows)
    sources, target = [tmp_path / "one", tmp_path / "two"], tmp_path / "merged"
    assert copy_items(sources, target)
    (merged,) = read_item_rows(target)
    assert merged == item_row("b", 3, 2, rule="common phrase", removed_documents=4)
    assert not copy_items([*sources, tmp_path], tmp_path / "incomplete")
    assert not (tmp_path / "incomplete").exists()
