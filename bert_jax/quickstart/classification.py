"""Fine-tunes the quickstart's encoder to classify docstrings by library, and compares baselines."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.evals.text_baselines import majority_accuracy, tfidf_accuracy
from bert_jax.quickstart.docstring_task import write_docstring_task
from bert_jax.runs.run_folder import EVALUATION
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run

EPOCHS, LEARNING_RATE, MAX_LENGTH = 8, 1e-3, 64


def classify_docstrings(
    documents: Path, model: Path, folder: Path, seed: int
) -> dict[str, Any] | int:
    """Fine-tunes `model`, and the same network from random initialization, on the same examples.

    Both networks are evaluated at their best of 8 epochs on dev.

    Args:
      documents: text that `model` was not trained on, written by `quickstart.docstring_corpus`.
      model: the folder of an exported encoder.
      folder: the folder of the task and of both runs.
      seed: the seed of both runs.

    Returns:
      {"libraries", "train", "dev": counts; "fine-tuned", "not pretrained", "tf-idf", "majority":
      accuracies on dev}, or the exit code of a run that was interrupted.

    Raises:
      UserError: there is too little text for a task.
    """
    written_task = write_docstring_task(documents, folder / "task")
    pretrained = fine_tuning_experiment(
        written_task.task,
        str(model),
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        max_length=MAX_LENGTH,
        seed=seed,
    )
    scores: dict[str, Any] = {
        "libraries": len(written_task.counts["dev"]),
        "train": sum(written_task.counts["train"].values()),
        "dev": sum(written_task.counts["dev"].values()),
    }
    experiments = {
        "fine-tuned": pretrained,
        "not pretrained": dataclasses.replace(pretrained, init_from=None),
    }
    for name, experiment in experiments.items():
        run_path = folder / name.replace(" ", "-")
        exit_code = run(experiment, run_path)
        if exit_code != EXIT_DONE:
            return exit_code
        scores[name] = json.loads((run_path / EVALUATION).read_text())["dev"]["accuracy"]
    task = load_task(written_task.task)
    train, dev = (_texts_and_labels(task.splits[split]) for split in ("train", "dev"))
    scores["tf-idf"] = tfidf_accuracy(train, dev)
    scores["majority"] = majority_accuracy(train[1], dev[1])
    return scores


def _texts_and_labels(examples: Sequence[Any]) -> tuple[list[str], list[str]]:
    return [example.text for example in examples], [example.label for example in examples]
