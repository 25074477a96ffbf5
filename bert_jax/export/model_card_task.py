"""Writes the model card sections of a fine-tuning run: its data, training, results, hardware.

They come from the checkpoint, and from the run's `analysis.json` if the run is complete.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import flatten, to_json
from bert_jax.config.tuning import TuningConfig
from bert_jax.io.json_io import read_json_object
from bert_jax.pretrained.load import RunCheckpoint
from bert_jax.report.html import format_value, humanize
from bert_jax.runs import run_folder

_INTERVALS_NOTE = (
    "The intervals are 95 % bootstrap intervals over the examples of a split. They do not include "
    "the variation between training runs: this is one run, with seed {seed}."
)


def model_card_sections(run: RunCheckpoint) -> list[str]:
    """Returns headings and texts, alternating: training data, training, results, hardware."""
    config = run.config
    file = run.folder / run_folder.ANALYSIS
    analysis = read_json_object(file) if file.exists() else None
    mixture_section = []
    if run.task:
        mixture_section = [_mixture_section(run, analysis["mixture"] if analysis else [])]
    if run.task and analysis:
        sequences_per_epoch = sum(row["drawn_per_epoch"] for row in analysis["mixture"])
        analysis = {**analysis["tasks"][run.task], "train_sequences": sequences_per_epoch}
    sections = ["## Training data", _data_section(config["data"], analysis), *mixture_section]
    sections += ["## Training", bullets(_training_lines(config, run, analysis))]
    if analysis and analysis["splits"]:
        sections += ["## Results", _results_section(config, run, analysis)]
    elif run.info.get("metrics"):
        metrics = table(("metric", "value"), run.info["metrics"].items())
        sections += ["## Results of the last evaluation during training", metrics]
    if run.info.get("hardware"):
        rows = [(humanize(name), value) for name, value in run.info["hardware"].items()]
        sections += ["## Hardware", table(("property", "value"), rows)]
    return sections


def distillation_lines(objective: Mapping[str, Any]) -> list[str]:
    """Describes the teacher of an objective in one line; no line if there is none."""
    distillation = objective.get("distillation")
    if not distillation:
        return []
    teacher = distillation["teacher"]
    layers = ", ".join(map(str, teacher["layers"]))
    return [
        f"distilled from the teacher `{_file_name(teacher['path'])}`, with temperature "
        f"{distillation['temperature']:g} and weight {distillation['soft_weight']:g} of soft "
        f"targets{f'; started from its layers {layers}' if layers else ''}"
    ]


def gradient_clipping(train: dict[str, Any]) -> str:
    """Returns how gradients were clipped, in words."""
    norm = train["max_grad_norm"]
    return "gradients not clipped" if norm is None else f"gradients clipped at {norm:g}"


def _data_section(data: Mapping[str, Any], analysis: Mapping[str, Any] | None) -> str:
    source = {k: v for k, v in data["task"].items() if v is not None and k != "type"}
    # Only the names of files: their folders on the training machine mean nothing to a reader.
    source_fields = [f"{humanize(k)} `{_file_name(v)}`" for k, v in source.items()]
    text = f"{data['task']['type']}: {', '.join(source_fields)}."
    if analysis is None:
        return text
    rows = [(split, f"{count:,}") for split, count in analysis["examples"].items()]
    kind = humanize(analysis["kind"])
    text = f"`{analysis['task']}` ({kind}). {text}\n\n{table(('split', 'examples'), rows)}"
    return text + (f"\n\n{bullets(analysis['notes'])}" if analysis["notes"] else "")


def _mixture_section(run: RunCheckpoint, mixture: Sequence[Mapping[str, Any]]) -> str:
    """Describes the tasks that the encoder was trained on, and how often each was sampled."""
    data, objective = run.info["config"]["data"], run.info["config"]["objective"]
    names = ", ".join(f"`{named['name']}`" for named in data["tasks"])
    text = (
        f"The encoder was trained on several tasks at once: {names}. This model is for "
        f"`{run.task}`. Mixing of the tasks: {data['mixing']['type']}. Weighting of their losses: "
        f"{objective['weighting']['type']}."
    )
    rows = [
        (row["task"], f"{row['num_sequences']:,}", f"{row['drawn_per_epoch']:,}") for row in mixture
    ]
    return (
        f"{text}\n\n{table(('task', 'sequences', 'sequences per epoch'), rows)}" if rows else text
    )


def _training_lines(
    config: Mapping[str, Any], run: RunCheckpoint, analysis: Mapping[str, Any] | None
) -> list[str]:
    train, objective = config["train"], config["objective"]
    optimizer, schedule = train["optimizer"], train["schedule"]
    total = sum(phase["steps"] for phase in train["phases"])
    lines = [f"started from `{_file_name(config['init_from'])}`"] if config["init_from"] else []
    lines += distillation_lines(objective)
    for phase in train["phases"]:
        epochs = ""
        if analysis and analysis["train_sequences"]:
            num_epochs = phase["steps"] / -(-analysis["train_sequences"] // phase["batch_size"])
            epochs = f" ({num_epochs:.3g} epochs)"
        lines.append(
            f"{phase['steps']:,} steps{epochs}, each with {phase['batch_size']} sequences of at "
            f"most {phase['seq_length']} tokens"
        )
    lines += [
        f"{optimizer['type']}, weight decay {optimizer['weight_decay']}; learning rate: warmup to "
        f"{schedule['peak_learning_rate']:g} in {schedule['warmup_steps']:,} steps, then decay to "
        f"0 at step {total:,}; {gradient_clipping(train)}",
        f"dropout {objective['model']['hidden_dropout_prob']:g} in the encoder and "
        f"{objective['classifier_dropout']:g} before the head; label smoothing "
        f"{objective['label_smoothing']:g}",
        f"seed {config['seed']}",
        f"checkpoint selection: {_selection(train, run)}",
    ]
    if objective["class_weights"]:
        lines.append(f"class weights {', '.join(f'{w:g}' for w in objective['class_weights'])}")
    default_tuning, tuning = flatten(to_json(TuningConfig())), flatten(train["tuning"])
    changed = {k: v for k, v in tuning.items() if v != default_tuning.get(k) and v is not None}
    if changed:
        lines.append("tuning: " + ", ".join(f"`{name} = {v}`" for name, v in changed.items()))
    return lines


def _selection(train: Mapping[str, Any], run: RunCheckpoint) -> str:
    metric, best = train["checkpoints"]["best_metric"], run.info.get("best") or {}
    if metric is None or best.get("step") is None:
        return f"none; these are the parameters of step {run.step:,}"
    split = (train["evaluation"] or {}).get("split", "held-out")
    text = f"evaluated on {split} every {train['evaluation']['eval_every']:,} steps"
    if best["step"] == run.step:
        value = format_value(metric, best["value"])
        return f"{text}; step {run.step:,} had the best {humanize(metric)} ({value})"
    return f"{text}; these are the parameters of step {run.step:,}, which was not the best"


def _results_section(
    config: Mapping[str, Any], run: RunCheckpoint, analysis: Mapping[str, Any]
) -> str:
    rows = [
        (
            split,
            f"{split_analysis['examples']:,}",
            humanize(row["metric"]),
            format_value(row["metric"], row["value"]),
            f"{format_value(row['metric'], row['low'])} to "
            f"{format_value(row['metric'], row['high'])}",
        )
        for split, split_analysis in analysis["splits"].items()
        for row in split_analysis["metrics_with_intervals"]
    ]
    results = table(("split", "examples", "metric", "value", "interval"), rows)
    text = f"{results}\n\n{_INTERVALS_NOTE.format(seed=config['seed'])}"
    selection_split = (config["train"]["evaluation"] or {}).get("split")
    if selection_split in analysis["splits"] and config["train"]["checkpoints"]["best_metric"]:
        text += (
            f" The checkpoint was selected on {selection_split}, so the results on that split are "
            "optimistic."
        )
    if analysis["step"] != run.step:
        text += (
            f" The results were measured with the parameters of step {analysis['step']:,}; this "
            f"folder has those of step {run.step:,}."
        )
    return text


def _file_name(value: Any) -> str:
    return Path(value).name if isinstance(value, str) else str(value)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table; floats are written with five digits."""
    lines = [_table_line(header), _table_line(["---"] * len(header)), *map(_table_line, rows)]
    return "\n".join(lines)


def bullets(items: Iterable[str]) -> str:
    """Returns a Markdown list with one line for each item."""
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def _table_line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(_format_cell, cells))} |"


def _format_cell(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
