"""Fine-tunes one encoder on four tasks: RTE, MRPC, and STS-B of GLUE, and CoNLL-2003 entities.

    bert-jax finetune --config multi_task --run runs/four \\
        --arg model=exported glue_dir=glue_data conll=conll2003
    bert-jax predict runs/four --task rte --pairs "It rains." "The street is wet."
    bert-jax export runs/four --task conll --output tagger

With method=lora or another value of --method, an adapter that all tasks share and the heads are
trained, and the encoder is not.

To use your own tasks, copy this recipe and replace `tasks`, for example by
`Columns(train=..., dev=..., text=..., label=...)`.
"""

from pathlib import Path
from typing import Literal

from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import (
    Conll,
    EqualMixing,
    Glue,
    ProportionalMixing,
    TaskConfig,
    TemperatureMixing,
)
from bert_jax.config.objectives import UncertaintyWeighting, UniformWeighting
from bert_jax.config.tuning import METHODS, MethodName, TuningConfig

# How often a task is sampled: proportional to its size (each example once per epoch), by
# temperature (small tasks more often than that), or all tasks equally often.
MIXINGS = {
    "proportional": ProportionalMixing(),
    "temperature": TemperatureMixing(),
    "equal": EqualMixing(),
}
# How the losses are weighted: all examples equally, or by a learned variance of each task.
WEIGHTINGS = {"uniform": UniformWeighting(), "uncertainty": UncertaintyWeighting()}


def get_config(
    *,
    model: str,
    glue_dir: str,
    conll: str,
    mixing: Literal["proportional", "temperature", "equal"] = "proportional",
    weighting: Literal["uniform", "uncertainty"] = "uniform",
    method: MethodName = "full",
    epochs: float | None = None,
    batch_size: int = 32,
    learning_rate: float | None = None,
    window_overlap: int = 128,
    seed: int = 0,
) -> Experiment:
    """Returns the config of the run.

    Args:
      conll: the folder with eng.train, eng.testa and eng.testb (or .gz).
      mixing: how often each task is drawn: in proportion to its size, by temperature (small tasks
        more often), or equally.
      weighting: how the losses are weighted: all examples equally, or by a learned variance of each
        task.
      window_overlap: tokens that two windows of one long example share.
    """
    # Imported here, so that listing recipes does not import jax.
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
        window_overlap=window_overlap,
        seed=seed,
        tuning=TuningConfig(method=METHODS[method]()),
    )


def _file(folder: str, name: str) -> str:
    gzipped = Path(folder) / f"{name}.gz"
    return str(gzipped if gzipped.exists() else Path(folder) / name)
