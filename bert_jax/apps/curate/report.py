"""Writes the report page of a curated corpus: tables, charts, examples.

Also formats the numbers of the report on a curated corpus.
"""

import difflib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.apps.curate.decontamination import REASON as CONTAMINATED
from bert_jax.apps.curate.ledger import RETAINED, LedgerRow
from bert_jax.apps.curate.model_signals import ModelSignal
from bert_jax.apps.curate.plan import CurationConfig, Rule
from bert_jax.apps.curate.sample import (
    MeasuredDocument,
    Review,
    count_broken,
    quantiles,
    review,
    rule_limits,
)
from bert_jax.apps.curate.signals import SIGNALS
from bert_jax.config.config_lib import flatten, to_json
from bert_jax.data.corpus.contamination.found_items import (
    ITEMS_FILE,
    NOT_SEARCHABLE,
    read_item_rows,
)
from bert_jax.io.atomic_io import atomic_write
from bert_jax.io.json_io import read_json
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
from bert_jax.report.svg_charts import HEIGHT, PlotArea, svg, ticks

_NUM_BINS = 30


def histogram(values: Sequence[float], bounds: Sequence[float], title: str) -> str:
    """Draws a histogram with dashed lines at some values.

    Args:
      title: the label for screen readers.
    """
    (top,) = quantiles(values, (0.99,))
    low = min(values)
    # A limit far from all values (100,000 words) would leave one bar; equal values have one anyway.
    margin = 2 * (top - low) or float("inf")
    near = [bound for bound in bounds if low - margin <= bound <= top + margin]
    low, high = min([low, *near]), max([top, *near])
    axis = ticks(low, high)
    low, high = axis[0], axis[-1]
    counts = [0] * _NUM_BINS
    for value in values:
        counts[min(_NUM_BINS - 1, int((value - low) / (high - low) * _NUM_BINS))] += 1
    count_ticks = ticks(0, max(counts))
    area = PlotArea(low_x=low, high_x=high, low_y=0, high_y=count_ticks[-1])
    parts = [area.axes(axis, count_ticks, "value", format_number, format_number)]
    width = (high - low) / _NUM_BINS
    for index, count in enumerate(counts):
        left, right = low + index * width, low + (index + 1) * width
        tooltip = escape(f"{format_number(left)} to {format_number(right)}: {count:,} documents")
        parts.append(
            f'<rect x="{area.x(left):.1f}" y="{area.y(count):.1f}" class="c0" '
            f'width="{area.x(right) - area.x(left) - 0.5:.1f}" '
            f'height="{area.y(0) - area.y(count):.1f}"><title>{tooltip}</title></rect>'
        )
    parts += [
        area.line((bound, 0), (bound, count_ticks[-1]), "bound")
        for bound in bounds
        if low <= bound <= high
    ]
    limits = ", ".join(map(format_number, bounds))
    return svg(f"Histogram of {title}, {len(values):,} documents, limits {limits}", parts, HEIGHT)


def format_number(value: float) -> str:
    """Formats a number with at most four significant digits, or as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def signal_title(signal: str | ModelSignal, reason: str, config: CurationConfig) -> str:
    """Returns the name of a signal, or the reason of a rule if two signals have this name."""
    names = [each if isinstance(each, str) else each.name for each in rule_limits(config)]
    name = signal if isinstance(signal, str) else signal.name
    return name.replace("_", " ") if names.count(name) == 1 else reason


def format_limits(rule: Rule) -> str:
    """Formats the limits of a rule, such as "≥ 50, ≤ 100,000"."""
    parts: list[str] = []
    if rule.at_least is not None:
        parts.append(f"≥ {format_number(rule.at_least)}")
    if rule.at_most is not None:
        parts.append(f"≤ {format_number(rule.at_most)}")
    return ", ".join(parts)


def format_percent(part: float, whole: float) -> str:
    """Formats a fraction as percent; "0%" and "100%" mean none and all, never a rounded value."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < abs(percent) < 0.01:
        return "<0.01%" if percent > 0 else ">-0.01%"
    return ">99.9%" if 99.95 <= percent < 100 else f"{percent:.3g}%"


def contamination_section(output: Path) -> str:
    """Returns how many items of each evaluation set were found; "" if none was searched."""
    if not (output / ITEMS_FILE).is_file():
        return ""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in read_item_rows(output):
        group = "input" if row.input_documents else "context" if row.context_documents else ""
        count = counts.setdefault((row.set_name, row.split), Counter())
        count["items"] += 1
        count[group] += 1
        count["removed"] += row.removed_documents > 0
        count["not searchable"] += row.rule in NOT_SEARCHABLE
    rows = [
        [
            f"{name}, {split}",
            f"{found['items']:,}",
            *(f"{found['input']:,}", format_percent(found["input"], found["items"])),
            *(f"{found[name]:,}" for name in ("context", "removed", "not searchable")),
        ]
        for (name, split), found in sorted(counts.items())
    ]
    header = (
        *("evaluation set", "items", "input in the corpus", "of items"),
        *("only a context", "input removed", "not searchable"),
    )
    note = (
        "“Input removed” counts items of which a document or its lines were removed. Items that "
        "are too short or common phrases are not searchable. Paraphrases are not found."
    )
    return section("Evaluation items in the corpus", table(header, rows, caption=note))


def languages_section(measured: Sequence[MeasuredDocument]) -> str:
    """Returns documents and words by language, before and after the rules; "" without the model."""
    counts: dict[str, Counter[str]] = {}
    for document in measured:
        if document.language is None:
            return ""
        count = counts.setdefault(document.language or "not clear", Counter())
        words = int(document.signals["words"])
        count["documents"] += 1
        count["words"] += words
        if not document.broken:
            count["retained"] += 1
            count["retained words"] += words
    total = sum(counts.values(), Counter[str]())
    rows = [
        [
            name,
            f"{count['documents']:,}",
            *(f"{count['words']:,}", format_percent(count["words"], total["words"])),
            f"{count['retained']:,}",
            f"{count['retained words']:,}",
            format_percent(count["retained words"], total["retained words"]),
        ]
        for name, count in sorted(counts.items(), key=lambda item: (-item[1]["words"], item[0]))
    ]
    header = (
        *("language", "documents", "words", "of words"),
        *("documents that the rules keep", "words", "of words"),
    )
    note = (
        "The most probable language of the middle of each measured document, by fastText's model "
        "lid.176, if its probability is at least 0.5."
    )
    return section("Languages", table(header, rows, caption=note))


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
