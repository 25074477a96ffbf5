"""A fine-tuning run as an experiment: what it is is read off the model and the task, or tasks."""

from collections.abc import Mapping
from typing import Any

from bert_jax.data.config import Labelled, LabelledMixture, NamedTask
from bert_jax.data.labelled.config import Mixing, Proportional, TaskConfig
from bert_jax.data.labelled.example import is_labelled
from bert_jax.data.labelled.features import make_features
from bert_jax.data.labelled.read import read_task
from bert_jax.data.labelled.task import Task
from bert_jax.errors import ConfigError, UserError
from bert_jax.experiment import Experiment
from bert_jax.programs.config import FineTuning, MultiTask, NamedHead, RowsAlike, Uncertainty
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.train.config import (
    Checkpoints,
    DevSplit,
    Logging,
    Phase,
    Train,
    WarmupLinear,
)
from bert_jax.train.initial import load_any, vocabulary_folder
from bert_jax.train.labelled import task_head
from bert_jax.train.labelled_mixture import MEAN
from bert_jax.train.pretrained import LoadedModel
from bert_jax.tuning.config import Tuning

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
    tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
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
    _check_numbers(epochs, batch_size, warmup_share)
    loaded, vocabulary = _start(model)
    read = _trainable(task)
    table = loaded.config.positions.max_length
    length = min(LENGTHS[read.kind], table) if max_length is None else max_length
    data = Labelled(task=task, vocabulary=str(vocabulary_folder(model)))
    rows = len(make_features(read, "train", vocabulary, length, data.stride))
    per_epoch = -(-rows // batch_size)
    steps = max(1, round(epochs * per_epoch))
    best = read.metrics[0] if _has_dev(read) else None
    return Experiment(
        name=read.name,
        seed=seed,
        program=FineTuning(model=loaded.config, head=task_head(read)),
        data=data,
        init_from=model,
        train=Train(
            phases=(Phase(steps=steps, length=length, batch_size=batch_size),),
            schedule=_schedule(learning_rate, warmup_share, steps),
            logging=Logging(every=max(1, min(50, per_epoch // 4))),
            tuning=tuning,
            **_evaluated(best, per_epoch),
        ),
    )


def multi_task(
    tasks: Mapping[str, TaskConfig],
    model: str,
    *,
    mixing: Mixing = Proportional(),  # noqa: B008 (frozen)
    weighting: RowsAlike | Uncertainty = RowsAlike(),  # noqa: B008 (frozen)
    epochs: float = 3.0,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    warmup_share: float = 0.1,
    max_length: int | None = None,
    seed: int = 0,
) -> Experiment:
    """The experiment that fine-tunes one encoder on several tasks at once.

    After every epoch all dev splits are evaluated, and the checkpoint is kept that is best in the
    mean of the tasks' first metrics.

    Args:
      tasks: name -> task; the names stand in metrics and files.
      mixing: how often each is drawn; an epoch has as many rows as all of them together.

    The other arguments and the errors are those of `fine_tuning`.
    """
    _check_numbers(epochs, batch_size, warmup_share)
    loaded, vocabulary = _start(model)
    read = {name: _trainable(task) for name, task in tasks.items()}
    heads = tuple(NamedHead(name=name, head=task_head(one)) for name, one in read.items())
    program = MultiTask(model=loaded.config, heads=heads, weighting=weighting)
    longest = max(LENGTHS[one.kind] for one in read.values())
    table = loaded.config.positions.max_length
    length = min(longest, table) if max_length is None else max_length
    data = LabelledMixture(
        tasks=tuple(NamedTask(name=name, task=task) for name, task in tasks.items()),
        vocabulary=str(vocabulary_folder(model)),
        mixing=mixing,
    )
    rows = (make_features(one, "train", vocabulary, length, data.stride) for one in read.values())
    per_epoch = -(-sum(map(len, rows)) // batch_size)
    steps = max(1, round(epochs * per_epoch))
    best = MEAN if all(map(_has_dev, read.values())) else None
    return Experiment(
        name="+".join(tasks),
        seed=seed,
        program=program,
        data=data,
        init_from=model,
        train=Train(
            phases=(Phase(steps=steps, length=length, batch_size=batch_size),),
            schedule=_schedule(learning_rate, warmup_share, steps),
            logging=Logging(every=max(1, min(50, per_epoch // 4))),
            **_evaluated(best, per_epoch),
        ),
    )


def _check_numbers(epochs: float, batch_size: int, warmup_share: float) -> None:
    if epochs <= 0 or batch_size < 1 or not 0 <= warmup_share < 1:
        raise ConfigError(
            f"epochs {epochs}, batch size {batch_size}, warmup share {warmup_share}; expected "
            "epochs > 0, a batch of at least 1 and a share in [0, 1)"
        )


def _start(model: str) -> tuple[LoadedModel, Vocabulary]:
    loaded = load_any(model)
    if loaded.vocabulary is None:
        raise UserError(f"{model} has no vocabulary files; put those it was trained with beside it")
    return loaded, loaded.vocabulary


def _trainable(task: TaskConfig) -> Task:
    read = read_task(task)
    if "train" not in read.splits:
        raise UserError(f"{read.name} has no rows to train on; name a file for train")
    return read


def _schedule(peak: float, warmup_share: float, steps: int) -> WarmupLinear:
    return WarmupLinear(peak=peak, warmup_steps=min(round(warmup_share * steps), steps - 1))


def _has_dev(task: Task) -> bool:
    dev = task.splits.get("dev", ())
    return bool(dev) and all(is_labelled(example) for example in dev)


def _evaluated(best: str | None, every: int) -> dict[str, Any]:
    """Evaluation and checkpoints of a run: by the metric `best` on dev, where there is one."""
    kept = Checkpoints(every=every, keep_last=1, keep_best=best)
    return {"checkpoints": kept, "evaluation": DevSplit(every=every) if best else None}
