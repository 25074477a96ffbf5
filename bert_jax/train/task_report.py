"""What a report shows of a fine-tuning run: how good its predictions are, and where they go wrong.

All of it comes from the run's `analysis.json` (see `bert_jax.evals.analysis`), so a report can be
written anew at any time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.train.page import card, folded, metric_rows, number, section, table, text, words
from bert_jax.train.task_charts import reliability_diagram, scatter

Analysis = Mapping[str, Any]

MOST_CLASSES = 20
"""In a confusion matrix; for more classes the commonest confusions are listed."""

_RIGHT, _WRONG = "0,114,178", "213,94,0"  # of a confusion matrix's shades
_LOSS = {
    "classification": "loss",
    "multiple_choice": "loss",
    "regression": "distance",
    "tagging": "wrong entities",
    "question_answering": "lost F1 × probability",
}


def task_tiles(analysis: Analysis) -> list[tuple[str, str]]:
    """(name, value) of each labelled split's headline metrics; of several tasks the first alone."""
    return [
        (f"{name} {split} {words(row['metric'])}".strip(), number(row["metric"], row["value"]))
        for name, one in _tasks(analysis).items()
        for split, found in one["splits"].items()
        for row in (found["headline"][:1] if name else found["headline"])
    ]


def task_sections(analysis: Analysis) -> str:
    """HTML: results with their intervals, then each labelled split, then the notes on the data.

    Of several tasks: how often they were drawn, the results of all, and the rest one by one.
    """
    tasks = _tasks(analysis)
    parts = [
        section("Tasks", metric_rows(analysis.get("mixture", ()), "task")),
        section("Results", _results(tasks)),
    ]
    for name, one in tasks.items():
        for split, found in one["splits"].items():
            cards = "".join(_cards(one, split, found))
            parts.append(f"<h2>{text(_headed(name, f'On {split}'))}</h2>{cards}" if cards else "")
        rows = [(split, f"{count:,}") for split, count in one["examples"].items()]
        notes = "".join(f"<li>{text(note)}</li>" for note in one["notes"])
        data = table(("split", "examples"), rows) + (f"<ul>{notes}</ul>" if notes else "")
        parts.append(section(_headed(name, f"Data: {one['task']}"), data))
    return "".join(parts)


def _tasks(analysis: Analysis) -> Mapping[str, Analysis]:
    """Name -> analysis of each of several tasks; "" is the name of one alone."""
    return analysis.get("tasks", {"": analysis})


def _headed(name: str, title: str) -> str:
    return f"{name}: {title}" if name else title


def _results(tasks: Mapping[str, Analysis]) -> str:
    rows = [
        (
            _headed(name, f"{split} ({found['examples']:,})"),
            words(row["metric"]),
            number(row["metric"], row["value"]),
            f"{number(row['metric'], row['low'])} to {number(row['metric'], row['high'])}",
        )
        for name, one in tasks.items()
        for split, found in one["splits"].items()
        for row in found["headline"]
    ]
    step = next(iter(tasks.values()))["step"]
    return table(
        ("split (examples)", "metric", "value", "95 % interval"),
        rows,
        caption=f"Parameters of step {step:,}. Intervals are bootstrapped over the examples; how "
        "training runs of other seeds would vary is not in them.",
    )


def _cards(analysis: Analysis, split: str, found: Analysis) -> list[str]:
    kind = analysis["kind"]
    cards = []
    if "classes" in found:
        title = "Entities by type" if kind == "tagging" else "Classes"
        cards.append(card(metric_rows(found["classes"], "name"), title=title))
    if "confusions" in found:
        confusions = _confusions(analysis["labels"], found["confusions"])
        cards.append(card(confusions, title="Confusion matrix"))
    if "entity_errors" in found:
        rows = metric_rows(found["entity_errors"], "type")
        cards.append(card(rows, title="Entity errors by type"))
    if "question_words" in found:
        rows = metric_rows(found["question_words"], "word")
        cards.append(card(rows, title="By question word (0 to 100)"))
    if "calibration" in found:
        cards.append(card(_calibration(found["calibration"]), title="Calibration"))
    if "pairs" in found:
        chart = scatter(found["pairs"], f"predicted values beside the labels of {split}")
        cards.append(card(chart, title="Predicted (upwards) by label"))
    cards.append(card(_worst(found["worst"], _LOSS[kind]), title="Worst errors"))
    return cards


def _confusions(labels: Sequence[str], confusions: Sequence[Sequence[int]]) -> str:
    if len(labels) > MOST_CLASSES:
        wrong = sorted((c for c in confusions if c[0] != c[1]), key=lambda c: -c[2])[:MOST_CLASSES]
        return table(
            ("gold", "predicted", "count"), [(labels[g], labels[p], f"{n:,}") for g, p, n in wrong]
        )
    counts = {(gold, predicted): count for gold, predicted, count in confusions}
    totals = Counter[int]()
    for gold, _, count in confusions:
        totals[gold] += count
    head = "".join(f'<th scope="col">{text(label)}</th>' for label in labels)
    body = "".join(
        f'<tr><th scope="row">{text(label)}</th>'
        + "".join(
            _shaded(counts.get((gold, predicted), 0), totals[gold], gold == predicted)
            for predicted in range(len(labels))
        )
        + "</tr>"
        for gold, label in enumerate(labels)
    )
    return (
        '<table class="numbers"><caption>Each row is a class of the labels, each column what was '
        "predicted; the share is that of the row.</caption>"
        f'<thead><tr><th scope="col">gold \\ predicted</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _shaded(count: int, total: int, right: bool) -> str:
    share = count / total if total else 0.0
    colour = f"rgba({_RIGHT if right else _WRONG},{0.5 * share:.2f})"
    percent = f" <small>{100 * share:.0f}%</small>" if count else ""
    return f'<td style="background:{colour}">{count:,}{percent}</td>'


def _calibration(calibration: Mapping[str, Any]) -> str:
    bins, error = calibration["bins"], number("calibration_error", calibration["error"])
    rows = [
        (
            f"{b['low']:.3f} to {b['high']:.3f}",
            f"{b['count']:,}",
            f"{b['confidence']:.3f}",
            f"{b['accuracy']:.3f}",
        )
        for b in bins
        if b["count"]
    ]
    head = ("confidence", "predictions", "mean confidence", "accuracy")
    return (
        f'<p class="quiet">Expected calibration error {error}: how far a dot is above or below the '
        "dashed line, the mean over all predictions. Bars: accuracy of the predictions of about "
        "one confidence. Dots: the same at their mean confidence. Below: how many they are.</p>"
        f"{reliability_diagram(bins, f'Reliability diagram, expected calibration error {error}')}"
        f"{folded('The same as a table', table(head, rows))}"
    )


def _worst(errors: Sequence[Mapping[str, Any]], loss: str) -> str:
    items = []
    for error in errors:
        fields = [("id", error["id"]), *error["texts"].items()]
        fields += [("gold", error["gold"]), ("predicted", _predicted(error))]
        fields.append((loss, f"{error['loss']:.4g}"))
        rows = "".join(f'<dt>{text(k)}</dt><dd dir="auto">{text(v)}</dd>' for k, v in fields)
        items.append(f"<li><dl>{rows}</dl></li>")
    if not items:
        return '<p class="quiet">None: everything is decided rightly.</p>'
    return f'<ol class="errors">{"".join(items)}</ol>'


def _predicted(error: Mapping[str, Any]) -> str:
    if "probability" not in error:
        return error["predicted"]
    return f"{error['predicted']} ({number('probability', error['probability'])})"
