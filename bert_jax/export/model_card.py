"""Writes the model card (README.md) of an export from the recorded facts of its run.

The facts come from the checkpoint, and from the `analysis.json` of a complete fine-tuning run.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import flatten, to_json
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.corpus.contamination.found_items import (
    ITEMS_FILE,
    NOT_SEARCHABLE,
    ItemRow,
    read_item_rows,
)
from bert_jax.errors import UserError
from bert_jax.io.json_io import read_json_object
from bert_jax.models.families import format_of
from bert_jax.models.heads.config import TaskHead, class_labels, label_thresholds
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, RunCheckpoint
from bert_jax.report.html import format_value, humanize
from bert_jax.report.run_data import tokens_read
from bert_jax.runs import run_folder
from bert_jax.runs.metrics import FILE as METRICS_FILE
from bert_jax.runs.metrics import TRAIN, read_metrics
from bert_jax.tasks.registry import kind_of_head
from bert_jax.version import __version__

_USAGE = """\
```python
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {auto}.from_pretrained("{name}")
```
"""
_PEFT_USAGE = """\
```python
from peft import PeftModel
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {auto}.from_pretrained("{base}"{labels})
model = PeftModel.from_pretrained(model, "{name}")
```
"""
_BERT_JAX_USAGE = """\
With bert_jax, to get {result} from texts:

```
bert-jax predict {name} {example}
```

```python
from bert_jax.version import __version__

predict = bert_jax.Predictor(bert_jax.load_model("{name}"))
```
"""


@dataclass(frozen=True, kw_only=True)
class AdapterFacts:
    """Holds what the card of an adapter folder says about it.

    Attributes:
      method: the name of the method, such as "LoRA".
      base: the model that it was trained on.
      num_parameters: the number of parameters in the folder, the head included.
      num_bytes: the size of their file.
    """

    method: str
    base: str
    num_parameters: int
    num_bytes: int


def model_card(
    model: LoadedModel,
    name: str,
    difference: float,
    adapter: AdapterFacts | None = None,
    onnx_lines: Sequence[str] = (),
) -> str:
    """Returns the card of an export as Markdown, with the front matter that model hubs read.

    Args:
      model: the exported model.
      name: the name of the export, which is its folder's name.
      difference: the largest difference between the outputs of the model and of its export; for
        an adapter, between their parameters.
      adapter: facts of an adapter folder; None for the export of a whole model.
      onnx_lines: facts of the ONNX files in the folder, if there are any.
    """
    sections = ["\n".join(_front_matter(model, adapter)), f"# {name}", _summary(model, adapter)]
    if model.head is not None:
        sections += ["## Task", _task_section(model.head)]
    if model.tokenizer:
        auto_class = "AutoModel"
        if model.head is not None:
            auto_class += kind_of_head(model.head).hugging_face_class
        sections += ["## Use", _usage(model, name, auto_class, adapter)]
    if model.tokenizer and model.head:
        task = kind_of_head(model.head).description
        usage = _BERT_JAX_USAGE.format(
            name=name, result=task.result, example=task.example_arguments
        )
        sections.append(usage)
    if onnx_lines:
        sections += ["## ONNX", "\n\n".join(onnx_lines)]
    if model.run is not None:
        sections += run_sections(model.run)
    sections += [
        "## How this folder was made",
        "\n".join(provenance_lines(model, difference, adapter)),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _usage(model: LoadedModel, name: str, auto_class: str, adapter: AdapterFacts | None) -> str:
    if adapter is None:
        return _USAGE.format(name=name, auto=auto_class)
    num_labels = 0
    if model.head is not None:
        has_one_output = kind_of_head(model.head).output_field is not None
        num_labels = 1 if has_one_output else len(class_labels(model.head))
    labels = f", num_labels={num_labels}" if num_labels else ""
    return _PEFT_USAGE.format(name=name, auto=auto_class, base=adapter.base, labels=labels)


def _front_matter(model: LoadedModel, adapter: AdapterFacts | None) -> list[str]:
    library = (
        ["library_name: transformers"]
        if adapter is None
        else ["library_name: peft", f"base_model: {adapter.base}"]
    )
    lines = [
        "---",
        *library,
        "tags:",
        f"- {format_of(model.config).model_type(model.config)}",
        "- bert_jax",
    ]
    if model.head is not None:
        lines.append(f"pipeline_tag: {kind_of_head(model.head).description.pipeline_tag}")
    elif "masked_lm" not in model.missing:
        lines.append("pipeline_tag: fill-mask")
    return [*lines, "---"]


def _summary(model: LoadedModel, adapter: AdapterFacts | None) -> str:
    config = model.config
    if adapter is not None:
        return (
            f"What {adapter.method} trained on the {config.family} encoder `{adapter.base}`: "
            f"{adapter.num_parameters:,} parameters with the head, {adapter.num_bytes:,} bytes. "
            "The base is needed to use it; `bert_jax_adapter.json` has its fingerprint."
        )
    count = sum(leaf.size for leaf in paths.flatten(model.params).values())
    missing_heads = ""
    if model.missing and model.head is None:
        missing_heads = f" It has no {' and no '.join(model.missing)} head."
    return (
        f"A {config.family} encoder: {config.num_hidden_layers} layers, hidden size "
        f"{config.hidden_size}, {config.num_attention_heads} attention heads, a vocabulary of "
        f"{config.vocab_size} tokens, sequences of up to {config.max_length} tokens, {count:,} "
        "parameters in float32."
        f"{missing_heads}"
    )


def _task_section(head: TaskHead) -> str:
    labels = getattr(head, "labels", ())
    text = f"Output of the head: {kind_of_head(head).description.head_output}."
    if not labels:
        return text
    rows = [(str(number), f"`{label}`") for number, label in enumerate(labels)]
    thresholds = label_thresholds(head)
    if not thresholds:
        return f"{text}\n\n{table(('id', 'label'), rows)}"
    rows = [(*row, f"{threshold:.4g}") for row, threshold in zip(rows, thresholds, strict=True)]
    text += (
        " A label is predicted if its probability is above its threshold, which is in "
        "`config.json` (`label_thresholds`). Pipelines of transformers ignore the thresholds."
    )
    return f"{text}\n\n{table(('id', 'label', 'threshold'), rows)}"


def run_sections(run: RunCheckpoint) -> list[str]:
    config, metrics = run.info["config"], run.info.get("metrics") or {}
    sections = []
    if config["data"]["type"] == "PretrainingData":
        sections += ["## Training data", _data_section(config["data"])]
        sections += _evaluation_sets_sections(run.folder)
        sections += ["## Training", "\n".join(_training_lines(config, run))]
    if run.config["data"]["type"] == "FineTuningData":
        sections += model_card_sections(run)
    elif metrics:
        sections += ["## Results on held-out data", table(("metric", "value"), metrics.items())]
    last_row = _last_training_row(run)
    if last_row:
        values = [(k, v) for k, v in last_row.items() if k not in ("split", "step", "phase")]
        sections += [
            f"## Last training metrics (step {last_row['step']})",
            table(("metric", "value"), values),
        ]
    sections += ["## Versions", table(("package", "version"), run.info["versions"].items())]
    resolved = json.dumps(config, indent=2)
    sections += [
        "<details><summary>Resolved config</summary>",
        f"```json\n{resolved}\n```",
        "</details>",
    ]
    return sections


def _data_section(data: Mapping[str, Any]) -> str:
    if isinstance(data["corpus"], str):
        return _corpus_section(data["corpus"])
    corpora = data["corpus"]["corpora"]  # a mixture
    return "\n\n".join(f"`{c['folder']}`:\n\n{_corpus_section(c['folder'])}" for c in corpora)


def _corpus_section(folder: str) -> str:
    manifest_file = Path(folder) / "manifest.json"
    try:
        manifest = read_json_object(manifest_file)
        counts, dropped = manifest["counts"], manifest["dropped"]
    except (UserError, KeyError):
        return f"Prepared corpus `{folder}` (its manifest could not be read at export)."
    source = manifest["source"]
    curation = source.pop("curation", {})
    rows: dict[str, Any] = {f"source: {k}": _abbreviate(v) for k, v in source.items()}
    rows |= {f"curation: {name}": f"{count:,}" for name, count in curation.items()}
    rows |= {name.replace("_", " "): f"{value:,}" for name, value in counts.items()}
    rows |= {f"dropped: {reason}": f"{count:,}" for reason, count in dropped.items()}
    rows |= {"fingerprint": manifest["fingerprint"]}
    rows |= {"vocabulary": manifest["tokenizer_fingerprint"]}
    return table(("prepared corpus", "value"), rows.items())


def _evaluation_sets_sections(folder: Path) -> list[str]:
    """Returns a heading and a table of the evaluation sets that the corpus was searched for."""
    if not (folder / ITEMS_FILE).is_file():
        return []
    try:
        items = read_item_rows(folder)
    except UserError as error:  # the card is useful without them, too
        return ["## Evaluation data in the corpus", f"It could not be read at export: {error}"]
    sets: dict[str, list[ItemRow]] = {}
    for item in items:
        sets.setdefault(f"{item.set_name} {item.split}", []).append(item)
    rows = [
        (
            name,
            f"{len(each):,}",
            f"{sum(item.rule not in NOT_SEARCHABLE for item in each):,}",
            f"{sum(item.input_documents > 0 for item in each):,}",
            f"{sum(item.removed_documents > 0 for item in each):,}",
        )
        for name, each in sets.items()
    ]
    header = ("evaluation set", "items", "searched", "in the corpus", "removed from the corpus")
    return ["## Evaluation data in the corpus", table(header, rows)]


def _training_lines(config: Mapping[str, Any], run: RunCheckpoint) -> list[str]:
    train = config["train"]
    optimizer, schedule = train["optimizer"], train["schedule"]
    total = sum(phase["steps"] for phase in train["phases"])
    lines = [f"{run.step:,} of {total:,} steps, seed {config['seed']}.", ""]
    lines += [
        f"- {phase['steps']:,} steps, each with {phase['batch_size']} sequences of length "
        f"{phase['seq_length']} and at most {phase['max_predictions_per_seq']} predictions in each"
        for phase in train["phases"]
    ]
    lines.append(
        f"- {optimizer['type']}, weight decay {optimizer['weight_decay']}; learning rate: warmup "
        f"to {schedule['peak_learning_rate']:g} in {schedule['warmup_steps']:,} steps, then decay "
        f"to 0; {gradient_clipping(train)}"
    )
    lines.append(f"- {tokens_read(train['phases'], run.step):,} tokens read, padding included")
    if without := config["data"].get("without"):
        lines.append(f"- without the documents of `{without}` (`data.without`)")
    if config.get("init_from"):
        lines.append(f"- started from `{config['init_from']}`")
    lines += [f"- {line}" for line in distillation_lines(config["objective"])]
    return lines


def _last_training_row(run: RunCheckpoint) -> dict[str, Any] | None:
    """Returns the newest training row of `metrics.jsonl` that belongs to this checkpoint."""
    try:
        rows = read_metrics(run.folder / METRICS_FILE)
    except (UserError, OSError):  # the card is useful without these metrics, too
        return None
    rows = [row for row in rows if row["split"] == TRAIN and row["step"] <= run.step]
    return rows[-1] if rows else None


def provenance_lines(
    model: LoadedModel, difference: float, adapter: AdapterFacts | None
) -> list[str]:
    written_by = f"Written by bert_jax {__version__}"
    commit = _commit()
    lines = [f"{written_by} (commit `{commit}`)." if commit else f"{written_by}."]
    if model.run is None:
        lines.append(f"Converted from `{Path(model.path).name}`.")
    if adapter is not None:
        return [
            *lines,
            "The folder was read back with its base after writing: no parameter of the model "
            f"differs by more than {difference:.1e}.",
        ]
    lines.append(
        "The folder was read back after writing: all parameters are identical bit for bit, and "
        f"the hidden states{' and outputs of the head' if model.head else ''} differ by at most "
        f"{difference:.1e} (float32)."
    )
    return lines


def _commit() -> str | None:
    """Returns the commit of this package's source tree; None if it is not in a repository."""
    package = Path(__file__).parent

    def git(*args: str) -> str:
        command = ["git", "-C", str(package), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not a copy inside another repository
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _abbreviate(value: Any) -> str:
    """Formats a value; of a long list, its first five items and the number of the others."""
    if isinstance(value, list) and len(value) > 5:
        return f"{', '.join(map(str, value[:5]))} and {len(value) - 5} more"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


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
    sections = ["## Training data", _task_data_section(config["data"], analysis), *mixture_section]
    sections += ["## Training", bullets(_fine_tuning_lines(config, run, analysis))]
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


def _task_data_section(data: Mapping[str, Any], analysis: Mapping[str, Any] | None) -> str:
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


def _fine_tuning_lines(
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
    if analysis and "temperature" in analysis and analysis["step"] == run.step:
        lines.append(
            f"calibration: the last layer was divided by the temperature "
            f"{analysis['temperature']:.4g}, fitted on dev (Guo et al. 2017), so every reader of "
            "this folder has the calibrated probabilities"
        )
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
