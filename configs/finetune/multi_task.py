"""One encoder for four tasks: RTE, MRPC and STS-B of GLUE, and CoNLL-2003's entities.

    bert-jax finetune configs/finetune/multi_task.py --run runs/four \\
        --with model=exported glue_dir=glue_data conll=conll2003
    bert-jax predict --model runs/four --task rte --pairs "It rains." "The street is wet."
    bert-jax export runs/four --task conll --output tagger

A recipe to copy: put your own tasks into `tasks`, as `Columns(train=..., dev=..., text=...)`.
"""

from pathlib import Path
from typing import Literal

from bert_jax.data.finetuning.config import (
    Conll,
    EqualMixing,
    Glue,
    ProportionalMixing,
    TaskConfig,
    TemperatureMixing,
)
from bert_jax.experiment import Experiment
from bert_jax.objectives.config import UncertaintyWeighting, UniformWeighting

# How often a task is drawn. Proportional: in an epoch each row comes once. Temperature draws small
# tasks more often than that and large ones less, Equal even more so.
MIXINGS = {
    "proportional": ProportionalMixing(),
    "temperature": TemperatureMixing(),
    "equal": EqualMixing(),
}
# How its loss weighs. Uniform: all rows alike. Uncertainty: by a variance that each task learns.
WEIGHTINGS = {"uniform": UniformWeighting(), "uncertainty": UncertaintyWeighting()}


def get_config(
    *,
    model: str,
    glue_dir: str,
    conll: str,
    mixing: Literal["proportional", "temperature", "equal"] = "proportional",
    weighting: Literal["uniform", "uncertainty"] = "uniform",
    epochs: float = 3.0,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    seed: int = 0,
) -> Experiment:
    """Three epochs over all; `conll` holds eng.train, eng.testa and eng.testb, .gz or not."""
    # Here, because looking at a recipe (`bert-jax --help`) needs no jax.
    from bert_jax.train.presets import multi_task_experiment

    train, dev, test = (_file(conll, name) for name in ("eng.train", "eng.testa", "eng.testb"))
    tasks: dict[str, TaskConfig] = {
        "rte": Glue(task="rte", folder=glue_dir),
        "mrpc": Glue(task="mrpc", folder=glue_dir),
        "stsb": Glue(task="stsb", folder=glue_dir),
        "conll": Conll(train=train, dev=dev, test=test),
    }
    return multi_task_experiment(
        tasks,
        model,
        mixing=MIXINGS[mixing],
        weighting=WEIGHTINGS[weighting],
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )


def _file(folder: str, name: str) -> str:
    gzipped = Path(folder) / f"{name}.gz"
    return str(gzipped if gzipped.exists() else Path(folder) / name)
