"""Samples K examples of each class for training and K for dev, as LM-BFF does (Gao et al. 2021)."""

from collections import Counter

import numpy as np

from bert_jax.config.labeled_data import FewShot
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import ConfigError, UserError


def sample_few_shot(config: FewShot, task: Task) -> Task:
    """Returns a task with K training and K dev examples of each class, and dev as its test split.

    The training examples are shuffled by `numpy.random.seed(config.seed)` as in
    `tools/generate_k_shot_data.py` of LM-BFF: of each class, the first K are the training split and
    the next K the dev split. The labeled dev split of the task becomes the test split.

    Raises:
      ConfigError: the task is not a classification.
      UserError: a class has fewer than 2 K training examples, or there is no labeled dev split.
    """
    if task.kind != "classification":
        raise ConfigError(
            f"{config.shots} examples of each class are to be sampled, but the kind of task of "
            f"{task.name} is {task.kind}; expected a classification"
        )
    if "dev" not in task.splits:
        raise UserError(
            f"{task.name} has no dev split, which few-shot learning uses as its test set; add a "
            "file for it"
        )
    train = [each for each in task.splits.get("train", ()) if isinstance(each, TextExample)]
    counts = Counter(example.label for example in train)
    for label in task.labels:
        if counts[label] < 2 * config.shots:
            raise UserError(
                f"{task.name} has {counts[label]} training examples with the label {label!r}; "
                f"expected at least {2 * config.shots}, {config.shots} to train on and "
                f"{config.shots} for dev: choose a smaller number of shots"
            )
    # The generator and the list type of LM-BFF's script, whose order they reproduce.
    np.random.RandomState(config.seed).shuffle(train)  # type: ignore[arg-type]
    splits: dict[str, list[TextExample]] = {"train": [], "dev": []}
    for label in task.labels:
        examples = [example for example in train if example.label == label]
        splits["train"] += examples[: config.shots]
        splits["dev"] += examples[config.shots : 2 * config.shots]
    return Task(
        name=task.name,
        kind=task.kind,
        labels=task.labels,
        metrics=task.metrics,
        splits={
            **{name: tuple(examples) for name, examples in splits.items()},
            "test": task.splits["dev"],
        },
        notes=task.notes,
    )
