"""Renders the training curves of a report; related metrics share a chart."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from bert_jax.report.html import escape, humanize, value_formatter
from bert_jax.report.svg_charts import Series, line_chart

# Title and metrics of the charts that show several metrics; other metrics get their own chart.
_CHARTS = (
    ("Loss", ("loss", "mlm_loss", "nsp_loss", "lm_loss")),
    (
        "Accuracy",
        (
            "accuracy",
            "token_accuracy",
            "start_accuracy",
            "end_accuracy",
            "mlm_accuracy",
            "nsp_accuracy",
            "lm_accuracy",
        ),
    ),
    (
        "Masked-LM loss by position type: masked, random, kept",
        ("mlm_loss_masked", "mlm_loss_random", "mlm_loss_kept"),
    ),
    (
        "Masked-LM accuracy by position type: masked, random, kept",
        ("mlm_accuracy_masked", "mlm_accuracy_random", "mlm_accuracy_kept"),
    ),
    ("Exact match (0 to 100)", ("exact_match",)),
    ("F1", ("f1", "f1_macro")),
    ("Precision and recall", ("precision", "recall")),
    ("Matthews correlation", ("matthews",)),
    ("Correlation", ("pearson", "spearman")),
    ("Area under the ROC curve", ("roc_auc",)),
    ("Calibration error", ("calibration_error",)),
    ("Mean squared error", ("mse",)),
    ("Questions with an answer (0 to 100)", ("HasAns_exact", "HasAns_f1")),
    ("Questions without an answer (0 to 100)", ("NoAns_exact", "NoAns_f1")),
    ("At the best threshold for no answer (0 to 100)", ("best_exact", "best_f1")),
    ("Learning rate", ("learning_rate",)),
    ("Gradient norm", ("grad_norm",)),
    ("Tokens per second", ("tokens_per_second",)),
    ("Model FLOPs utilization", ("mfu",)),
    ("Padding fraction", ("padding_fraction",)),
)
# Not drawn: duplicates of other metrics, constants, and fields that are not metrics.
_NOT_CHARTED = (
    "steps_per_second",
    "f1_micro",
    "exact",
    "total",
    "HasAns_total",
    "NoAns_total",
    "best_exact_thresh",
    "best_f1_thresh",
    *("split", "step", "phase", "seconds"),
)


def render_curves(
    training: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]], eval_split: str
) -> str:
    """Returns all charts as HTML, one for each group of metrics that the run has.

    Args:
      training, evaluations: lines of `metrics.jsonl`.
      eval_split: name of the split that the evaluations are of, such as "dev".
    """
    metric_names = list(dict.fromkeys(k for row in (*training, *evaluations) for k in row))
    charted_names = {name for _, names in _CHARTS for name in names}
    # Metrics of multi-task runs, such as "rte/loss": one chart per metric, one line per task.
    names_by_metric: dict[str, list[str]] = {}
    for name in (n for n in metric_names if "/" in n):
        metric = name.rpartition("/")[2]
        if metric not in _NOT_CHARTED:
            names_by_metric.setdefault(metric, []).append(name)
    other_names = [
        n for n in metric_names if n not in charted_names and n not in _NOT_CHARTED and "/" not in n
    ]
    charts = [*_CHARTS, *((humanize(name), (name,)) for name in other_names)]
    charts += [
        (f"{humanize(metric)} of each task", tuple(ns)) for metric, ns in names_by_metric.items()
    ]
    boundaries = [
        float(previous_row["step"])
        for previous_row, next_row in itertools.pairwise(training)
        if previous_row.get("phase") != next_row.get("phase")
    ]
    cards = []
    for title, names in charts:
        if title == "F1" and "exact_match" in metric_names:
            title = "F1 (0 to 100)"
        lines = [Series(label=humanize(n), points=metric_points(training, n)) for n in names]
        lines += [
            Series(label=f"{eval_split} {humanize(n)}", points=points, dots=True)
            for n in names
            if (points := metric_points(evaluations, n))
        ]
        chart = line_chart(
            lines, title=title, format_y=value_formatter(names[0]), boundaries=boundaries
        )
        if chart:
            cards.append(f'<div class="card"><h3>{escape(title)}</h3>{chart}</div>')
    return f'<h2>Curves</h2><div class="charts">{"".join(cards)}</div>' if cards else ""


def metric_points(rows: Iterable[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Returns the (step, value) pairs of one metric, without rows that lack it."""
    return [(row["step"], row[name]) for row in rows if isinstance(row.get(name), (int, float))]
