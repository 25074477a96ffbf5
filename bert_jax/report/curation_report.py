"""Writes `curation.html`, a self-contained page about a curated corpus that works offline."""

import difflib
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import atomic_write
from bert_jax.config_lib import flatten, to_json
from bert_jax.data.corpus.contamination.passes import REASON as CONTAMINATED
from bert_jax.data.corpus.curation.ledger import RETAINED, LedgerRow
from bert_jax.data.corpus.curation.plan import CurationConfig
from bert_jax.data.corpus.curation.review import Review, count_broken, review
from bert_jax.data.corpus.curation.sample import quantiles, rule_limits
from bert_jax.data.corpus.curation.signals import SIGNALS
from bert_jax.json_io import read_json
from bert_jax.report.curation_charts import (
    format_limits,
    format_number,
    format_percent,
    histogram,
    signal_title,
)
from bert_jax.report.curation_tables import contamination_section, languages_section
from bert_jax.report.html import (
    card,
    definition_list,
    details,
    escape,
    html_page,
    key_value_table,
    section,
    table,
)

REPORT_FILE = "curation.html"
_SHOWN_WORDS = 200
_QUANTILES = (0.05, 0.5, 0.95)


def write_curation_report(config: CurationConfig, output: Path) -> Path:
    """Writes `curation.html` into the folder of a curated corpus.

    It reads the input again, for examples of dropped documents and for the signals of a sample.

    Raises:
      UserError: the corpus is unfinished, or the input cannot be read.
    """
    manifest, content = read_json(output / "manifest.json"), review(config, output)
    body = [
        _header(output, manifest),
        _flow(content),
        _lines(manifest),
        _rules(config, content),
        _histograms(config, content),
        _other_signals(config, content),
        languages_section(content.measured),
        _examples(content),
        _pairs(content),
        contamination_section(output),
        _data_card(config, manifest, content),
    ]
    atomic_write(
        output / REPORT_FILE, html_page(f"{output.resolve().name}: curation", "".join(body))
    )
    return output / REPORT_FILE


def _header(output: Path, manifest: dict[str, Any]) -> str:
    counts = manifest["counts"]
    retained, total = counts["retained_documents"], counts["documents"]
    facts = {
        "Documents": f"{retained:,} of {total:,} ({format_percent(retained, total)})",
        "Characters": f"{counts['retained_characters']:,} of {counts['characters']:,} "
        f"({format_percent(counts['retained_characters'], counts['characters'])})",
        "bert_jax": manifest["bert_jax"],
    }
    return f"<h1>{escape(output.resolve().name)}: curation</h1>" + definition_list(facts, "facts")


def _flow(content: Review) -> str:
    """Returns what happened to the documents of each source, by reason."""
    rows: list[list[str]] = []
    for source, flows in content.flows.items():
        total = sum(flow.documents for flow in flows.values())
        characters = sum(flow.characters for flow in flows.values())
        rows.append([source, f"{total:,}", "100%", f"{characters:,}", "100%"])
        ordered = sorted(flows.items(), key=lambda item: (item[0] != RETAINED, -item[1].documents))
        for reason, flow in ordered:
            is_retained = reason == RETAINED
            count = flow.retained_characters if is_retained else flow.characters
            rows.append(
                [
                    f"{source} – {'kept' if is_retained else reason}",
                    *(f"{flow.documents:,}", format_percent(flow.documents, total)),
                    *(f"{count:,}", format_percent(count, characters)),
                ]
            )
            # Negative if edits made the documents longer; without it, the sum is not 100 %.
            removed = flow.characters - flow.retained_characters
            if is_retained and removed:
                name = f"{source} – removed from kept documents"
                rows.append([name, "–", "–", f"{removed:,}", format_percent(removed, characters)])
    header = ("source – reason", "documents", "of source", "characters", "of source")
    return section("Documents by source and reason", table(header, rows))


def _lines(manifest: dict[str, Any]) -> str:
    content = ""
    for title, name in (("removed lines", "removed_lines"), ("reading and edits", "read_counts")):
        counts = manifest.get(name) or {}
        content += table((title, "count"), [[key, f"{count:,}"] for key, count in counts.items()])
    return section("Removed lines and repairs", content)


def _rules(config: CurationConfig, content: Review) -> str:
    """Returns what each rule drops of the sample, alone and together with other rules."""
    broken, only = count_broken(content.measured)
    total = len(content.measured)
    rows = [
        [
            reason,
            format_limits(rule),
            f"{broken[reason]:,}",
            format_percent(broken[reason], total),
            f"{only[reason]:,}",
            format_percent(only[reason], total),
        ]
        for limits in rule_limits(config).values()
        for reason, rule in limits
    ]
    rows.sort(key=lambda row: -int(row[2].replace(",", "")))
    note = (
        f"Measured on {total:,} of {content.num_sampled:,} sampled documents "
        f"({format_percent(content.fraction, 1)} of the input, chosen by hash): those that the "
        "rules for lines keep. A document counts for every rule that it breaks. Only this rule: "
        "documents that break no other rule."
    )
    header = ("rule", "keeps", "breaks it", "of measured", "only this rule", "of measured")
    rendered = table(header, rows, caption=note)
    return section("What each rule drops", rendered)


def _histograms(config: CurationConfig, content: Review) -> str:
    """Returns a histogram of each signal that a rule limits, with the limits as dashed lines."""
    cards = []
    for signal, limits in rule_limits(config).items():
        values = [each.signals[signal] for each in content.measured if signal in each.signals]
        if values:
            bounds = [
                bound
                for _, rule in limits
                for bound in (rule.at_least, rule.at_most)
                if bound is not None
            ]
            name = signal_title(signal, limits[0][0], config)
            cards.append(card(histogram(values, bounds, name), title=name))
    if not cards:
        return ""
    note = (
        '<p class="quiet">Dashed: limits of the rules; limits far from all values are not drawn. '
        "Values above the 99th percentile are in the last bar.</p>"
    )
    return f'<h2>Signals</h2>{note}<div class="charts">{"".join(cards)}</div>'


def _other_signals(config: CurationConfig, content: Review) -> str:
    """Returns quantiles of the signals that no rule limits."""
    if not content.measured:
        return ""
    limited = rule_limits(config)
    rows = [
        [name.replace("_", " "), *map(format_number, quantiles(values, _QUANTILES))]
        for name in SIGNALS
        if name not in limited
        for values in [[each.signals[name] for each in content.measured]]
    ]
    rendered = table(("signal", "5 %", "median", "95 %"), rows)
    return section("Signals without a limit", details(f"{len(rows)} signals", rendered))


def _examples(content: Review) -> str:
    """Returns some documents of each reason, chosen by hash."""
    parts = []
    for reason, flow in content.reasons().items():
        rows = content.examples.get(reason, [])
        if rows:
            items = "".join(_example(row, content) for row in rows)
            parts.append(details(f"{reason} ({flow.documents:,} documents)", items))
    return section("Examples of dropped documents", "".join(parts))


def _example(row: LedgerRow, content: Review) -> str:
    facts = {"document": row.id, "characters": f"{row.characters:,}"}
    if row.value is not None:
        facts["value"] = format_number(row.value)
    if row.twin:
        is_item = row.reason.startswith(CONTAMINATED)
        facts["evaluation item" if is_item else "duplicate of"] = row.twin
    words = content.texts.get(row.id, "").split()
    text = " ".join(words[:_SHOWN_WORDS]) + (" …" if len(words) > _SHOWN_WORDS else "")
    return f'<div class="card">{definition_list(facts, "facts")}<p>{escape(text)}</p></div>'


def _pairs(content: Review) -> str:
    """Returns near-duplicates side by side, with the words that differ marked."""
    rows = []
    for row in content.pairs:
        dropped, twin = (content.texts.get(name, "") for name in (row.id, row.twin))
        left, right = mark_differences(dropped, twin)
        similarity = format_number(row.value or 0.0)
        rows.append(
            f"<tr><td>dropped: {escape(row.id)}, similarity {similarity}<p>{left}</p></td>"
            f"<td>duplicate of: {escape(row.twin)}<p>{right}</p></td></tr>"
        )
    if not rows:
        return ""
    return section(
        "Near-duplicates side by side",
        '<table class="words"><caption>Later steps may have dropped the document on the right too.'
        f"</caption><tbody>{''.join(rows)}</tbody></table>",
    )


def mark_differences(first: str, second: str) -> tuple[str, str]:
    """Returns the beginnings of two texts as HTML, with <mark> around words that differ."""
    words = [text.split()[:_SHOWN_WORDS] for text in (first, second)]
    rendered: tuple[list[str], list[str]] = ([], [])
    matcher = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False)
    for kind, begin_a, end_a, begin_b, end_b in matcher.get_opcodes():
        for side, begin, end in ((0, begin_a, end_a), (1, begin_b, end_b)):
            text = escape(" ".join(words[side][begin:end]))
            if text:
                rendered[side].append(text if kind == "equal" else f"<mark>{text}</mark>")
    return " ".join(rendered[0]), " ".join(rendered[1])


def _data_card(config: CurationConfig, manifest: dict[str, Any], content: Review) -> str:
    """Returns what someone needs who uses the corpus or builds it again."""
    settings = flatten(to_json(config))
    counts = {
        source: f"{flows.get(RETAINED, (0,))[0]:,} documents kept"
        for source, flows in content.flows.items()
    }
    facts = {
        **{f"source {name}": text for name, text in counts.items()},
        "fingerprint": manifest.get("fingerprint", ""),
        "private data": "names of people stay in the text",
    }
    if config.rule_sets or config.lines:
        facts["known bias"] = (
            "rules of English web text drop verse, lists, code and other languages more often than "
            "prose"
        )
    shards = [
        [shard["file"], f"{shard['documents']:,}", shard["sha256"]] for shard in manifest["shards"]
    ]
    return section(
        "Data card",
        key_value_table(facts, ("fact", "value"))
        + details(f"{len(settings)} settings", key_value_table(settings, ("setting", "value")))
        + details(
            f"{len(shards)} files", table(("file", "documents", "SHA-256 of the text"), shards)
        ),
    )
