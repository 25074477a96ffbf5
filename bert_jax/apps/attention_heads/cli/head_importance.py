"""Runs `bert-jax head-importance`: which attention heads a fine-tuned model needs for its task."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import MODEL_WITH_HEAD, TASKS_HELP, ModelArguments, TaskArguments
from bert_jax.config.flags import flag
from bert_jax.errors import check_range

logger = logging.getLogger(__name__)

HELP = "measure how much a task needs each attention head, and remove heads"

EPILOG = f"""examples:
  bert-jax head-importance runs/rte glue/rte --glue-dir glue_data --output importance
  bert-jax head-importance runs/reviews --dev dev.csv --text review --label sentiment --limit 500

{MODEL_WITH_HEAD}
{TASKS_HELP}
After Michel et al. 2019: the importance of a head by the gradient of the loss with respect to its
mask, and by ablation (the metric with all heads minus that without this one). Then heads are
removed: the least important first by gradient, by ablation, and in one random order. Gradients are
of the split train if there is one. Each head costs an evaluation of the split: limit the examples.

Heads are written as LAYER-HEAD, layers from 1 and heads from 0. --output FOLDER gets
head-importance.json and head-importance.html, a page that opens offline.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(TaskArguments, ModelArguments):
    """Names the model, the task and the examples."""

    split: str = flag("NAME", "split on which metrics are computed", "dev")
    model_task: str | None = flag("NAME", "for a multi-task run: the task whose head to use")
    limit: int | None = flag("N", "first examples of each split to read (default: all)")
    batch_size: int = flag("N", "sequences computed at once", 32)
    output: str | None = flag("FOLDER", "folder of the JSON file and the page")

    def __post_init__(self) -> None:
        check_range("--batch-size", self.batch_size, at_least=1)
        if self.limit is not None:
            check_range("--limit", self.limit, at_least=1)


def run(args: Arguments) -> None:
    """Prints the most important heads and the metric while heads are removed."""
    config = args.task_config()
    from tqdm import tqdm

    from bert_jax.apps.attention_heads.importance import head_importance, num_evaluations
    from bert_jax.apps.attention_heads.page import importance_page, strongest_heads
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.pretrained.load import load_model, require_encoder, require_single_task
    from bert_jax.report.output_folder import write_results
    from bert_jax.report.text_table import format_table

    check_writable(args.output, is_folder=True)
    model = require_encoder(load_model(args.model, args.model_task), "measure its attention heads")
    require_single_task(model, "--model-task")
    task = load_task(config)
    for note in task.notes:
        logger.info("note: %s", note)
    total = num_evaluations(model.config)
    with tqdm(desc="masking heads", total=total, unit=" evaluations", disable=None) as bar:
        found = head_importance(
            model,
            task,
            args.split,
            limit=args.limit,
            batch_size=args.batch_size,
            on_progress=bar.update,
        )
    print(f"{found.metric} with all heads: {found.value:.4f}\n")
    rows = [["gradient", *strongest_heads(found.gradient)]]
    rows += [["ablation", *strongest_heads(found.ablation)]]
    print(format_table(["importance by", "mean", "largest", "", ""], rows) + "\n")
    counts = [count for count, _ in found.curves["gradient"]]
    curves = [[f"{value:.4f}" for _, value in curve] for curve in found.curves.values()]
    header = ["removed heads", *(f"by {name}" for name in found.curves)]
    print(format_table(header, [[str(n), *row] for n, *row in zip(counts, *curves, strict=True)]))
    if args.output is not None:
        num_examples = len(task.splits[args.split][: args.limit])
        results: dict[str, Any] = {
            "model": args.model,
            "task": task.name,
            "split": args.split,
            "examples": num_examples,
            "metric": found.metric,
            "value": found.value,
            "gradient": found.gradient.tolist(),
            "ablation": found.ablation.tolist(),
            "curves": found.curves,
        }
        description = f"{task.name}, {num_examples:,} examples of the split {args.split}"
        page = importance_page(f"Importance of the heads of {args.model}", description, found)
        write_results(Path(args.output), "head-importance", results, page)
