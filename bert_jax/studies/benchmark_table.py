"""The table of a benchmark: a row for each task and metric, and the protocol in words."""

from pathlib import Path
from typing import Any

from bert_jax.studies.benchmark import OWN_MNLI
from bert_jax.studies.result_page import Table, write_pages

_COLUMNS = ("task", "split", "metric", "runs", "median", "mean", "std", "best", "95 % interval")
_NAMES = {
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


def write_table(folder: Path, results: dict[str, Any]) -> Table:
    """Writes table.md and table.html from what `Benchmark.results` gives; returns the table."""
    several = any(len(task["settings"]) > 1 for task in results["tasks"].values())
    rows = []
    for name, task in results["tasks"].items():
        chosen = ", ".join(f"{field} {value:g}" for field, value in task["chosen"].items())
        for split, metrics in task["splits"].items():
            for metric, found in metrics.items():
                low, high = found["interval"]
                numbers = [found[part] for part in ("median", "mean", "std", "best")]
                row = [_NAMES[name], split, metric, str(found["runs"]), *map(_hundred, numbers)]
                row.append(f"{_hundred(low)} to {_hundred(high)}")
                rows.append([*row, chosen] if several else row)
    columns = (*_COLUMNS, "chosen setting") if several else _COLUMNS
    table = Table(columns=columns, rows=rows, words=3)
    write_pages(folder, "GLUE, development sets", table, _notes(results))
    return table


def _notes(results: dict[str, Any]) -> list[str]:
    protocol = results["protocol"]
    notes = [
        f"Every run starts from {protocol['model']}"
        + (_mnli(protocol["mnli_init"]) if protocol["mnli_init"] else "")
        + f". Data: the official files in {protocol['glue_dir']}.",
        f"Epochs {_listed(protocol['epochs'])}; batch size {_listed(protocol['batch_size'])}; "
        f"learning rate {_listed(protocol['learning_rate'])}; seeds {_listed(protocol['seeds'])}."
        + (f" Set for all: {' '.join(protocol['overrides'])}." if protocol["overrides"] else ""),
        "Dev is evaluated after every epoch, and the checkpoint that is best in the task's first "
        "metric counts. Dev thus selects and measures: expect somewhat less on test.",
        "Median, mean, std (n - 1) and best are over the seeds; all are times 100.",
        "The interval is of the run in the middle: 2.5th to 97.5th percentile of 1,000 resamples "
        "of the dev examples. It says nothing of the spread over seeds.",
    ]
    settings = max((len(task["settings"]) for task in results["tasks"].values()), default=1)
    if settings > 1:
        notes.append(
            f"For each task the one of {settings} settings with the best median on dev is shown; "
            "results.json has the medians of all."
        )
    notes += [f"{_NAMES[name]} was skipped: {why}." for name, why in results["skipped"].items()]
    notes += [f"{cell} failed: {why}" for cell, why in results["failed"].items()]
    return notes


def _mnli(start: str) -> str:
    what = "the MNLI run of the same seed" if start == OWN_MNLI else start
    return f", but RTE, MRPC and STS-B from {what}"


def _listed(values: list[Any]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _hundred(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
