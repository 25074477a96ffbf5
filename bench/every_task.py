"""Fine-tunes every task from one command, and compares the predictions of its export in PyTorch.

    python bench/every_task.py --model exported --glue-dir glue_data \\
        --squad-train train-v1.1.json --squad-dev dev-v1.1.json \\
        --conll-train eng.train --conll-dev eng.testa --output runs

For each task it runs `bert-jax finetune` and `bert-jax export` as a user would, loads the export
with transformers, predicts the dev split, and compares every prediction with the run's
predictions/dev.jsonl. It needs `make install-parity`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GLUE_TASKS = ("sst2", "mrpc", "rte", "cola", "stsb", "wnli")
TOLERANCE = 1e-3
"""The allowed difference of probabilities, scores, and values; both sides use float32."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table; returns 1 if a prediction differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder or run folder")
    parser.add_argument("--glue-dir", required=True, help="folder of the official GLUE files")
    for task in ("squad", "conll"):
        for split in ("train", "dev"):
            parser.add_argument(f"--{task}-{split}", required=True)
    parser.add_argument("--tasks", nargs="+", default=[*GLUE_TASKS, "squad", "conll"])
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument(
        "--window-overlap", type=int, default=128, help="overlap of SQuAD windows (default: 128)"
    )
    parser.add_argument("--output", required=True, type=Path, help="folder for runs and exports")
    args = parser.parse_args(argv)
    print("| task | dev metrics | seconds | equal predictions in PyTorch | largest difference |")
    print("|---|---|---|---|---|")
    differ = False
    for task in args.tasks:
        run, exported = args.output / task, args.output / f"{task}-exported"
        start = time.monotonic()
        run_cli(["finetune", *task_arguments(args, task), "--model", args.model, "--run", run])
        seconds = time.monotonic() - start
        run_cli(["export", run, "--output", exported])
        assert (run / "report.html").stat().st_size > 0
        metrics = dev_metrics(run)
        num_equal, num_examples, largest_difference = compare(run, exported)
        differ |= num_equal < num_examples
        metric_text = ", ".join(f"{name} {value:.3f}" for name, value in list(metrics.items())[:3])
        print(
            f"| {task} | {metric_text} | {seconds:.0f} | {num_equal:,} of {num_examples:,} "
            f"| {largest_difference:.1e} |",
            flush=True,
        )
    return int(differ)


def dev_metrics(run: Path) -> dict[str, float]:
    """Reads the run's dev metrics; the metric that selected its checkpoint comes first."""
    metrics = json.loads((run / "evaluation.json").read_text())["dev"]
    config = json.loads((run / "config.json").read_text())["config"]
    first = config["train"]["checkpoints"]["best_metric"]
    return {first: metrics[first], **metrics}


def run_cli(arguments: list[Any]) -> None:
    """Runs `bert-jax ...` with its output on stderr."""
    command = [sys.executable, "-m", "bert_jax", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def task_arguments(args: argparse.Namespace, task: str) -> list[str]:
    """Returns the arguments of `bert-jax finetune` for a task."""
    common = ["--epochs", str(args.epochs), "--learning-rate", str(args.learning_rate)]
    if task in GLUE_TASKS:
        return [f"glue/{task}", "--glue-dir", args.glue_dir, *common]
    files = {split: getattr(args, f"{task}_{split}") for split in ("train", "dev")}
    common += ["--window-overlap", str(args.window_overlap)] if task == "squad" else []
    return [task, "--train", files["train"], "--dev", files["dev"], *common]


def compare(run: Path, exported: Path) -> tuple[int, int, float]:
    """Returns (number of equal predictions, number of examples, largest numeric difference)."""
    from bert_jax.config.config_lib import from_json
    from bert_jax.config.data import FineTuningData
    from bert_jax.config.experiment import Experiment
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.io.json_io import read_json_object
    from bert_jax.runs.run_folder import CONFIG
    from bert_jax.tasks.features import make_features
    from bert_jax.tasks.registry import kind_of
    from bert_jax.text.load_tokenizer import load_tokenizer

    experiment = from_json(Experiment, read_json_object(run / CONFIG)["config"])
    data = experiment.data
    assert isinstance(data, FineTuningData)
    task = load_task(data.task)
    length = experiment.train.phases[-1].seq_length
    tokenizer = load_tokenizer(run / "vocabulary")
    features = make_features(task, "dev", tokenizer, length, data.window_overlap)
    kind, examples = kind_of(task), task.splits["dev"]
    outputs = torch_outputs(kind, exported, features, data.batch_lengths(length), tokenizer.pad_id)
    predictions = kind.decode(examples, features, outputs, kind.make_head(task.labels))
    torch_predictions = kind.predictions_to_json(examples, predictions, task.labels)
    lines = (run / "predictions" / "dev.jsonl").read_text().splitlines()
    jax_predictions = [json.loads(line) for line in lines]
    pairs = list(zip(jax_predictions, torch_predictions, strict=True))
    distances = [max_difference(*pair) for pair in pairs]
    are_equal = [
        without_numbers(jax_prediction) == without_numbers(torch_prediction)
        for jax_prediction, torch_prediction in pairs
    ]
    num_equal = sum(a and d < TOLERANCE for a, d in zip(are_equal, distances, strict=True))
    return num_equal, len(pairs), max(distances)


def torch_outputs(kind: Any, exported: Path, features: Any, lengths: Any, pad_id: int) -> Any:
    """Computes the outputs of the transformers model, with the output names of bert_jax."""
    import torch
    import transformers

    from bert_jax.data.finetuning.loader import evaluation_batches, gather_outputs

    model = getattr(transformers, kind.description.auto_class).from_pretrained(exported).eval()

    def output_batches() -> Any:
        batches = evaluation_batches(
            features, lengths, batch_size=32, pad_id=pad_id, process_index=0, process_count=1
        )
        for numbers, batch in batches:
            names = ("input_ids", "token_type_ids", "attention_mask")
            found = model(**{name: torch.from_numpy(batch[name]).long() for name in names})
            if kind.name == "question_answering":
                named_outputs = {"start_logits": found.start_logits, "end_logits": found.end_logits}
            elif kind.name == "regression":
                named_outputs = {"values": found.logits[:, 0]}
            else:
                named_outputs = {"logits": found.logits}
            yield numbers, {name: values.numpy() for name, values in named_outputs.items()}

    with torch.no_grad():
        return gather_outputs(output_batches(), len(features))


def without_numbers(value: Any) -> Any:
    """Returns a prediction without its floats: only the labels, spans, and texts."""
    if isinstance(value, dict):
        return {name: without_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_numbers(part) for part in value]
    return None if isinstance(value, float) else value


def max_difference(left: Any, right: Any) -> float:
    """Returns the largest difference between corresponding floats of two predictions."""
    if isinstance(left, dict):
        return max((max_difference(left[n], right[n]) for n in left if n in right), default=0.0)
    if isinstance(left, list):
        pairs = zip(left, right, strict=False)
        return max((max_difference(*pair) for pair in pairs), default=0.0)
    return abs(left - right) if isinstance(left, float) else 0.0


if __name__ == "__main__":
    raise SystemExit(main())
