"""Fine-tunes one encoder on all nine GLUE tasks at once, with a head for each task.

    bert-jax finetune --config glue_mixture --run runs/glue \\
        --arg model=exported glue_dir=glue_data mixing=temperature
    bert-jax predict runs/glue --task rte --pairs "It rains." "The street is wet."

A batch with examples of all tasks is large enough for 16 chips, unlike the usual batch of 32 of a
single task. To train each task separately with several seeds, use `bert-jax glue --num-shards`.
"""

from typing import Literal, cast

from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import (
    GLUE_NAMES,
    CappedMixing,
    EqualMixing,
    Glue,
    GlueName,
    Mixing,
    ProportionalMixing,
    TaskConfig,
    TemperatureMixing,
)
from bert_jax.config.tuning import METHODS, MethodName, TuningConfig
from bert_jax.errors import ConfigError

# The diagnostic set AX has no training examples.
TASKS = tuple(name for name in GLUE_NAMES if name != "ax")
# A multiple of the number of devices of every slice with 16 chips.
BATCH_SIZE_MULTIPLE = 32


def get_config(
    *,
    model: str,
    glue_dir: str,
    tasks: str = "all",
    mixing: Literal["equal", "proportional", "temperature", "capped"] = "temperature",
    temperature: float = 2.0,
    max_examples: int = 65536,
    method: MethodName = "full",
    epochs: float | None = None,
    batch_size: int = 128,
    learning_rate: float | None = None,
    max_length: int | None = None,
    seed: int = 0,
) -> Experiment:
    """Returns the config of a fine-tuning run on several GLUE tasks.

    An epoch has as many examples as all tasks together.

    Args:
      model: the pretrained model to start from.
      glue_dir: the folder of the official GLUE files.
      tasks: "all", or task names separated by commas.
      mixing: how often each task is sampled: "proportional" to its size, by "temperature" (small
        tasks more often), "capped" (proportional to sizes up to `max_examples`), or "equal".
      temperature: the temperature of "temperature" mixing.
      max_examples: the limit of "capped" mixing.
      method: what is trained besides the heads, as --method of `bert-jax finetune`.
      epochs: the number of epochs; None for 3, or 9 for a method other than "full".
      batch_size: a multiple of 32.
      learning_rate: the peak learning rate; None for the usual one of the method.
      max_length: the maximum sequence length; None for the default of the tasks.
      seed: the seed of the run.
    """
    # Imported here, so that listing recipes does not import jax.
    from bert_jax.train.presets import multi_task_experiment

    if batch_size < 1 or batch_size % BATCH_SIZE_MULTIPLE:
        next_multiple = -(-max(batch_size, 1) // BATCH_SIZE_MULTIPLE) * BATCH_SIZE_MULTIPLE
        raise ConfigError(
            f"--arg batch_size={batch_size}: expected a multiple of {BATCH_SIZE_MULTIPLE}, "
            f"which the devices of 16 chips divide; the next is {next_multiple}"
        )
    mixings: dict[str, Mixing] = {
        "equal": EqualMixing(),
        "proportional": ProportionalMixing(),
        "temperature": TemperatureMixing(temperature=temperature),
        "capped": CappedMixing(max_examples=max_examples),
    }
    chosen = list(TASKS) if tasks == "all" else tasks.split(",")
    for name in chosen:
        if name not in TASKS or chosen.count(name) > 1:
            raise ConfigError(
                f"--arg tasks={tasks}: {name!r} is not one of {', '.join(TASKS)}, or is repeated"
            )
    task_configs: dict[str, TaskConfig] = {
        name: Glue(task=cast(GlueName, name), folder=glue_dir) for name in chosen
    }
    return multi_task_experiment(
        task_configs,
        model,
        mixing=mixings[mixing],
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_length=max_length,
        seed=seed,
        tuning=TuningConfig(method=METHODS[method]()),
    )
