"""Writes `report.html`, a self-contained page about a run that works offline."""

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import atomic_write
from bert_jax.config_lib import flatten
from bert_jax.report.curves import metric_points, render_curves
from bert_jax.report.html import (
    details,
    escape,
    format_value,
    html_page,
    humanize,
    key_value_table,
    metrics_table,
    section,
)
from bert_jax.report.task_report import report_sections, task_tiles
from bert_jax.runs import metrics, run_folder
from bert_jax.runs.progress import format_duration

FILE = "report.html"
_MAX_ROWS = 20
# The last value of each of these metrics is shown at the top, if the run has it.
_TILES = (
    *("loss", "mlm_loss", "mlm_accuracy", "nsp_accuracy"),
    *("accuracy", "exact_match", "f1", "matthews", "pearson"),
)


def write_report(folder: Path) -> Path:
    """Writes `report.html` into a run folder, also while the run is still training.

    Reads config.json and metrics.jsonl, and evaluation.json and analysis.json if they exist.

    Raises:
      UserError: `folder` is not a run folder, or one of these files is damaged.
    """
    run_info = run_folder.read_run_json(folder / run_folder.CONFIG)
    rows = metrics.read_metrics(folder / metrics.FILE)
    results, analysis = (
        run_folder.read_run_json(folder / file) if (folder / file).exists() else {}
        for file in (run_folder.EVALUATION, run_folder.ANALYSIS)
    )
    training = [row for row in rows if row["split"] == metrics.TRAIN]
    evaluations = [row for row in rows if row["split"] == metrics.EVALUATION]
    eval_split = _eval_split_name(run_info.get("config", {}))
    name = folder.resolve().name
    settings = flatten(run_info.get("config", {}))
    body = [
        f'<h1>{escape(name)}</h1><p class="quiet">config {escape(run_info.get("fingerprint"))}</p>',
        _tiles(training, evaluations, eval_split, task_tiles(analysis) if analysis else []),
        render_curves(training, evaluations, eval_split),
        report_sections(analysis) if analysis else "",
        section(
            "Evaluation", key_value_table(flatten(results), ("metric", "value")) if results else ""
        ),
        section("Evaluations during training", metrics_table(evaluations)),
        section("Training", metrics_table(_evenly_spaced(training, _MAX_ROWS))),
        section(
            "Config",
            details(f"{len(settings)} fields", key_value_table(settings, ("field", "value"))),
        ),
        section("Versions", key_value_table(run_info.get("versions", {}), ("package", "version"))),
        section("Hardware", key_value_table(run_info.get("hardware", {}), ("property", "value"))),
    ]
    atomic_write(folder / FILE, html_page(name, "".join(body)))
    return folder / FILE


def _eval_split_name(config: dict[str, Any]) -> str:
    """Returns the name of the split that is evaluated during training."""
    evaluation = config.get("train", {}).get("evaluation") or {}
    return evaluation.get("split", "held-out")


def _tiles(
    training: Sequence[dict[str, Any]],
    evaluations: Sequence[dict[str, Any]],
    eval_split: str,
    results: list[tuple[str, str]],
) -> str:
    if not training:
        return '<p class="quiet">No step has been logged yet.</p>'
    last, throughput = training[-1], metric_points(training, "tokens_per_second")
    tiles = [*results, ("steps", f"{last['step']:,}")]
    tiles += [
        (f"{prefix}{humanize(name)}", format_value(name, source[-1][name]))
        for prefix, source in (
            ("training ", training),
            (f"{eval_split} ", [] if results else evaluations),
        )
        for name in _TILES
        if source and source[-1].get(name) is not None
    ]
    if throughput:
        tiles.append(("tokens/s, median", f"{statistics.median(y for _, y in throughput):,.0f}"))
    # "seconds" starts at 0 again after a resume: add up the seconds before each restart.
    seconds = [row.get("seconds") or 0.0 for row in training]
    process_seconds = [a for a, b in itertools.pairwise(seconds) if b < a] + seconds[-1:]
    tiles.append(("training time", format_duration(sum(process_seconds))))
    cells = (f'<div class="card"><b>{escape(v)}</b>{escape(name)}</div>' for name, v in tiles)
    return f'<div class="tiles">{"".join(cells)}</div>'


def _evenly_spaced(rows: Sequence[dict[str, Any]], max_rows: int) -> list[dict[str, Any]]:
    """Returns at most `max_rows` evenly spaced rows, including the first and the last."""
    if len(rows) <= max_rows:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (max_rows - 1))] for index in range(max_rows)]
