"""Fine-tunes the quickstart's encoder for a text classification task, and computes baselines."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.finetuning.config import Columns
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.evals.text_baselines import majority_accuracy, tfidf_accuracy
from bert_jax.runs.run_folder import EVALUATION
from bert_jax.train.compilation_cache import persistent_compilation_cache
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run

EPOCHS, LEARNING_RATE, MAX_LENGTH = 3, 1e-3, 48


def compare_classifiers(
    config: Columns, model: Path, folder: Path, seed: int
) -> dict[str, Any] | int:
    """Fine-tunes `model`, and the same network from random initialization, on the same examples.

    Both networks are evaluated at their best epoch on dev.

    Args:
      config: a text classification task with the splits train and dev.
      model: the folder of an exported encoder that was not trained on the task's text.
      folder: the folder of both runs.
      seed: the seed of both runs.

    Returns:
      {"classes", "train", "dev": counts; "fine-tuned", "not pretrained", "tf-idf", "majority":
      accuracies on dev}, or the exit code of a run that was interrupted.
    """
    task = load_task(config)
    train, dev = (_texts_and_labels(task.splits[split]) for split in ("train", "dev"))
    scores: dict[str, Any] = {
        "classes": len(set(train[1])),
        "train": len(train[1]),
        "dev": len(dev[1]),
        "tf-idf": tfidf_accuracy(train, dev),
        "majority": majority_accuracy(train[1], dev[1]),
    }
    pretrained = fine_tuning_experiment(
        config,
        str(model),
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        max_length=MAX_LENGTH,
        seed=seed,
    )
    experiments = {
        "fine-tuned": pretrained,
        "not pretrained": dataclasses.replace(pretrained, init_from=None),
    }
    with persistent_compilation_cache(folder):  # both runs execute the same programs
        for name, experiment in experiments.items():
            run_path = folder / name.replace(" ", "-")
            exit_code = run(experiment, run_path)
            if exit_code != EXIT_DONE:
                return exit_code
            scores[name] = json.loads((run_path / EVALUATION).read_text())["dev"]["accuracy"]
    return scores


def _texts_and_labels(examples: Sequence[Any]) -> tuple[list[str], list[str]]:
    return [example.text for example in examples], [example.label for example in examples]
