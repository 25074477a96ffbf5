"""A fine-tuning run as an experiment: what it is is read off the model and the task."""

from pathlib import Path
from typing import Any

from bert_jax.data.config import Labelled
from bert_jax.data.labelled.config import TaskConfig
from bert_jax.data.labelled.example import is_labelled
from bert_jax.data.labelled.features import make_features
from bert_jax.data.labelled.read import read_task
from bert_jax.data.labelled.task import Task
from bert_jax.errors import ConfigError, UserError
from bert_jax.experiment import Experiment
from bert_jax.programs.config import FineTuning
from bert_jax.train.config import (
    Checkpoints,
    DevSplit,
    Logging,
    Phase,
    Train,
    WarmupLinear,
)
from bert_jax.train.initial import load_any
from bert_jax.train.labelled import task_head
from bert_jax.train.pretrained import CHECKPOINTS, VOCABULARY

LENGTHS = {
    "classification": 128,
    "regression": 128,
    "tagging": 128,
    "question_answering": 384,
    "multiple_choice": 128,
}
"""Of rows, where none is asked for: those of the paper's release."""


def fine_tuning(
    task: TaskConfig,
    model: str,
    *,
    epochs: float = 3.0,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    warmup_share: float = 0.1,
    max_length: int | None = None,
    seed: int = 0,
) -> Experiment:
    """The experiment that fine-tunes a model on a task (Devlin et al. 2019, appendix A.3).

    After every epoch the dev split is evaluated, and the checkpoint that is best in the task's
    first metric is kept.

    Args:
      model: a run folder, a Hugging Face folder or a Google TF1 checkpoint, with its vocabulary.
      warmup_share: of the updates, during which the learning rate rises.
      max_length: of rows; longer ones are cut or become windows.

    Raises:
      UserError: task or model cannot be read, or the model has no vocabulary.
      ConfigError: a number is out of range.
    """
    if epochs <= 0 or batch_size < 1 or not 0 <= warmup_share < 1:
        raise ConfigError(
            f"epochs {epochs}, batch size {batch_size}, warmup share {warmup_share}; expected "
            "epochs > 0, a batch of at least 1 and a share in [0, 1)"
        )
    loaded = load_any(model)
    if loaded.vocabulary is None:
        raise UserError(f"{model} has no vocabulary files; put those it was trained with beside it")
    read = read_task(task)
    if "train" not in read.splits:
        raise UserError(f"{read.name} has no rows to train on; name a file for train")
    table = loaded.config.positions.max_length
    length = min(LENGTHS[read.kind], table) if max_length is None else max_length
    data = Labelled(task=task, vocabulary=_vocabulary_of(model))
    rows = len(make_features(read, "train", loaded.vocabulary, length, data.stride))
    per_epoch = -(-rows // batch_size)
    steps = max(1, round(epochs * per_epoch))
    warmup = min(round(warmup_share * steps), steps - 1)
    return Experiment(
        name=read.name,
        seed=seed,
        program=FineTuning(model=loaded.config, head=task_head(read)),
        data=data,
        init_from=model,
        train=Train(
            phases=(Phase(steps=steps, length=length, batch_size=batch_size),),
            schedule=WarmupLinear(peak=learning_rate, warmup_steps=warmup),
            logging=Logging(every=max(1, min(50, per_epoch // 4))),
            **_evaluated(read, per_epoch),
        ),
    )


def _evaluated(task: Task, every: int) -> dict[str, Any]:
    """Evaluation and checkpoints of a run: by the dev split, where it is there and labelled."""
    dev = task.splits.get("dev", ())
    if not dev or not all(is_labelled(example) for example in dev):
        return {"checkpoints": Checkpoints(every=every, keep_last=1)}
    best = Checkpoints(every=every, keep_last=1, keep_best=task.metrics[0])
    return {"checkpoints": best, "evaluation": DevSplit(every=every)}


def _vocabulary_of(model: str) -> str:
    """Where the vocabulary of a model lies: inside a run folder in a folder of its own."""
    folder = Path(model)
    if (folder / CHECKPOINTS).is_dir():
        return str(folder / VOCABULARY)
    if folder.parent.name == CHECKPOINTS:
        return str(folder.parent.parent / VOCABULARY)
    return model
