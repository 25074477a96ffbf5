"""Writes the table of a benchmark, with a row for each task and metric, and notes on the config."""

from pathlib import Path
from typing import Any

from bert_jax.apps.studies.benchmark import SAME_SEED_MNLI
from bert_jax.apps.studies.result_page import ResultTable, write_pages
from bert_jax.tasks.analysis import format_groups

_COLUMNS = ("task", "split", "metric", "runs", "median", "mean", "std", "best", "95 % interval")
_DISPLAY_NAMES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}


def write_table(folder: Path, results: dict[str, Any]) -> ResultTable:
    """Writes table.md and table.html from the results of `Benchmark.results`; returns the table."""
    has_several_settings = any(len(task["settings"]) > 1 for task in results["tasks"].values())
    rows = []
    for name, task in results["tasks"].items():
        best_setting = ", ".join(
            f"{field} {value:g}" for field, value in task["best_setting"].items()
        )
        for split, metrics in task["splits"].items():
            for metric, summary in metrics.items():
                low, high = summary["confidence_interval"]
                numbers = [summary[statistic] for statistic in ("median", "mean", "std", "best")]
                row = [
                    _DISPLAY_NAMES[name],
                    split,
                    metric,
                    str(summary["runs"]),
                    *map(_percent, numbers),
                ]
                row.append(f"{_percent(low)} to {_percent(high)}")
                rows.append([*row, best_setting] if has_several_settings else row)
    columns = (*_COLUMNS, "best setting") if has_several_settings else _COLUMNS
    table = ResultTable(columns=columns, rows=rows, num_text_columns=3)
    write_pages(folder, "GLUE, development sets", table, _notes(results))
    return table


def _notes(results: dict[str, Any]) -> list[str]:
    config = results["config"]
    notes = [
        f"Every run starts from {config['model']}"
        + (_mnli_init_text(config["mnli_init"]) if config["mnli_init"] else "")
        + f". Data: the official files in {config['glue_dir']}.",
        f"Epochs {_join_numbers(config['epochs'])}; "
        f"batch size {_join_numbers(config['batch_size'])}; "
        f"learning rate {_join_numbers(config['learning_rate'])}; "
        f"seeds {_join_numbers(config['seeds'])}."
        + (
            f" Overrides of all runs: {' '.join(config['overrides'])}."
            if config["overrides"]
            else ""
        ),
        "Dev is evaluated after every epoch, and the checkpoint with the best first metric of the "
        "task is reported. Dev is thus used for both selection and measurement: expect somewhat "
        "lower results on test.",
        "Median, mean, std (n - 1), and best are over the seeds; all are multiplied by 100.",
        "The interval is of the run with the median result: the 2.5th to 97.5th percentile of "
        "1,000 bootstrap samples of the dev examples. It does not include the variance over seeds.",
    ]
    settings = max((len(task["settings"]) for task in results["tasks"].values()), default=1)
    if settings > 1:
        notes.append(
            f"For each task the setting with the best median on dev is shown, of {settings} "
            "settings; results.json has the medians of all settings."
        )
    notes += [
        f"{_DISPLAY_NAMES[name]} was skipped: {reason}."
        for name, reason in results["skipped"].items()
    ]
    notes += [
        f"{_DISPLAY_NAMES[name]} {split}, {task['best_metric']} of the run with the median result, "
        f"by what the pretraining corpus contains: {format_groups(groups, task['best_metric'])}."
        for name, task in results["tasks"].items()
        for split, groups in task.get("by_contamination", {}).items()
    ]
    notes += [f"{job} failed: {reason}" for job, reason in results["failed"].items()]
    return notes


def _mnli_init_text(mnli_init: str) -> str:
    init = "the MNLI run of the same seed" if mnli_init == SAME_SEED_MNLI else mnli_init
    return f", except RTE, MRPC, and STS-B, which start from {init}"


def _join_numbers(values: list[Any]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
