"""Renders the main result of a run, at the top of its report."""

import math
import statistics
from collections.abc import Mapping

from bert_jax.report.html import escape, format_value, humanize, is_number, scrollable, table
from bert_jax.report.run_data import Row, RunData, nested
from bert_jax.report.task_report import results_table, tasks_of

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
    """Returns the final metrics, or those of the last evaluation of an unfinished run."""
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
