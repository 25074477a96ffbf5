"""Writes `report.html`, a self-contained page about a run that works offline.

In this order: the main result and what it is compared with, the facts of the run, tasks and their
errors (task_report.py), curves (curves.py), tables of metrics, files and attempts, and the config.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import flatten
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write
from bert_jax.models.families import FAMILIES
from bert_jax.report.curves import curves, metric_points
from bert_jax.report.html import (
    definition_list,
    details,
    escape,
    format_value,
    html_page,
    humanize,
    is_number,
    key_value_table,
    metrics_table,
    scrollable,
    section,
    table,
)
from bert_jax.report.run_data import Row, RunData, nested, read_run, tokens_read
from bert_jax.report.svg_charts import Series, evenly_spaced, line_chart
from bert_jax.report.task_report import report_sections, results_table, tasks_of
from bert_jax.runs import attempt_log, metrics, run_folder
from bert_jax.runs.progress import format_duration
from bert_jax.runs.run_folder import REPORT

_PRETRAINING_LOSSES = ("mlm_loss", "lm_loss", "loss")
_MAX_AVERAGED = 20  # logged losses that are averaged if there is no evaluation


def headline(run: RunData) -> str:
    """Returns the main result: held-out loss and baselines, or the metric of the task."""
    if run.is_pretraining:
        content = _pretraining_headline(run)
    elif run.analysis.get("tasks"):
        content = _multi_task_headline(run)
    elif run.analysis:
        content = _task_headline(run)
    else:
        content = _unfinished_task_headline(run)
    return f'<div class="card headline">{content}</div>'


def _pretraining_headline(run: RunData) -> str:
    evaluation = _last_evaluation(run)
    name = next((n for n in _PRETRAINING_LOSSES if is_number(evaluation.get(n))), None)
    if name is None:
        return _training_loss_headline(run)
    step = f"{evaluation.get('step') or run.last_step:,}"
    parts = [_value(f"Held-out {humanize(name)}", format_value(name, evaluation[name]))]
    rows = [("this model", evaluation[name]), *_baselines(run, name)]
    parts.append(_bar_table(rows))
    note = f"Evaluated after {step} updates on text that is not used for training. "
    note += "Nats for each predicted token; lower is better. "
    best = run.best_evaluation()
    if best and run.best_metric == name and best[name] < evaluation[name]:
        value = format_value(name, best[name])
        note += f"The best was {value} after {best['step']:,} updates; its checkpoint is kept. "
    parts.append(f'<p class="quiet">{escape(note)}</p>')
    if name == "mlm_loss" and not run.baselines:
        parts.append(
            '<p class="quiet">To compare with n-gram models: '
            f"<code>bert-jax baselines {escape(run.folder)}</code></p>"
        )
    return "".join(parts)


def _baselines(run: RunData, name: str) -> list[tuple[str, float]]:
    rows = []
    if name == "mlm_loss":
        labels = {"bigram": "bigram, given the true left neighbor", "unigram": "unigram"}
        rows = [
            (label, run.baselines[key])
            for key, label in labels.items()
            if is_number(run.baselines.get(key))
        ]
    vocab_size = nested(run.config, "objective", "model", "vocab_size")
    if vocab_size and name != "loss":  # "loss" may be a sum of several losses
        rows.append((f"guessing among {vocab_size:,} tokens", math.log(vocab_size)))
    return rows


def _training_loss_headline(run: RunData) -> str:
    name = next(
        (n for n in _PRETRAINING_LOSSES if run.training and run.training[-1].get(n) is not None),
        None,
    )
    if name is None:
        return "<h2>No result yet</h2><p>No loss has been logged.</p>"
    values = [row[name] for row in run.training if row.get(name) is not None][-_MAX_AVERAGED:]
    remark = (
        "No evaluation has taken place so far."
        if nested(run.config, "train", "evaluation")
        else "This run has no evaluation on held-out text, so the loss says little about other "
        "texts; the field train.evaluation sets one up."
    )
    return _value(f"Training {humanize(name)}", format_value(name, statistics.fmean(values))) + (
        f'<p class="quiet">Mean of the last {len(values)} logged values, up to update '
        f"{run.last_step:,}. {remark}</p>"
    )


def _task_headline(run: RunData) -> str:
    """Returns the first metric of the dev split, or of the first split that there is."""
    splits = run.analysis["splits"]
    split = run.eval_split if run.eval_split in splits else next(iter(splits), None)
    if split is None or not splits[split]["metrics_with_intervals"]:
        return _unfinished_task_headline(run)
    found = splits[split]
    row = found["metrics_with_intervals"][0]
    low, high = (format_value(row["metric"], row[end]) for end in ("low", "high"))
    title = f"{humanize(row['metric'])} on {split}, {run.analysis['task']}"
    note = f"95 % interval: {low} to {high}, from {found['examples']:,} examples."
    majority = _majority_accuracy(found) if row["metric"] == "accuracy" else None
    if majority is not None:
        value = format_value("accuracy", majority)
        note += f" Always predicting the most frequent label would reach {value}."
    return f"{_value(title, format_value(row['metric'], row['value']))}<p>{escape(note)}</p>"


def _multi_task_headline(run: RunData) -> str:
    content = results_table(tasks_of(run.analysis), splits=(run.eval_split,), num_metrics=1)
    content = content or results_table(tasks_of(run.analysis), num_metrics=1)
    return f"<h2>Result of each task</h2>{scrollable(content, 'Result of each task')}"


def _unfinished_task_headline(run: RunData) -> str:
    best = run.best_evaluation()
    # An earlier version wrote the metrics of text to text without the name of the split.
    by_split = {name: each for name, each in run.results.items() if isinstance(each, Mapping)}
    split = run.eval_split if run.eval_split in by_split else next(iter(by_split), run.eval_split)
    results = by_split.get(split, run.results)
    if run.is_complete and any(map(is_number, results.values())):
        return _results_headline(run, split, results)
    if best is None or run.best_metric is None:
        if run.is_complete:
            return (
                "<h2>No result</h2><p>No split with labels was evaluated. Give a dev or test file, "
                "or run <code>bert-jax evaluate</code>.</p>"
            )
        return "<h2>No result yet</h2><p>No evaluation has taken place so far.</p>"
    name = run.best_metric
    return _value(
        f"Best {humanize(name)} so far, {run.eval_split}", format_value(name, best[name])
    ) + (
        f'<p class="quiet">After {best["step"]:,} updates. Intervals and an error analysis appear '
        "here when the run is complete.</p>"
    )


def _results_headline(run: RunData, split: str, results: Row) -> str:
    """Returns the metrics of a complete run without an error analysis, such as text to text."""
    values = {name: value for name, value in results.items() if is_number(value)}
    main = run.best_metric if run.best_metric in values else next(iter(values))
    rows = [(humanize(name), format_value(name, value)) for name, value in values.items()]
    caption = "Metrics"
    title = f"{humanize(main)}, {split}"
    return _value(title, format_value(main, values[main])) + scrollable(
        table(("metric", "value"), rows, caption=caption), caption
    )


def _majority_accuracy(split_analysis: Row) -> float | None:
    totals: dict[int, int] = {}
    for label_id, _, count in split_analysis.get("confusion_matrix", ()):
        totals[label_id] = totals.get(label_id, 0) + count
    return max(totals.values()) / sum(totals.values()) if totals else None


def _last_evaluation(run: RunData) -> Row:
    """Returns the final metrics, or the last evaluation of an unfinished run."""
    if run.evaluations:
        return run.evaluations[-1]
    # An earlier version wrote the metrics of the held-out corpus as a nested object.
    return run.results.get("held_out", run.results)


def _value(title: str, value: str) -> str:
    title = title[:1].upper() + title[1:]
    return f'<h2>{escape(title)}</h2><p class="value">{escape(value)}</p>'


def _bar_table(rows: list[tuple[str, float]]) -> str:
    if len(rows) < 2:
        return ""
    longest = max(value for _, value in rows)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td>{value:.3f}</td>'
        f'<td class="bar"><i class="c{min(index, 1)}" style="width:{100 * value / longest:.1f}%">'
        "</i></td></tr>"
        for index, (label, value) in enumerate(rows)
    )
    return f'<table class="words"><tbody>{body}</tbody></table>'


def header(run: RunData) -> str:
    """Returns the heading of the page: the kind of run, whether it is complete, and its name."""
    css_class = "status" if run.is_complete else "status open"
    return (
        f'<p class="quiet">{_kind(run)} · <span class="{css_class}">{escape(_state(run))}</span>'
        f"</p><h1>{escape(run.folder.resolve().name)}</h1>"
    )


def facts(run: RunData) -> str:
    """Returns the model, the data, the time and the hardware of a run."""
    values = {
        "Model": _model(run),
        "Initial weights": run.config.get("init_from") or "random",
        **_data(run),
        "Updates": _updates(run),
        "Time": _time(run),
        "Speed": _speed(run),
        "Devices": _devices(run),
    }
    return definition_list({name: text for name, text in values.items() if text}, "facts")


def files_section(run: RunData) -> str:
    """Returns a table of the files of a run, with the commands that use the trained model."""
    folder, page = run.folder, run.folder / run_folder.REPORT
    checkpoint_dir = run_folder.checkpoint_dir(folder)
    files = [
        (run_folder.EVALUATION, "final metrics"),
        (run_folder.BASELINES, "losses of n-gram models at the held-out positions"),
        (run_folder.MINIMAL_PAIRS, "accuracies of checkpoints on minimal pairs"),
        (run_folder.ANALYSIS, "error analysis, as shown here"),
        (run_folder.PREDICTIONS, "prediction for each example, as JSON lines"),
        (metrics.FILE, "all metrics of training and of evaluations, as JSON lines"),
        ("tensorboard", "the same for TensorBoard"),
        (run_folder.CONFIG, "resolved config, versions, hardware"),
        (attempt_log.FILE, "the processes that trained, and how they ended"),
        ("vocabulary", "tokenizer"),
    ]
    rows = [(name, what) for name, what in files if (folder / name).exists()]
    rows.insert(0, (_relative(checkpoint_dir, folder), _checkpoints(run, checkpoint_dir)))
    name = "MODEL" if folder.name in ("", ".") else folder.name
    use = "the best checkpoint" if run.best_metric else "the newest checkpoint"
    return section(
        "Files",
        table(("in the run folder", "content"), rows, numeric=False)
        + f'<p class="quiet note">This page: <code>{escape(page)}</code>. A run '
        f"does not export its model by itself; this writes {use} as a Hugging Face folder: "
        f"<code>bert-jax export {escape(folder)} --output {escape(name)}-exported</code></p>",
    )


def attempts_section(run: RunData) -> str:
    """Returns a table of the processes that trained: command, start, wall time and outcome."""
    rows = [
        (
            _utc(attempt.started),
            f"{attempt.start_step:,}",
            "unknown" if attempt.seconds is None else format_duration(attempt.seconds),
            attempt.outcome or "still running, or killed",
            attempt.command,
        )
        for attempt in run.attempts
    ]
    header = ("started (UTC)", "from update", "wall time", "outcome", "command")
    return section("Commands", table(header, rows, numeric=False))


def _relative(path: Any, folder: Any) -> str:
    text = str(path)
    return text.removeprefix(f"{folder}/")


def _checkpoints(run: RunData, checkpoint_dir: Any) -> str:
    text = "parameters and optimizer state"
    if isinstance(checkpoint_dir, str) or not checkpoint_dir.is_dir():
        return text
    steps = sorted(int(p.name) for p in checkpoint_dir.iterdir() if p.name.isdecimal())
    if not steps:
        return "no checkpoint has been saved yet"
    text += f" after {', '.join(f'{step:,}' for step in steps)} updates"
    best = run.best_evaluation()
    if best is None or best["step"] not in steps:
        return text
    return f"{text}; the best is {best['step']:,}"


def _kind(run: RunData) -> str:
    if run.is_pretraining:
        return "Continued pretraining" if run.config.get("init_from") else "Pretraining"
    is_multi_task = nested(run.config, "data", "type") == "MultiTaskData"
    return "Multi-task fine-tuning" if is_multi_task else "Fine-tuning"


def _state(run: RunData) -> str:
    total = f"{run.total_steps:,} updates"
    done = f"{run.last_step:,} of {total}"
    if run.outcome == "complete":
        return f"complete, {run.last_step or run.total_steps:,} updates"
    if run.outcome == "stopped early":
        return f"complete: stopped early after {done}, because evaluations no longer improved"
    if run.outcome == "stopped by a signal":
        return f"not finished: stopped by a signal after {done}; the same command resumes it"
    if run.outcome == "failed":
        return f"not finished: stopped by an error after {done}: {run.attempts[-1].message}"
    if not run.last_step:
        return "no update has been logged yet"
    return (
        f"not finished: {done} are logged; the run was still training when this page was written, "
        "or its process was killed"
    )


def _model(run: RunData) -> str:
    model = nested(run.config, "objective", "model")
    if not isinstance(model, dict):
        return ""
    families = {family.__name__: family.family for family in FAMILIES}
    name = families.get(str(model.get("type")), "encoder")
    num_layers = model.get("num_hidden_layers")
    text = (
        f"{name}, {num_layers} {'layer' if num_layers == 1 else 'layers'} of width "
        f"{model.get('hidden_size')}, {model.get('num_attention_heads')} heads"
    )
    num_parameters = run.attempts[-1].num_parameters if run.attempts else None
    return f"{text}, {num_parameters:,} parameters" if num_parameters else text


def _data(run: RunData) -> dict[str, Any]:
    if run.attempts and run.attempts[-1].data:
        return dict(run.attempts[-1].data)
    corpus = nested(run.config, "data", "corpus")
    if isinstance(corpus, dict):  # a mixture
        corpus = ", ".join(str(each["folder"]) for each in corpus["corpora"])
    return {"Training corpus": corpus} if corpus else {}


def _updates(run: RunData) -> str:
    phases = nested(run.config, "train", "phases") or ()
    tokens = tokens_read(phases, run.last_step)
    text = f"{run.last_step:,} of {run.total_steps:,}" if phases else f"{run.last_step:,}"
    # Batches of fine-tuning are shorter than the maximum length.
    return f"{text}, {tokens:,} tokens including padding" if tokens and run.is_pretraining else text


def _time(run: RunData) -> str:
    # "seconds" starts at 0 again after a resume: add up the seconds before each restart.
    seconds = [row.get("seconds") or 0.0 for row in run.training]
    process_seconds = [a for a, b in itertools.pairwise(seconds) if b < a] + seconds[-1:]
    training = [f"{format_duration(sum(process_seconds))} in training steps"] if seconds else []
    if not run.attempts:
        return "".join(training)
    wall_seconds = [attempt.seconds for attempt in run.attempts if attempt.seconds is not None]
    parts = [f"{format_duration(sum(wall_seconds))} in total"] if wall_seconds else []
    unknown = len(run.attempts) - len(wall_seconds)
    if unknown and wall_seconds:
        parts[0] += f" without {unknown} of {len(run.attempts)} processes, whose end is unknown"
    return ", ".join([*parts, *training, f"started {_utc(run.attempts[0].started)} UTC"])


def _utc(time: str) -> str:
    return time.replace("T", " ").partition("+")[0]


def _speed(run: RunData) -> str:
    rates = [row["tokens_per_second"] for row in run.training if row.get("tokens_per_second")]
    mfu = [row["mfu"] for row in run.training if row.get("mfu")]
    if not rates:
        return ""
    text = f"{statistics.median(rates):,.0f} tokens/s (median)"
    return f"{text}, {statistics.median(mfu):.1%} of the peak FLOP/s" if mfu else text


def _devices(run: RunData) -> str:
    hardware = run.info.get("hardware", {})
    if not hardware:
        return ""
    processes = hardware.get("processes", 1)
    text = f"{hardware.get('devices')} × {hardware.get('device_kind')}"
    text += f" in {processes} processes" if processes != 1 else ""
    cpu = hardware.get("host_cpu")
    return f"{text} ({cpu})" if cpu and hardware.get("platform") == "cpu" else text


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
            f"({type(error).__name__}: {error}); delete baselines.json and "
            "minimal_pairs.json, or restore config.json, evaluation.json and analysis.json from a "
            "copy, or train again"
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
        _minimal_pairs(run),
        _tables(run),
        files_section(run),
        attempts_section(run),
        _config(run),
    ]
    return "".join(parts)


def _minimal_pairs(run: RunData) -> str:
    """Returns the accuracy of the checkpoints on minimal pairs as a chart; groups are folded."""
    if not run.minimal_pairs:
        return ""
    points = [(x, 100 * y) for x, y in metric_points(run.minimal_pairs, "all")]
    line = Series(label="mean over files", points=points, dots=True)
    name = "Accuracy on minimal pairs, %"
    chart = line_chart([line], title=name, format_y=lambda y: f"{y:.1f}", phases=run.phases)
    card = f'<div class="charts"><div class="card"><h3>{name}</h3>{chart}</div></div>'
    rows = evenly_spaced(run.minimal_pairs, _MAX_ROWS)
    return section("Minimal pairs", card + details("Accuracy of each group", metrics_table(rows)))


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
