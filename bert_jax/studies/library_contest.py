"""Which library does a docstring come from? A fine-tuned encoder beside three baselines."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.labelled.read import read_task
from bert_jax.data.library_task import write_library_task
from bert_jax.evals.text_baselines import majority_accuracy, tfidf_accuracy
from bert_jax.train.fine_tuning import fine_tuning
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.run import run
from bert_jax.train.run_folder import EVALUATION

EPOCHS, LEARNING_RATE, MAX_LENGTH = 8, 1e-3, 64


def library_contest(documents: Path, model: Path, folder: Path, seed: int) -> dict[str, Any] | int:
    """Fine-tunes `model`, and the same network from random values, on the same rows.

    Both networks are judged by their best of 8 epochs on dev.

    Args:
      documents: text that `model` has not seen, as `bert_jax.data.docstrings` writes it.
      model: an exported encoder; folder: where the task and both runs go.

    Returns:
      {"libraries", "train", "dev": counts; "fine-tuned", "not pretrained", "tf-idf", "majority":
      accuracies on dev}, or the exit code of a run that was stopped.

    Raises:
      UserError: too little text to make a task of.
    """
    written = write_library_task(documents, folder / "task")
    pretrained = fine_tuning(
        written.task,
        str(model),
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        max_length=MAX_LENGTH,
        seed=seed,
    )
    scores: dict[str, Any] = {
        "libraries": len(written.counts["dev"]),
        "train": sum(written.counts["train"].values()),
        "dev": sum(written.counts["dev"].values()),
    }
    contenders = {
        "fine-tuned": pretrained,
        "not pretrained": dataclasses.replace(pretrained, init_from=None),
    }
    for name, experiment in contenders.items():
        here = folder / name.replace(" ", "-")
        code = run(experiment, here)
        if code != EXIT_DONE:
            return code
        scores[name] = json.loads((here / EVALUATION).read_text())["dev"]["accuracy"]
    task = read_task(written.task)
    train, dev = (_columns(task.splits[split]) for split in ("train", "dev"))
    scores["tf-idf"] = tfidf_accuracy(train, dev)
    scores["majority"] = majority_accuracy(train[1], dev[1])
    return scores


def _columns(examples: Sequence[Any]) -> tuple[list[str], list[str]]:
    return [example.text for example in examples], [example.label for example in examples]
