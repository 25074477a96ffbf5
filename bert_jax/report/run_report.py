"""Writes `report.html`, a self-contained page about a run that works offline."""

from collections.abc import Sequence
from pathlib import Path

from bert_jax.config.config_lib import flatten
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write
from bert_jax.report.curves import curves
from bert_jax.report.facts import attempts_section, facts, files_section, header
from bert_jax.report.headline import headline
from bert_jax.report.html import (
    details,
    escape,
    html_page,
    key_value_table,
    metrics_table,
    section,
)
from bert_jax.report.run_data import Row, RunData, read_run
from bert_jax.report.svg_charts import evenly_spaced
from bert_jax.report.task_report import report_sections
from bert_jax.runs.run_folder import REPORT

_MAX_ROWS = 20
_MAIN_METRICS = (
    *("mlm_loss", "mlm_accuracy", "nsp_accuracy", "sop_accuracy", "sbo_accuracy"),
    *("rtd_loss", "rtd_accuracy", "lm_loss", "lm_accuracy"),
    *("accuracy", "f1", "exact_match", "f1_macro", "matthews", "pearson", "spearman"),
    *("token_accuracy", "mean", "loss"),
)
_MAX_MAIN_METRICS = 3  # more would not fit the width of a phone


def write_report(folder: Path) -> Path:
    """Writes `report.html` into a run folder, also while the run is still training.

    Raises:
      UserError: `folder` is not a run folder, or one of its files is damaged.
    """
    try:
        body = _body(read_run(folder))
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder}: a file of the run has unexpected content "
            f"({type(error).__name__}: {error}); delete baselines.json, or restore "
            "config.json, evaluation.json and analysis.json from a copy, or train again"
        ) from error
    atomic_write(folder / REPORT, html_page(folder.resolve().name, body))
    return folder / REPORT


def _body(run: RunData) -> str:
    parts = [
        header(run),
        headline(run),
        facts(run),
        # Of a fine-tuning run: more important than its curves.
        report_sections(run.analysis) if run.analysis else "",
        curves(run),
        _tables(run),
        files_section(run),
        attempts_section(run),
        _config(run),
    ]
    return "".join(parts)


def _tables(run: RunData) -> str:
    """Returns the evaluations and some logged updates as tables; all metrics are folded."""
    names = [name for name in _MAIN_METRICS if any(name in row for row in run.evaluations)]
    if run.best_metric:
        names = list(dict.fromkeys((run.best_metric, *names)))
    names = names[:_MAX_MAIN_METRICS]
    rows = evenly_spaced(run.evaluations, _MAX_ROWS)
    evaluations = metrics_table(
        [{"step": row["step"]} | {n: row.get(n) for n in names} for row in rows]
    )
    if rows:
        evaluations += details("All metrics", metrics_table(_without_phase(rows)))
    rows = _without_phase(evenly_spaced(run.training, _MAX_ROWS))
    training = f"{len(rows)} of {len(run.training)} logged updates"
    final = key_value_table(flatten(dict(run.results)), ("metric", "value"))
    return "".join(
        (
            section("Evaluations during training", evaluations),
            section("Final metrics", details("evaluation.json", final) if run.results else ""),
            section(
                "Metrics of training batches",
                details(training, metrics_table(rows)) if rows else "",
            ),
        )
    )


def _config(run: RunData) -> str:
    settings = flatten(dict(run.config))
    parts = [
        details(f"{len(settings)} fields", key_value_table(settings, ("field", "value"))),
        *(
            details(name.capitalize(), key_value_table(run.info[name], header))
            for name, header in (
                ("versions", ("package", "version")),
                ("hardware", ("property", "value")),
            )
            if run.info.get(name)
        ),
        f'<p class="quiet note">Fingerprint {escape(run.info.get("fingerprint"))}</p>',
    ]
    return section("Config, versions and hardware", "".join(parts))


def _without_phase(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k not in ("phase", "split")} for row in rows]
