"""Runs `bert-jax evaluate`: prints the metrics of a fine-tuned model on labeled data, as JSON."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import (
    CONTAMINATION,
    MODEL_WITH_HEAD,
    TASKS_HELP,
    PredictionArguments,
    TaskArguments,
    load_predictor,
)
from bert_jax.config.config_lib import is_same_path
from bert_jax.config.flags import flag
from bert_jax.errors import ConfigError, UserError

if TYPE_CHECKING:
    from bert_jax.data.finetuning.example import Task

HELP = "compute the metrics of a fine-tuned model on any labeled split"

EPILOG = f"""\
examples:
  bert-jax evaluate runs/reviews --test new.csv --text review --label sentiment
  bert-jax evaluate exported glue/rte --glue-dir glue_data --split dev
  bert-jax evaluate runs/all conll --dev eng.testb --model-task conll
  bert-jax evaluate exported glue/rte --glue-dir glue_data --contamination curated

{MODEL_WITH_HEAD}
{TASKS_HELP}
Prints JSON to stdout, such as {{"dev": {{"examples": 277, "accuracy": 0.91, ...}}, ...}}, with the
metrics rounded to 6 decimals; notes on the data go to stderr. Splits without labels, such as the
test sets of GLUE, are left out; it is an error if none has labels.

If it is known which examples are in the pretraining corpus, "by_contamination" has the metrics on
the examples that were found there, on those that were not ("clean"), and on those that could not be
searched, each with the number of examples and the 95 % bootstrap interval of the first metric. It
is known from --contamination, or from the file contamination-items.parquet in the folder of the
model.
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Arguments(TaskArguments, PredictionArguments):
    """Names the model, the task and the splits."""

    split: str | None = flag(
        "NAME", "split to evaluate (default: every split with labels, except train)"
    )
    model_task: str | None = flag("NAME", "for a multi-task run: the task whose head to use")
    contamination: str | None = flag("DIR", CONTAMINATION)


def run(args: Arguments) -> None:
    """Prints one JSON object with the number of examples and the metrics of each split."""
    config = args.task_config()
    from tqdm import tqdm

    from bert_jax.data.corpus.contamination.found_items import known_items
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.pretrained.folder import resolve_model_folder
    from bert_jax.tasks.analysis import evaluation_warnings, metrics_by_group
    from bert_jax.tasks.registry import compute_metrics

    predictor = load_predictor(args, "model_task", {"max_length": args.max_length})
    task = load_task(config)
    for note in task.notes:
        logger.info("note: %s", note)
    folder = resolve_model_folder(args.model)
    warn_of_training_file(args, folder)
    found_items = known_items(args.contamination, folder)
    results: dict[str, dict[str, Any]] = {}
    for split in [args.split] if args.split else _labeled_splits(task):
        num_examples = len(task.splits.get(split, ()))
        with tqdm(desc=split, total=num_examples, unit=" examples", disable=None) as bar:
            own_task, predictions = predictor.predict_split(task, split, on_progress=bar.update)
        if not results and (note := predictor.kind.metrics_note(own_task.labels)):
            logger.info("note: %s", note)
        metrics = compute_metrics(own_task, task.splits[split], predictions)
        for warning in evaluation_warnings(own_task, split, predictions):
            logger.warning("warning: %s: %s", split, warning)
        rounded = {name: round(value, 6) for name, value in metrics.items()}
        results[split] = {"examples": num_examples, **rounded}
        if found_items is not None:
            groups = found_items.groups(task, split)
            by_group = metrics_by_group(own_task, split, predictions, groups)
            results[split]["by_contamination"] = by_group
    print(json.dumps(results, indent=2))


def warn_of_training_file(args: Arguments, folder: Path) -> None:
    """Warns if a file to evaluate is the one on which the run was trained."""
    from bert_jax.runs.run_folder import is_run_folder, read_config

    if not is_run_folder(folder):
        return
    task = read_config(folder).get("data", {}).get("task", {})
    for name in ("dev", "test"):
        if is_same_path(getattr(args, name), task.get("train")):
            logger.warning(
                "warning: --%s %s is the file on which %s was trained; its metrics say nothing "
                "about new texts",
                name,
                getattr(args, name),
                args.model,
            )


def _labeled_splits(task: "Task") -> list[str]:
    """Returns the splits to evaluate if the user names none.

    Raises:
      ConfigError: the task has no split besides train.
      UserError: no example of these splits has a label.
    """
    from bert_jax.data.finetuning.example import is_labeled

    splits = [name for name in task.splits if name != "train"]
    if not splits:
        raise ConfigError(
            f"{task.name} has only the split train; add --dev or --test, or evaluate it with "
            "--split train"
        )
    labeled = [name for name in splits if any(map(is_labeled, task.splits[name]))]
    if not labeled:
        raise UserError(
            f"{task.name}: no example of the split {' or '.join(splits)} has a label, so there is "
            "nothing to measure; give a file with labels, or predict without labels with "
            "`bert-jax predict`"
        )
    for name in splits:
        if name not in labeled:
            logger.info("%s: left out, because its examples have no labels", name)
    return labeled
