"""Makes the class weights of a loss from what a user writes: "balanced", or numbers."""

from bert_jax.data.finetuning.example import Task, is_labeled
from bert_jax.errors import ConfigError, did_you_mean
from bert_jax.tasks.registry import kind_of

BALANCED = "balanced"


def class_weights(text: str, task: Task) -> tuple[float, ...]:
    """Returns a weight for each label of a task.

    Args:
      text: "balanced" for weights that make all labels count equally; numbers in the order of the
        labels, as "1,3"; or numbers of named labels, as "yes=3", where the others have 1.

    Raises:
      ConfigError: the task has no classes, a label does not exist, or there are too few numbers.
    """
    if not task.labels:
        raise ConfigError(
            f"--class-weights {text}: {task.name} is a {task.kind} task, which has no classes"
        )
    if text == BALANCED:
        examples = [example for example in task.splits["train"] if is_labeled(example)]
        return kind_of(task).balanced_weights(examples, task.labels)
    words = text.split(",")
    try:
        if "=" not in text:
            weights = tuple(map(float, words))
        else:
            named = {label: 1.0 for label in task.labels}
            for word in words:
                label, _, number = word.rpartition("=")
                if label not in named:
                    raise ConfigError(
                        f"--class-weights {text}: there is no label {label!r}; "
                        f"{did_you_mean(label, named)}the labels are {', '.join(named)}"
                    )
                named[label] = float(number)
            weights = tuple(named.values())
    except ValueError:
        raise ConfigError(
            f"--class-weights {text}: expected {BALANCED}, numbers as in 1,3, or labels with "
            "numbers as in yes=3,no=1"
        ) from None
    if len(weights) != len(task.labels):
        raise ConfigError(
            f"--class-weights {text}: found {len(weights)} numbers, expected {len(task.labels)}, "
            f"for the labels {', '.join(task.labels)}"
        )
    return weights
