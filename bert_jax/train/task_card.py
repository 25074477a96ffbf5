"""What a model card says of a fine-tuning run: its data, its protocol, its results.

From the checkpoint's record, and from the run's `analysis.json` where the run is complete.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import flatten, to_json
from bert_jax.train import run_folder
from bert_jax.train.markdown import bullets, table
from bert_jax.train.page import number, words
from bert_jax.train.pretrained import RunRecord
from bert_jax.tuning.config import Tuning

_INTERVALS = (
    "Intervals are 95 % bootstrap intervals over the examples of a split. This is one training "
    "run, with seed {seed}: how runs of other seeds would vary is not in them."
)


def task_sections(run: RunRecord) -> list[str]:
    """Headings and texts: training data, training, results, hardware."""
    config = run.config
    file = run.folder / run_folder.ANALYSIS
    analysis = run_folder.read_json(file) if file.exists() else None
    together = []
    if run.task:
        together = [_together(run, analysis["mixture"] if analysis else [])]
    if run.task and analysis:
        epoch = sum(row["drawn_in_an_epoch"] for row in analysis["mixture"])
        analysis = {**analysis["tasks"][run.task], "train_rows": epoch}
    sections = ["## Training data", _data(config["data"], analysis), *together]
    sections += ["## Training", bullets(_protocol(config, run, analysis))]
    if analysis and analysis["splits"]:
        sections += ["## Results", _results(config, run, analysis)]
    elif run.info.get("metrics"):
        metrics = table(("metric", "value"), run.info["metrics"].items())
        sections += ["## Results of the last evaluation during training", metrics]
    if run.info.get("hardware"):
        rows = [(words(name), value) for name, value in run.info["hardware"].items()]
        sections += ["## Hardware", table(("what", ""), rows)]
    return sections


def _data(data: Mapping[str, Any], analysis: Mapping[str, Any] | None) -> str:
    source = {k: v for k, v in data["task"].items() if v is not None and k != "type"}
    # Where files lay on somebody's machine says nothing to others; their names may.
    named = [f"{words(k)} `{_file_name(v)}`" for k, v in source.items()]
    text = f"{data['task']['type']}: {', '.join(named)}."
    if analysis is None:
        return text
    rows = [(split, f"{count:,}") for split, count in analysis["examples"].items()]
    kind = words(analysis["kind"])
    text = f"`{analysis['task']}` ({kind}). {text}\n\n{table(('split', 'examples'), rows)}"
    return text + (f"\n\n{bullets(analysis['notes'])}" if analysis["notes"] else "")


def _together(run: RunRecord, mixture: Sequence[Mapping[str, Any]]) -> str:
    """The tasks that the encoder was trained on, of which this is one."""
    data, program = run.info["config"]["data"], run.info["config"]["program"]
    names = ", ".join(f"`{named['name']}`" for named in data["tasks"])
    text = (
        f"The encoder was trained on several tasks at once: {names}. This is `{run.task}`. Mixing "
        f"{data['mixing']['type']}, weighting {program['weighting']['type']}."
    )
    rows = [(row["task"], f"{row['rows']:,}", f"{row['drawn_in_an_epoch']:,}") for row in mixture]
    return f"{text}\n\n{table(('task', 'rows', 'drawn in an epoch'), rows)}" if rows else text


def _protocol(
    config: Mapping[str, Any], run: RunRecord, analysis: Mapping[str, Any] | None
) -> list[str]:
    train, program = config["train"], config["program"]
    optimizer, schedule = train["optimizer"], train["schedule"]
    total = sum(phase["steps"] for phase in train["phases"])
    lines = [f"started from `{_file_name(config['init_from'])}`"] if config["init_from"] else []
    for phase in train["phases"]:
        epochs = ""
        if analysis and analysis["train_rows"]:
            share = phase["steps"] / -(-analysis["train_rows"] // phase["batch_size"])
            epochs = f" ({share:.3g} epochs)"
        lines.append(
            f"{phase['steps']:,} steps{epochs} of {phase['batch_size']} rows of at most "
            f"{phase['length']} tokens"
        )
    lines += [
        f"{optimizer['type']}, weight decay {optimizer['weight_decay']}; learning rate up to "
        f"{schedule['peak']:g} in {schedule['warmup_steps']:,} steps, then down to 0 at step "
        f"{total:,}; gradients clipped at {train['clip_norm']:g}",
        f"dropout {program['model']['hidden_dropout']:g} in the encoder and "
        f"{program['dropout']:g} before the head; label smoothing {program['label_smoothing']:g}",
        f"seed {config['seed']}",
        f"selection: {_selection(train, run)}",
    ]
    if program["class_weights"]:
        lines.append(f"class weights {', '.join(f'{w:g}' for w in program['class_weights'])}")
    usual, tuning = flatten(to_json(Tuning())), flatten(train["tuning"])
    changed = {k: v for k, v in tuning.items() if v != usual.get(k) and v is not None}
    if changed:
        lines.append("tuning: " + ", ".join(f"`{name} = {v}`" for name, v in changed.items()))
    return lines


def _selection(train: Mapping[str, Any], run: RunRecord) -> str:
    metric, best = train["checkpoints"]["keep_best"], run.info.get("best") or {}
    if metric is None or best.get("step") is None:
        return f"none; these are the parameters of step {run.step:,}"
    split = (train["evaluation"] or {}).get("split", "held-out")
    text = f"evaluated on {split} every {train['evaluation']['every']:,} steps"
    if best["step"] == run.step:
        value = number(metric, best["value"])
        return f"{text}; step {run.step:,} had the best {words(metric)} ({value})"
    return f"{text}; these are the parameters of step {run.step:,}, which was not the best"


def _results(config: Mapping[str, Any], run: RunRecord, analysis: Mapping[str, Any]) -> str:
    rows = [
        (
            split,
            f"{found['examples']:,}",
            words(row["metric"]),
            number(row["metric"], row["value"]),
            f"{number(row['metric'], row['low'])} to {number(row['metric'], row['high'])}",
        )
        for split, found in analysis["splits"].items()
        for row in found["headline"]
    ]
    results = table(("split", "examples", "metric", "value", "interval"), rows)
    text = f"{results}\n\n{_INTERVALS.format(seed=config['seed'])}"
    chosen = (config["train"]["evaluation"] or {}).get("split")
    if chosen in analysis["splits"] and config["train"]["checkpoints"]["keep_best"]:
        text += f" The checkpoint was chosen on {chosen}, which flatters the numbers there."
    if analysis["step"] != run.step:
        text += (
            f" They were measured with the parameters of step {analysis['step']:,}; this folder "
            f"holds those of step {run.step:,}."
        )
    return text


def _file_name(value: Any) -> str:
    return Path(value).name if isinstance(value, str) else str(value)
