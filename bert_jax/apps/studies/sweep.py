"""Searches over settings of a fine-tuning run: every combination of a grid, or random samples.

<output>/<setting>/seed-<n>/   a job (see jobs.py)
         results.json          the search, and all numbers of each setting
         table.md, table.html  settings from best to worst; the page has a chart for each field
"""

import json
import math
import re
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.apps.studies import trials
from bert_jax.apps.studies.jobs import JobRunner
from bert_jax.apps.studies.result_page import ResultTable, write_pages
from bert_jax.config.config_lib import to_json
from bert_jax.config.labeled_data import TaskConfig
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.report.html import escape
from bert_jax.report.svg_charts import PlotArea, evenly_spaced, svg, ticks

_MIN_LOG_RATIO = 10.0  # the axis is logarithmic from this ratio of largest to smallest value on
_MAX_LABELS = 6


def sweep_chart(points: Sequence[tuple[Any, float]], *, title: str, field: str) -> str:
    """Returns an SVG element with a dot for each (value of the field, metric).

    Numbers are drawn to scale, on a logarithmic axis if they are positive and span a wide range.
    All other values are evenly spaced in their given order.

    Args:
      points: pairs (value of the field, metric).
      title: the title for screen readers.
      field: the name of the field.
    """
    position_of = _x_positions([value for value, _ in points])
    coordinates = [(position_of[_label(value)], y) for value, y in points]
    y_ticks = ticks(min(y for _, y in coordinates), max(y for _, y in coordinates))
    low, high = min(position_of.values()), max(position_of.values())
    margin = 0.06 * (high - low) or 1.0
    frame = PlotArea(low_x=low - margin, high_x=high + margin, low_y=y_ticks[0], high_y=y_ticks[-1])
    labels = {x: label for label, x in position_of.items()}
    x_ticks = evenly_spaced(sorted(labels), _MAX_LABELS)
    parts = [frame.axes(x_ticks, y_ticks, field, lambda x: labels[x], lambda y: f"{y:.4g}")]
    if len(labels) > 1:
        medians = [
            (x, statistics.median(y for other, y in coordinates if other == x))
            for x in sorted(labels)
        ]
        parts.append(f'<polyline points="{frame.path(medians)}" class="c0"/>')
    parts += [
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5" class="c1" '
        f'fill-opacity="0.7"><title>{escape(labels[x])}: {y:.4g}</title></circle>'
        for x, y in coordinates
    ]
    return svg(title, parts)


def _x_positions(values: Sequence[Any]) -> dict[str, float]:
    """Returns {label: position on the x axis} of each value."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {label: float(n) for n, label in enumerate(dict.fromkeys(map(_label, values)))}
    logarithmic = min(values) > 0 and max(values) >= _MIN_LOG_RATIO * min(values)
    return {_label(v): math.log10(v) if logarithmic else float(v) for v in values}


def _label(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


_SIGNIFICANT_DIGITS = 4  # of a sampled number
_STATISTICS = ("median", "mean", "std", "best")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Samples numbers from `low` to `high`, uniformly or (`log`) with uniform logarithms.

    The numbers are integers if both bounds are.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            positive = " and both above 0 for :log" if self.log else ""
            raise ConfigError(f"--range {self.low}..{self.high}: expected LOW < HIGH{positive}")

    def sample(self, generator: np.random.Generator) -> float:
        """Samples a number; floats are rounded to 4 significant digits."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            if not self.log:
                return int(generator.integers(self.low, self.high + 1))
            # Each integer n stands for the interval from n - 0.5 to n + 0.5.
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(self.high, max(self.low, round(math.exp(generator.uniform(low, high)))))
        if self.log:
            sampled = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        else:
            sampled = generator.uniform(self.low, self.high)
        return float(f"{sampled:.{_SIGNIFICANT_DIGITS}g}")


MAX_SAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Search:
    """Defines the settings of a search.

    Attributes:
      values: {field: the values to try}. A field is one of `trials.FLAG_SETTINGS` or a path
        in the config.
      ranges: {field: the range to sample from}; only with `num_samples`.
      num_samples: the number of random samples; None for every combination of `values`.
      seed: the seed of the samples. Sample i depends neither on `num_samples` nor on other fields.
    """

    values: Mapping[str, tuple[Any, ...]]
    ranges: Mapping[str, Range]
    num_samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.values and not self.ranges:
            raise ConfigError("nothing to search over; add --grid or --range")
        if self.ranges and self.num_samples is None:
            raise ConfigError("--range needs --random N, the number of samples")
        if self.num_samples is not None and not 1 <= self.num_samples <= MAX_SAMPLES:
            raise ConfigError(f"--random {self.num_samples}: expected at least 1, at most 10,000")
        for field in self.values.keys() & self.ranges.keys():
            raise ConfigError(f"{field} is both in --grid and in --range; remove one")
        for field in (*self.values, *self.ranges):
            if field == "seed":
                raise ConfigError(
                    "seed cannot be searched over; set the number of seeds with --num-seeds"
                )

    def settings(self) -> list[dict[str, Any]]:
        """Returns the settings to try, without duplicates."""
        if self.num_samples is None:
            return trials.grid(self.values)
        sampled = [self._sample_setting(number) for number in range(self.num_samples)]
        # Two samples may be equal, above all of a few values; their runs would share a folder.
        return list({trials.setting_name(setting): setting for setting in sampled}.values())

    def _sample_setting(self, number: int) -> dict[str, Any]:
        setting: dict[str, Any] = {}
        for field in (*self.values, *self.ranges):
            # CRC-32 and not `hash`, which Python seeds differently in each process.
            generator = np.random.default_rng([self.seed, number, zlib.crc32(field.encode())])
            if field in self.values:
                choices = self.values[field]
                setting[field] = choices[int(generator.integers(len(choices)))]
            else:
                setting[field] = self.ranges[field].sample(generator)
        return setting


def parse_values(assignments: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Parses "FIELD=V1,V2" to {field: (v1, v2)}; values are JSON, or strings without quotes.

    Raises:
      ConfigError: there is no "=" or no value, or a field or a value is repeated.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for assignment in assignments:
        field, text = _split_assignment("--grid", "epochs=2,3", assignment, found)
        # Commas inside brackets and quotes do not separate values.
        parts = [v for v in re.split(r',(?![^\[]*\])(?=(?:[^"]*"[^"]*")*[^"]*$)', text) if v]
        values = tuple(map(_parse_value, parts))
        if not values or len({json.dumps(value) for value in values}) < len(values):
            raise ConfigError(f"--grid {assignment}: expected different values separated by commas")
        found[field] = values
    return found


def parse_ranges(assignments: Sequence[str]) -> dict[str, Range]:
    """Parses "FIELD=LOW..HIGH" or "FIELD=LOW..HIGH:log" to {field: Range}.

    Raises:
      ConfigError: the text has another form, or a field is repeated.
    """
    found: dict[str, Range] = {}
    example = "learning_rate=1e-6..1e-4:log"
    for assignment in assignments:
        field, text = _split_assignment("--range", example, assignment, found)
        bounds, colon, scale = text.partition(":")
        low, _, high = (_parse_value(part) for part in bounds.partition(".."))
        # `type` and not `isinstance`: JSON's true and false are integers in Python.
        are_numbers = all(type(bound) in (int, float) for bound in (low, high))
        if not are_numbers or scale not in ("", "log") or (colon and not scale):
            raise ConfigError(f"--range {assignment}: expected FIELD=LOW..HIGH, as in {example}")
        found[field] = Range(low=low, high=high, log=scale == "log")
    return found


class Sweep:
    """Runs every setting of a search with every seed, and compares them by their median on dev."""

    def __init__(
        self,
        task: TaskConfig,
        task_command: Sequence[str],
        search: Search,
        output: Path,
        *,
        model: str,
        seeds: tuple[int, ...],
        shared: Mapping[str, Any],
        overrides: tuple[str, ...],
    ):
        """Reads the task and makes the trials.

        Args:
          task: the task that all runs are trained on.
          task_command: TASK and its flags, as `bert-jax finetune` takes them.
          output: the folder of all runs and results.
          model: the model that all runs start from.
          shared: {flag: value} of all runs.
          overrides: FIELD=VALUE of all runs.

        Raises:
          ConfigError: a field is both searched over and set for all runs, or a value is invalid.
          UserError: the task has no train or dev split, or cannot be read.
        """
        fixed = {*shared, *(assignment.partition("=")[0] for assignment in overrides)}
        for field in (*search.values, *search.ranges):
            if field in fixed:
                raise ConfigError(f"{field} is both searched over and set for all runs; remove one")
        loaded = load_task(task)
        for split in ("train", "dev"):
            if split not in loaded.splits:
                raise UserError(f"{loaded.name} has no {split} examples, which a sweep needs")
        self._output, self._search, self._seeds = output, search, seeds
        self._metrics = loaded.metrics
        self.settings = {
            "task": task_command[0],
            "data": to_json(task),
            "model": model,
            "shared": dict(shared),
            "overrides": list(overrides),
        }
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in shared.items()]
        num_examples = len(loaded.splits["train"])
        self._trials = [
            trials.Trial(
                folder=trials.setting_name(setting),
                setting=setting,
                seeds=seeds,
                base_arguments=(*task_command, *flags),
                overrides=overrides,
                models=dict.fromkeys(seeds, model),
                cost=num_examples * _epochs(setting.get("epochs", shared.get("epochs", 3.0))),
            )
            for setting in search.settings()
        ]

    def run(self, runner: JobRunner) -> dict[str, str]:
        """Runs what is not finished; returns {name of a failed job: reason}."""
        return runner.run([job for trial in self._trials for job in trial.jobs()])

    def results(self, failed: Mapping[str, str]) -> dict[str, Any]:
        """Returns all numbers of the finished runs as JSON values, in a deterministic order."""
        rows, medians = [], []
        for trial in self._trials:
            runs = trials.read_evaluations(self._output, trial)
            values = {m: trials.metric_by_seed(runs, "dev", m) for m in self._metrics}
            dev = {m: trials.seed_statistics(found) for m, found in values.items() if found}
            rows.append({"setting": dict(trial.setting), "dev": dev})
            medians.append(dev[self._metrics[0]]["median"] if self._metrics[0] in dev else None)
        best_setting = None
        if any(median is not None for median in medians):
            best_setting = rows[trials.best_trial_index(medians)]["setting"]
        search = asdict(self._search)
        return {
            "config": {**self.settings, "search": search, "seeds": list(self._seeds)},
            "best_metric": self._metrics[0],
            "best_setting": best_setting,
            "trials": rows,
            "failed": dict(failed),
        }

    def write_table(self, results: dict[str, Any]) -> ResultTable:
        """Writes table.md and table.html from `results`; returns the table."""
        return write_table(self._output, results)


def _epochs(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"epochs is {value!r}, expected a number above 0")
    return float(value)


def write_table(output: Path, results: dict[str, Any]) -> ResultTable:
    """Writes table.md and table.html from the result of `Sweep.results`; returns the table."""
    best_metric, config = results["best_metric"], results["config"]
    finished_rows = [row for row in results["trials"] if best_metric in row["dev"]]
    finished_rows.sort(key=lambda row: -row["dev"][best_metric]["median"])
    fields = list(results["trials"][0]["setting"])
    other_metrics = sorted(
        {metric for row in finished_rows for metric in row["dev"]} - {best_metric}
    )
    rows = []
    for row in finished_rows:
        summary = row["dev"][best_metric]
        numbers = [summary[part] for part in _STATISTICS]
        numbers += [row["dev"].get(metric, {}).get("median") for metric in other_metrics]
        setting_cells = [_format_value(row["setting"][field]) for field in fields]
        rows.append([*setting_cells, str(summary["runs"]), *map(_format_number, numbers)])
    columns = (
        *fields,
        "runs",
        *(f"{part} {best_metric}" for part in ("median", "mean", "std", "best")),
    )
    table = ResultTable(
        columns=(*columns, *(f"median {metric}" for metric in other_metrics)),
        rows=rows,
        num_text_columns=len(fields),
    )
    charts = [
        (
            f"{best_metric} by {field}",
            sweep_chart(
                [
                    (row["setting"][field], value)
                    for row in finished_rows
                    for value in row["dev"][best_metric]["values"].values()
                ],
                title=f"dev {best_metric} by {field}: a dot per run, a line of medians",
                field=field,
            ),
        )
        for field in fields
        if finished_rows
    ]
    write_pages(output, f"Sweep of {config['task']}", table, _notes(results), charts)
    return table


def _notes(results: dict[str, Any]) -> list[str]:
    config, num_settings = results["config"], len(results["trials"])
    is_random = config["search"]["num_samples"] is not None
    search_method = "random samples" if is_random else "every combination"
    notes = [
        f"{num_settings} settings ({search_method}) of {config['task']}, each with seeds "
        f"{', '.join(map(str, config['seeds']))}; every run starts from {config['model']}.",
        "All numbers are on dev, where each checkpoint was selected, too, by "
        f"{results['best_metric']}. The best of {num_settings} settings looks better on dev than "
        "it is on other data: evaluate it again on test.",
        "Median, mean, std (n - 1), and best are over the seeds.",
    ]
    return [*notes, *(f"{job} failed: {reason}" for job, reason in results["failed"].items())]


def _split_assignment(
    flag: str, example: str, assignment: str, found: Mapping[str, Any]
) -> tuple[str, str]:
    field, separator, text = assignment.partition("=")
    if not separator or not field:
        raise ConfigError(f"{flag} {assignment}: expected FIELD=..., as in {example}")
    field = field.replace("-", "_")
    if field in found:
        raise ConfigError(f"{flag} has the field {field} twice")
    return field, text


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
