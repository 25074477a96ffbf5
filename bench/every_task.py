"""Each task from one command to metrics, report, export, and the same predictions in PyTorch.

    python bench/every_task.py --model exported --glue-dir glue_data \\
        --squad-train train-v1.1.json --squad-dev dev-v1.1.json \\
        --conll-train eng.train --conll-dev eng.testa --output runs

For each task this runs `bert-jax finetune` and `bert-jax export` as a user would, opens the export
with transformers, lets it read the dev split, and compares what it decides for every example with
the run's predictions/dev.jsonl. Needs `make install-parity`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GLUE = ("sst2", "mrpc", "rte", "cola", "stsb", "wnli")
TOLERANCE = 1e-3
"""How far probabilities, scores and values may lie apart: float32 on both sides."""
CLASSES = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, as Markdown; 1 when a prediction differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a Hugging Face folder or a run")
    parser.add_argument("--glue-dir", required=True, help="the official files")
    for task in ("squad", "conll"):
        for split in ("train", "dev"):
            parser.add_argument(f"--{task}-{split}", required=True)
    parser.add_argument("--tasks", nargs="+", default=[*GLUE, "squad", "conll"])
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--stride", type=int, default=128, help="of SQuAD's windows (default 128)")
    parser.add_argument("--output", required=True, type=Path, help="folder for runs and exports")
    args = parser.parse_args(argv)
    print(
        "| task | dev metrics | seconds | rows that PyTorch decides alike | greatest difference |"
    )
    print("|---|---|---|---|---|")
    differ = False
    for task in args.tasks:
        run, exported = args.output / task, args.output / f"{task}-exported"
        begin = time.monotonic()
        call(["finetune", *flags(args, task), "--model", args.model, "--run", run])
        seconds = time.monotonic() - begin
        call(["export", run, "--output", exported])
        assert (run / "report.html").stat().st_size > 0
        metrics = dev_metrics(run)
        alike, rows, greatest = compare(run, exported)
        differ |= alike < rows
        named = ", ".join(f"{name} {value:.3f}" for name, value in list(metrics.items())[:3])
        print(
            f"| {task} | {named} | {seconds:.0f} | {alike:,} of {rows:,} | {greatest:.1e} |",
            flush=True,
        )
    return int(differ)


def dev_metrics(run: Path) -> dict[str, float]:
    """What the run left of its dev split, the metric that chose its checkpoint first."""
    metrics = json.loads((run / "evaluation.json").read_text())["dev"]
    config = json.loads((run / "config.json").read_text())["config"]
    first = config["train"]["checkpoints"]["keep_best"]
    return {first: metrics[first], **metrics}


def call(arguments: list[Any]) -> None:
    """`bert-jax ...`, its messages to stderr."""
    command = [sys.executable, "-m", "bert_jax", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def flags(args: argparse.Namespace, task: str) -> list[str]:
    """What names a task and how it is trained."""
    common = ["--epochs", str(args.epochs), "--learning-rate", str(args.learning_rate)]
    if task in GLUE:
        return [f"glue/{task}", "--glue-dir", args.glue_dir, *common]
    files = {split: getattr(args, f"{task}_{split}") for split in ("train", "dev")}
    common += ["--set", f"data.stride={args.stride}"] if task == "squad" else []
    return [task, "--train", files["train"], "--dev", files["dev"], *common]


def compare(run: Path, exported: Path) -> tuple[int, int, float]:
    """(examples decided alike, examples, greatest difference of a number that is predicted)."""
    from bert_jax.config import from_json
    from bert_jax.data.config import Labelled
    from bert_jax.data.labelled.features import make_features
    from bert_jax.data.labelled.read import read_task
    from bert_jax.evals import verdicts
    from bert_jax.experiment import Experiment
    from bert_jax.text.vocabulary import load_vocabulary
    from bert_jax.train.run_folder import CONFIG, read_json

    experiment = from_json(Experiment, read_json(run / CONFIG)["config"])
    data = experiment.data
    assert isinstance(data, Labelled)
    task = read_task(data.task)
    length = experiment.train.phases[-1].length
    vocabulary = load_vocabulary(run / "vocabulary")
    features = make_features(task, "dev", vocabulary, length, data.stride)
    outputs = torch_outputs(task.kind, exported, features, data.lengths(length), vocabulary.pad_id)
    examples = task.splits["dev"]
    decided = verdicts.decide(task, examples, features, outputs)
    theirs = verdicts.predictions(task, examples, decided)
    lines = (run / "predictions" / "dev.jsonl").read_text().splitlines()
    ours = [json.loads(line) for line in lines]
    pairs = list(zip(ours, theirs, strict=True))
    distances = [greatest_difference(*pair) for pair in pairs]
    alike = [words(one) == words(other) for one, other in pairs]
    same = sum(a and d < TOLERANCE for a, d in zip(alike, distances, strict=True))
    return same, len(pairs), max(distances)


def torch_outputs(kind: str, exported: Path, features: Any, lengths: Any, pad_id: int) -> Any:
    """What transformers' model says of each row, by the names of our own predictions."""
    import torch
    import transformers

    from bert_jax.data.labelled.loader import evaluation_batches
    from bert_jax.evals import verdicts

    model = getattr(transformers, CLASSES[kind]).from_pretrained(exported).eval()

    def said() -> Any:
        batches = evaluation_batches(
            features, lengths, batch_size=32, pad_id=pad_id, host_index=0, host_count=1
        )
        for numbers, batch in batches:
            names = ("input_ids", "token_type_ids", "attention_mask")
            found = model(**{name: torch.from_numpy(batch[name]).long() for name in names})
            if kind == "question_answering":
                named = {"start_logits": found.start_logits, "end_logits": found.end_logits}
            elif kind == "regression":
                named = {"values": found.logits[:, 0]}
            else:
                named = {"logits": found.logits}
            yield numbers, {name: values.numpy() for name, values in named.items()}

    with torch.no_grad():
        return verdicts.gather(said(), len(features))


def words(value: Any) -> Any:
    """A prediction without its numbers: what was decided."""
    if isinstance(value, dict):
        return {name: words(part) for name, part in value.items()}
    if isinstance(value, list):
        return [words(part) for part in value]
    return None if isinstance(value, float) else value


def greatest_difference(one: Any, other: Any) -> float:
    """Between the numbers of two predictions, where they are of the same form."""
    if isinstance(one, dict):
        return max((greatest_difference(one[n], other[n]) for n in one if n in other), default=0.0)
    if isinstance(one, list):
        pairs = zip(one, other, strict=False)
        return max((greatest_difference(*pair) for pair in pairs), default=0.0)
    return abs(one - other) if isinstance(one, float) else 0.0


if __name__ == "__main__":
    raise SystemExit(main())
