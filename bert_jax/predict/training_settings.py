"""Reads the settings of a fine-tuning run on which the predictions of its model depend."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.config_lib import from_json
from bert_jax.config.data import FineTuningData
from bert_jax.config.labeled_data import (
    Columns,
    FewShot,
    Glue,
    HeadTruncation,
    Snli,
    Squad,
    TaskConfig,
    TrainingFile,
    Truncation,
)
from bert_jax.config.objectives import FineTuning
from bert_jax.config.prompts import Prompt
from bert_jax.config.sentence_embeddings import ContrastivePairs
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.models.heads.config import TaskHead
from bert_jax.pretrained.load import LoadedModel, require_single_task
from bert_jax.runs.run_folder import DEMONSTRATIONS, SETFIT_HEAD
from bert_jax.tasks.registry import kind_of_head


@dataclass(frozen=True, kw_only=True)
class TrainedSettings:
    """Holds the settings of a run, or defaults for a model that does not come from a run.

    Attributes:
      objective: network and head, and how they are computed.
      max_length: maximum number of tokens in a sequence.
      window_overlap: number of tokens that neighboring windows share.
      truncation: which tokens of a long text are read.
      prompt: the template and the label words that the model was trained with, if any.
      demonstrations: the examples from which demonstrations of the prompt are drawn.
      bucket_lengths: lengths of batches.
      allow_no_answer: whether there were questions without an answer (SQuAD 2.0).
      reads_pairs: whether the classifier was trained on pairs of texts; None if that is unknown.
    """

    objective: FineTuning
    max_length: int
    window_overlap: int = FineTuningData.window_overlap
    truncation: Truncation = HeadTruncation()
    prompt: Prompt | None = None
    demonstrations: tuple[TextExample, ...] = ()
    bucket_lengths: tuple[int, ...] = FineTuningData.bucket_lengths
    allow_no_answer: bool = False
    reads_pairs: bool | None = None


def trained_settings(model: LoadedModel) -> TrainedSettings:
    """Returns the settings of a fine-tuned model.

    Raises:
      UserError: the model has no head of a task.
    """
    head = require_head(model)
    config = {} if model.run is None else model.run.config
    data = config.get("data", {})
    if data.get("type") != FineTuningData.__name__:
        max_length = max_text_length(model)
        kind = kind_of_head(head)
        if kind.num_texts == 2:
            # Windows of the full length would be unlike those that models are trained with.
            max_length = min(kind.default_seq_length, max_length)
        return TrainedSettings(
            objective=FineTuning(model=model.config, head=head), max_length=max_length
        )
    fine_tuning_data: FineTuningData = from_json(FineTuningData, data, "data")
    task, prompt = fine_tuning_data.task, fine_tuning_data.prompt
    assert model.run is not None
    return TrainedSettings(
        objective=from_json(FineTuning, config["objective"], "objective"),
        max_length=config["train"]["phases"][-1]["seq_length"],
        window_overlap=fine_tuning_data.window_overlap,
        truncation=fine_tuning_data.truncation,
        prompt=prompt,
        demonstrations=_read_demonstrations(model.run.folder)
        if prompt is not None and prompt.demonstrations is not None
        else (),
        bucket_lengths=fine_tuning_data.bucket_lengths,
        allow_no_answer=isinstance(task, Squad) and task.version == "2.0",
        reads_pairs=_reads_pairs(task),
    )


def max_text_length(model: LoadedModel) -> int:
    """Returns the number of tokens for which the model has positions besides virtual tokens."""
    if model.adapter is None:
        return model.config.max_length
    return model.config.max_length - TuningConfig(method=model.adapter).num_virtual_tokens


def save_demonstrations(folder: Path, examples: Sequence[TextExample]) -> None:
    """Saves the examples from which prediction draws demonstrations into a run folder."""
    examples_json = [{"text": e.text, "text_pair": e.text_pair, "label": e.label} for e in examples]
    write_json(folder / DEMONSTRATIONS, {"examples": examples_json})


def _read_demonstrations(folder: Path) -> tuple[TextExample, ...]:
    examples = read_json_object(folder / DEMONSTRATIONS)["examples"]
    return tuple(TextExample(id=str(index), **each) for index, each in enumerate(examples))


def _reads_pairs(task: TaskConfig) -> bool | None:
    match task:
        case Columns():
            return task.text_pair is not None
        case Glue():
            return GLUE_TASKS[task.task].text_pair is not None
        case Snli():
            return True
        case FewShot() | TrainingFile():
            return _reads_pairs(task.task)
        case _:
            return None


def require_head(model: LoadedModel) -> TaskHead:
    """Returns the head of a model; raises a UserError if it has none, or several."""
    require_single_task(model)
    if model.head is not None:
        return model.head
    if _is_setfit_run(model):
        if (Path(model.path) / SETFIT_HEAD).is_file():
            raise UserError(
                f"{model.path} is a run of `bert-jax setfit`, whose head is a logistic regression; "
                f"use SetFitClassifier({model.path!r}) of bert_jax.predict.setfit"
            )
        raise UserError(
            f"{model.path}: the run of `bert-jax setfit` was stopped before it fitted the logistic "
            "regression; run the same command again to complete it"
        )
    raise UserError(
        f"{model.path} has no head for a task, so it cannot predict; fine-tune it first: "
        f"bert-jax finetune TASK ... --model {model.path} --run FOLDER"
    )


def _is_setfit_run(model: LoadedModel) -> bool:
    train = {} if model.run is None else model.run.config.get("data", {}).get("train", {})
    return isinstance(train, dict) and train.get("type") == ContrastivePairs.__name__
