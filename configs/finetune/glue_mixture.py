"""One encoder for all nine tasks of GLUE at once, a head for each; for slices of many chips.

    bert-jax finetune configs/finetune/glue_mixture.py --run runs/glue \\
        --with model=exported glue_dir=glue_data mixing=temperature
    bert-jax predict --model runs/glue --task rte --pairs "It rains." "The street is wet."

A batch of rows of all tasks is large enough for 16 chips, which one task's batch of 32 is not.
Each task with seeds of its own, on a chip of its own, is `bert-jax glue --lanes`.
"""

from typing import Literal, cast

from bert_jax.data.finetuning.config import (
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
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment

# The diagnostic set has no rows to train on.
TASKS = tuple(name for name in GLUE_NAMES if name != "ax")
# What every slice's number of devices divides, where it has 16 chips.
BATCH_SIZE_MULTIPLE = 32


def get_config(
    *,
    model: str,
    glue_dir: str,
    tasks: str = "all",
    mixing: Literal["equal", "proportional", "temperature", "capped"] = "temperature",
    temperature: float = 2.0,
    max_examples: int = 65536,
    epochs: float = 3.0,
    batch_size: int = 128,
    learning_rate: float = 5e-5,
    max_length: int | None = None,
    seed: int = 0,
) -> Experiment:
    """`tasks` is "all" or names with commas between; `mixing` says how often each is drawn.

    An epoch has as many rows as all tasks together. Proportional: each comes once; temperature:
    small tasks more often, by its value; capped: as if none had more than so many rows; equal.
    """
    # Here, because looking at a recipe (`bert-jax --help`) needs no jax.
    from bert_jax.train.presets import multi_task_experiment

    if batch_size < 1 or batch_size % BATCH_SIZE_MULTIPLE:
        next_multiple = -(-max(batch_size, 1) // BATCH_SIZE_MULTIPLE) * BATCH_SIZE_MULTIPLE
        raise ConfigError(
            f"--with batch_size={batch_size}: expected a multiple of {BATCH_SIZE_MULTIPLE}, "
            f"the devices of 16 chips; the next is {next_multiple}"
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
                f"--with tasks={tasks}: {name!r} is not one of {', '.join(TASKS)}, each once"
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
    )
