"""`bert-jax data show`: a task's examples as the model sees them, before anything is trained."""

import argparse
import sys
from typing import TYPE_CHECKING

from bert_jax.cli.task_arguments import TASKS_HELP, add_task_arguments, task_config

if TYPE_CHECKING:
    from bert_jax.data.labelled.task import Task
    from bert_jax.text.vocabulary import Vocabulary

HELP = "show a task as the model sees it: tokens, balance of labels, what does not fit"

EPILOG = f"""\
{TASKS_HELP}
examples:
  bert-jax data show glue/rte --glue-dir glue --vocab vocabulary --max-length 128
  bert-jax data show columns --train reviews.csv --dev more.csv --text review --label stars \\
      --vocab vocabulary
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TASK and its flags, --vocab, --max-length, --show."""
    parser.epilog = EPILOG
    add_task_arguments(parser)
    parser.add_argument(
        "--vocab", required=True, metavar="PATH", help="a vocabulary's file or folder"
    )
    parser.add_argument(
        "--max-length", type=int, default=128, metavar="N", help="of a row (default: 128)"
    )
    parser.add_argument(
        "--show", type=int, default=3, metavar="N", help="how many to show (default: 3)"
    )


def run(args: argparse.Namespace) -> None:
    """Prints a summary, a table of splits, and examples; warns of overlap on standard error."""
    config = task_config(args)

    from bert_jax.data.labelled.inspection import overlap
    from bert_jax.data.labelled.read import read_task
    from bert_jax.text.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(args.vocab)
    task = read_task(config)
    named = f", labels {', '.join(task.labels)}" if task.labels else ""
    print(f"{task.name}: {task.kind}{named}; measured by {', '.join(task.metrics)}")
    for note in task.notes:
        print(f"note: {note}")
    for split in task.splits:
        print(_split_line(task, split, vocabulary, args.max_length))
    for split in task.splits:
        if split != "train" and (count := overlap(task, split)):
            print(
                f"warning: {count:,} of {len(task.splits[split]):,} examples of {split} have a "
                "text that is in train too",
                file=sys.stderr,
            )
    _show_examples(task, next(iter(task.splits)), vocabulary, args)


def _split_line(task: "Task", split: str, vocabulary: "Vocabulary", max_length: int) -> str:
    from bert_jax.data.labelled.inspection import balance, piece_lengths, scores

    count = len(task.splits[split])
    counts = balance(task, split)
    total = sum(counts.values()) or 1
    shares = [f"{label} {n:,} ({n / total:.1%})" for label, n in counts.items()]
    numbers = scores(task, split)
    if len(numbers):
        shares.append(f"from {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.3g}")
    lengths = piece_lengths(task, split, vocabulary, max_length)
    windows = task.kind in ("tagging", "question_answering")
    fate = "cut into windows" if windows else "truncated"
    return (
        f"\n{split}: {count:,} examples\n"
        f"  labels: {', '.join(shares)}\n"
        f"  pieces: median {lengths.median}, 95 % within {lengths.percentile_95}, "
        f"longest {lengths.longest}\n"
        f"  longer than {max_length}, {fate}: {lengths.too_long:,} "
        f"({lengths.too_long / max(count, 1):.1%})"
    )


def _show_examples(
    task: "Task", split: str, vocabulary: "Vocabulary", args: argparse.Namespace
) -> None:
    """The first rows of a split: tokens, type ids, targets."""
    from dataclasses import replace

    from bert_jax.data.labelled.features import make_features
    from bert_jax.data.labelled.inspection import label_text

    few = replace(task, splits={split: task.splits[split][: args.show]})
    features = make_features(few, split, vocabulary, args.max_length)
    for row, number in enumerate(features.example):
        example = few.splits[split][number]
        print(f"\n{split}, example {example.id}: {label_text(example)}")
        for text in range(row * features.choices, (row + 1) * features.choices):
            tokens = [vocabulary.token(int(i)) for i in features.input_ids[text]]
            print(f"  tokens:         {' '.join(tokens)}")
            print(f"  token_type_ids: {' '.join(map(str, features.token_type_ids[text]))}")
        for name, values in features.targets.items():
            value = values[row]
            print(f"  {name}: {' '.join(map(str, value)) if hasattr(value, '__len__') else value}")
