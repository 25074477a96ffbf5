"""Runs `bert-jax data inspect`: prints statistics and tokenized examples of a task."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert_jax.data.finetuning.example import Task
    from bert_jax.text.tokenizer import Tokenizer

from bert_jax.cli.arguments import TASKS_HELP, TaskArguments
from bert_jax.config.flags import REQUIRED, flag

logger = logging.getLogger(__name__)

HELP = "inspect the data of a task: tokens, label balance, truncation, overlap of splits"

EPILOG = f"""\
{TASKS_HELP}
examples:
  bert-jax data inspect glue/rte --glue-dir glue --tokenizer vocabulary
  bert-jax data inspect columns --train reviews.csv --dev more.csv --text review --label stars \\
      --tokenizer vocabulary
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(TaskArguments):
    """Names the task, the tokenizer, and what is printed."""

    tokenizer: str = flag("PATH", "file or folder of a tokenizer", REQUIRED)
    max_length: int = flag("TOKENS", "maximum length of a sequence", 128)
    num_examples: int = flag("N", "number of examples to print", 3)


def run(args: Arguments) -> None:
    """Prints a summary of each split and some examples; warns if a split overlaps with train."""
    config = args.task_config()

    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.tasks.analysis import count_overlap
    from bert_jax.text.load_tokenizer import load_tokenizer

    tokenizer = load_tokenizer(args.tokenizer)
    task = load_task(config)
    label_names = f", labels {', '.join(task.labels)}" if task.labels else ""
    print(f"{task.name}: {task.kind}{label_names}; measured by {', '.join(task.metrics)}")
    for note in task.notes:
        print(f"note: {note}")
    for split in task.splits:
        print(_split_summary(task, split, tokenizer, args.max_length))
    for split in task.splits:
        if split != "train" and (count := count_overlap(task, split)):
            logger.warning(
                "warning: %s of %s examples of %s have a text that also occurs in train",
                f"{count:,}",
                f"{len(task.splits[split]):,}",
                split,
            )
    _print_examples(task, next(iter(task.splits)), tokenizer, args)


def _split_summary(task: "Task", split: str, tokenizer: "Tokenizer", max_length: int) -> str:
    from bert_jax.tasks.analysis import count_labels, length_stats, regression_labels
    from bert_jax.tasks.registry import kind_of

    count = len(task.splits[split])
    label_counts = count_labels(task, split)
    total = sum(label_counts.values()) or 1
    label_fractions = [f"{label} {n:,} ({n / total:.1%})" for label, n in label_counts.items()]
    label_values = regression_labels(task, split)
    if len(label_values):
        label_fractions.append(
            f"from {label_values.min():g} to {label_values.max():g}, mean {label_values.mean():.3g}"
        )
    lengths = length_stats(task, split, tokenizer, max_length)
    truncation = "cut into windows" if kind_of(task).reads_windows else "truncated"
    return (
        f"\n{split}: {count:,} examples\n"
        f"  labels: {', '.join(label_fractions)}\n"
        f"  tokens: median {lengths.median}, 95 % within {lengths.percentile_95}, "
        f"longest {lengths.maximum}\n"
        f"  longer than {max_length}, {truncation}: {lengths.num_over_limit:,} "
        f"({lengths.num_over_limit / max(count, 1):.1%})"
    )


def _print_examples(task: "Task", split: str, tokenizer: "Tokenizer", args: Arguments) -> None:
    """Prints the first sequences of a split: tokens, token type ids and targets."""
    from dataclasses import replace

    import numpy as np

    from bert_jax.tasks.features import make_features
    from bert_jax.tasks.registry import kind_of

    subset = replace(task, splits={split: task.splits[split][: args.num_examples]})
    features = make_features(subset, split, tokenizer, args.max_length)
    for index, example_index in enumerate(features.example_index):
        example = subset.splits[split][example_index]
        print(f"\n{split}, example {example.id}: {kind_of(task).format_label(example)}")
        for choice_index in range(index * features.num_choices, (index + 1) * features.num_choices):
            tokens = [tokenizer.id_to_token(int(i)) for i in features.input_ids[choice_index]]
            print(f"  tokens:         {' '.join(tokens)}")
            print(f"  token_type_ids: {' '.join(map(str, features.token_type_ids[choice_index]))}")
        for name, values in features.targets.items():
            value = values[index]
            shown = " ".join(map(str, value)) if isinstance(value, np.ndarray) else value
            print(f"  {name}: {shown}")
