"""`report.html`: a run on one page, which opens offline and loads nothing from elsewhere."""

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.aside import write_aside
from bert_jax.config import flatten
from bert_jax.train import metrics_log, run_folder
from bert_jax.train.curves import column, curves
from bert_jax.train.page import folded, metric_rows, number, page, pairs, section, text, words
from bert_jax.train.progress import duration
from bert_jax.train.task_report import task_sections, task_tiles

FILE = "report.html"
_MOST_ROWS = 20
# The last values of these are shown on top, where they occur.
_TILES = (
    *("loss", "mlm_loss", "mlm_accuracy", "nsp_accuracy"),
    *("accuracy", "exact_match", "f1", "matthews", "pearson"),
)


def write_report(folder: Path) -> Path:
    """Writes `report.html` into a run folder from what the run has written there so far.

    Reads config.json and metrics.jsonl, and evaluation.json and analysis.json if they are there.

    Raises:
      UserError: not a run folder, or a damaged file in it.
    """
    made = run_folder.read_json(folder / run_folder.CONFIG)
    rows = metrics_log.read_metrics(folder / metrics_log.FILE)
    results, analysis = (
        run_folder.read_json(folder / file) if (folder / file).exists() else {}
        for file in (run_folder.EVALUATION, run_folder.ANALYSIS)
    )
    training = [row for row in rows if row["kind"] == metrics_log.TRAIN]
    evaluations = [row for row in rows if row["kind"] == metrics_log.EVALUATION]
    evaluated = _evaluated(made.get("config", {}))
    name = folder.resolve().name
    settings = flatten(made.get("config", {}))
    body = [
        f'<h1>{text(name)}</h1><p class="quiet">config {text(made.get("fingerprint"))}</p>',
        _tiles(training, evaluations, evaluated, task_tiles(analysis) if analysis else []),
        curves(training, evaluations, evaluated),
        task_sections(analysis) if analysis else "",
        section("Evaluation", pairs(flatten(results), ("metric", "value")) if results else ""),
        section("Evaluations during training", metric_rows(evaluations)),
        section("Training", metric_rows(_spread(training, _MOST_ROWS))),
        section("Config", folded(f"{len(settings)} fields", pairs(settings, ("field", "value")))),
        section("Versions", pairs(made.get("versions", {}), ("package", "version"))),
        section("Hardware", pairs(made.get("hardware", {}), ("what", ""))),
    ]
    write_aside(folder / FILE, page(name, "".join(body)))
    return folder / FILE


def _evaluated(config: dict[str, Any]) -> str:
    """What the evaluations during training are of."""
    evaluation = config.get("train", {}).get("evaluation") or {}
    return evaluation.get("split", "held-out")


def _tiles(
    training: Sequence[dict[str, Any]],
    evaluations: Sequence[dict[str, Any]],
    evaluated: str,
    results: list[tuple[str, str]],
) -> str:
    if not training:
        return '<p class="quiet">No step has been logged yet.</p>'
    last, rates = training[-1], column(training, "tokens_per_second")
    tiles = [*results, ("steps", f"{last['step']:,}")]
    tiles += [
        (f"{prefix}{words(name)}", number(name, source[-1][name]))
        for prefix, source in (
            ("training ", training),
            (f"{evaluated} ", [] if results else evaluations),
        )
        for name in _TILES
        if source and source[-1].get(name) is not None
    ]
    if rates:
        tiles.append(("tokens/s, median", f"{statistics.median(y for _, y in rates):,.0f}"))
    # A resumed run counts its seconds anew: add up what each process trained for.
    seconds = [row.get("seconds") or 0.0 for row in training]
    ends = [a for a, b in itertools.pairwise(seconds) if b < a] + seconds[-1:]
    tiles.append(("training time", duration(sum(ends))))
    cells = (f'<div class="card"><b>{text(v)}</b>{text(name)}</div>' for name, v in tiles)
    return f'<div class="tiles">{"".join(cells)}</div>'


def _spread(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (most - 1))] for index in range(most)]
