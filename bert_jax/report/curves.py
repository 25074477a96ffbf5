"""Renders the curves of a report: one chart for metrics of like scale, training smoothed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.report.html import escape, humanize, value_formatter
from bert_jax.report.run_data import Row, RunData, nested
from bert_jax.report.svg_charts import Series, line_chart, smooth

# The metrics of each chart, which have the same scale; other metrics get their own chart.
_LEARNING: tuple[tuple[str, ...], ...] = (
    ("mlm_loss",),
    ("diffusion_loss",),
    ("nsp_loss",),
    ("sop_loss",),
    ("sbo_loss",),
    ("rtd_loss",),
    ("lm_loss",),
    ("loss",),
    ("mlm_accuracy",),
    ("diffusion_accuracy",),
    ("nsp_accuracy",),
    ("sop_accuracy",),
    ("sbo_accuracy",),
    ("rtd_precision", "rtd_recall"),
    ("sampled_accuracy",),
    ("lm_accuracy",),
    ("accuracy",),
    ("token_accuracy",),
    ("start_accuracy", "end_accuracy"),
    ("exact_match",),
    ("f1", "f1_macro"),
    ("matthews",),
    ("pearson", "spearman"),
    ("mlm_loss_masked", "mlm_loss_random", "mlm_loss_kept"),
    ("mlm_accuracy_masked", "mlm_accuracy_random", "mlm_accuracy_kept"),
)
_SPEED = ("learning_rate", "grad_norm", "tokens_per_second", "mfu", "padding_fraction")
_TITLES = {
    "mlm_loss_masked": "Masked-LM loss by what the position shows",
    "mlm_accuracy_masked": "Masked-LM accuracy by what the position shows",
    "rtd_precision": "Precision and recall of replaced tokens",
    "start_accuracy": "Accuracy of the answer's start and end",
    "pearson": "Correlation",
    "tokens_per_second": "Tokens per second",
    "padding_fraction": "Padding, in percent of all positions",
    "learning_rate": "Learning rate (from the config)",
}
# No chart: duplicates of other metrics, constants, and fields that are not metrics.
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
_MIN_SMOOTHED = 12  # shorter curves are not smoothed
_SPANS_PER_CURVE = 12
_DECAY_POINTS = 20  # of the line that draws a decay by a square root
_MIN_EVALUATIONS = 4  # metrics with fewer evaluations are in the table only


def curves(run: RunData) -> str:
    """Returns all charts, with a sentence about smoothing and one about the phases."""
    names = _metric_names(run)
    groups = [group for group in _LEARNING if any(name in names for name in group)]
    groups += _task_charts(names)
    grouped = {*_SPEED, *(name for group in groups for name in group)}
    others = [name for name in names if name not in grouped]
    evaluated = [name for name in others if metric_points(run.evaluations, name)]
    learning = [_chart(run, group) for group in (*groups, *((name,) for name in evaluated))]
    not_evaluated = (name for name in others if name not in evaluated)
    speed = [_chart(run, (name,)) for name in (*_SPEED, *not_evaluated)]
    sections = (("Curves", learning, _notes(run)), ("Optimization and speed", speed, ""))
    return "".join(
        f'<h2>{title}</h2>{note}<div class="charts">{"".join(charts)}</div>'
        for title, charts, note in sections
        if any(charts)
    )


def metric_points(rows: Iterable[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """Returns the (step, value) pairs of one metric, without rows that lack it."""
    return [(row["step"], row[name]) for row in rows if isinstance(row.get(name), (int, float))]


def _metric_names(run: RunData) -> list[str]:
    rows: Sequence[Row] = (*run.training, *run.evaluations)
    names = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in names if name.rpartition("/")[2] not in _NOT_CHARTED]
    # The total loss of an objective with one loss is that loss again.
    losses = ("mlm_loss", "diffusion_loss", "nsp_loss", "sop_loss", "sbo_loss", "lm_loss")
    is_duplicate = sum(name in names for name in losses) == 1
    return [name for name in names if not (is_duplicate and name == "loss")]


def _task_charts(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the charts of a multi-task run: for each metric, such as "rte/loss", all tasks."""
    charts: dict[str, list[str]] = {}
    for name in (n for n in names if "/" in n):
        charts.setdefault(name.rpartition("/")[2], []).append(name)
    return [tuple(names) for names in charts.values()]


def _chart(run: RunData, names: Sequence[str]) -> str:
    """Returns the chart of some metrics; "" if the run has none of them."""
    training = {name: metric_points(run.training, name) for name in names}
    evaluations = {name: metric_points(run.evaluations, name) for name in names}
    if not any(training.values()):
        is_main = run.best_metric in names
        longest = max((len(points) for points in evaluations.values()), default=0)
        if longest < (2 if is_main else _MIN_EVALUATIONS):
            return ""
    # Many lines in one chart: the evaluations, which are less noisy, are enough.
    if len(names) > 1 and any(evaluations.values()):
        training = {}
    lines = []
    for name in names:
        label = _label(name) if len(names) > 1 else ""
        if points := training.get(name):
            lines.append(_training_line(run, name, label or "training", points))
        if points := evaluations[name]:
            text = f"{run.eval_split}: {label}" if label else run.eval_split
            lines.append(Series(label=text, points=points, dots=True))
    first = names[0]
    title = _TITLES.get(first) or humanize(first.rpartition("/")[2] if len(names) > 1 else first)
    is_total = first == "loss" and run.is_pretraining
    title = "Total loss" if is_total else title[:1].upper() + title[1:]
    title += " of each task" if "/" in first and len(names) > 1 else ""
    chart = line_chart(lines, title=title, format_y=value_formatter(first), phases=run.phases)
    return f'<div class="card"><h3>{escape(title)}</h3>{chart}</div>' if chart else ""


def _label(name: str) -> str:
    for suffix, text in (
        ("_masked", "shows [MASK]"),
        ("_random", "shows a random token"),
        ("_kept", "shows the true token"),
    ):
        if name.startswith("mlm_") and name.endswith(suffix):
            return text
    return name.rpartition("/")[0] or humanize(name)


def _training_line(
    run: RunData, name: str, label: str, points: list[tuple[float, float]]
) -> Series:
    if name == "learning_rate" and (schedule := _schedule(run)):
        return Series(label="schedule", points=schedule)
    if name == "learning_rate" or len(points) < _MIN_SMOOTHED:
        return Series(label=label, points=points)
    # Averages start again in each phase, because losses of sequences of different lengths cannot
    # be compared.
    ends = [phase.end for phase in run.phases]
    return Series(label=label, points=smooth(points, _span(run), ends), raw=points)


def _span(run: RunData) -> int:
    """Returns the number of logged values that the moving averages extend over."""
    return max(5, len(run.training) // _SPANS_PER_CURVE)


def _schedule(run: RunData) -> list[tuple[float, float]]:
    """Returns the corners of the learning rate's schedule up to the last logged update.

    The logged values would miss a warmup that is shorter than the interval between them.
    """
    schedule, end = nested(run.config, "train", "schedule"), run.total_steps
    kind = nested(schedule, "type")
    if kind not in ("WarmupLinear", "WarmupStableDecay") or not end:
        return []
    peak, warmup = schedule["peak_learning_rate"], schedule["warmup_steps"]
    corners = [(0.0, 0.0 if warmup else peak), (warmup, peak)]
    if kind == "WarmupLinear":
        corners.append((end, 0.0))
    else:
        decay = schedule["decay_steps"]
        fractions = [i / _DECAY_POINTS for i in range(_DECAY_POINTS + 1)] if decay else [0.0]
        # The decay by a square root is not a line, so it is drawn by points.
        corners += [(end - decay * (1 - x), peak * (1 - x**0.5)) for x in fractions]
    last = run.last_step
    line = [point for point in corners if point[0] < last]
    (x1, y1) = line[-1]
    (x2, y2) = corners[len(line)] if len(line) < len(corners) else line[-1]
    return [*line, (last, y1 + (y2 - y1) * (last - x1) / (x2 - x1))] if x2 > x1 else line


def _notes(run: RunData) -> str:
    """Returns sentences that explain the lines of the charts."""
    sentences = []
    if len(run.training) >= _MIN_SMOOTHED:
        sentences.append(
            "Faint lines are logged values of training batches; strong lines are their exponential "
            f"moving averages over about {_span(run)} logged values. Dots are evaluations."
        )
    if len(run.phases) > 1:
        parts = ", then ".join(
            f"{phase.name} up to update {phase.end:,.0f}" for phase in run.phases
        )
        sentences.append(
            f"The sequences have {parts}. Dashed vertical lines mark the change; losses "
            "before and after it are of different sequences and cannot be compared."
        )
    if any("mlm_loss_kept" in row for row in (*run.training[:1], *run.evaluations[:1])):
        sentences.append(
            "Of the tokens to predict, most show [MASK], some a random token, and some the true "
            "token, which is easy to predict."
        )
    return "".join(f'<p class="quiet">{escape(sentence)}</p>' for sentence in sentences)
