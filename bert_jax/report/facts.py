"""Renders the state of a run and facts about it: model, data, time, hardware, files, commands."""

import itertools
import statistics
from typing import Any

from bert_jax.models.encoder import FAMILIES
from bert_jax.report.html import definition_list, escape, section, table
from bert_jax.report.run_data import RunData, nested
from bert_jax.runs import attempt_log, metrics, run_folder
from bert_jax.runs.progress import format_duration


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
    steps_left, tokens = run.last_step, 0
    for phase in phases:
        steps = min(phase["steps"], steps_left)
        tokens += steps * phase["batch_size"] * phase["seq_length"]
        steps_left -= steps
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
