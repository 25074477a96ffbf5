"""How a model was fine-tuned, as far as its predictions depend on it."""

from dataclasses import dataclass

from bert_jax.config_lib import from_json
from bert_jax.data.config import FineTuningData
from bert_jax.data.finetuning.config import Squad
from bert_jax.errors import UserError
from bert_jax.models.config import QuestionAnsweringHead, TaskHead
from bert_jax.objectives.config import FineTuning
from bert_jax.pretrained.load import LoadedModel, require_single_task

DEFAULT_QUESTION_ANSWERING_LENGTH = 384
"""Of the rows of a question answerer that does not tell its own: that of BERT's release."""


@dataclass(frozen=True, kw_only=True)
class TrainedSettings:
    """A run's own settings; for a model from elsewhere the usual ones.

    Attributes:
      program: network and head, and how they are computed.
      length: the most pieces in a row; from elsewhere, all that the model can read.
      stride: pieces that two windows share.
      buckets: lengths of batches.
      no_answer: whether there were questions that the context does not answer (SQuAD 2.0).
    """

    objective: FineTuning
    max_length: int
    window_overlap: int = FineTuningData.window_overlap
    bucket_lengths: tuple[int, ...] = FineTuningData.bucket_lengths
    allow_no_answer: bool = False


def trained_settings(model: LoadedModel) -> TrainedSettings:
    """The settings of a fine-tuned model.

    Raises:
      UserError: it has no task's head.
    """
    head = require_head(model)
    config = {} if model.run is None else model.run.config
    data = config.get("data", {})
    if data.get("type") != FineTuningData.__name__:
        max_positions = model.config.max_length
        max_length = (
            min(DEFAULT_QUESTION_ANSWERING_LENGTH, max_positions)
            if isinstance(head, QuestionAnsweringHead)
            else max_positions
        )
        return TrainedSettings(
            objective=FineTuning(model=model.config, head=head), max_length=max_length
        )
    fine_tuning_data: FineTuningData = from_json(FineTuningData, data, "data")
    task = fine_tuning_data.task
    return TrainedSettings(
        objective=from_json(FineTuning, config["objective"], "objective"),
        max_length=config["train"]["phases"][-1]["seq_length"],
        window_overlap=fine_tuning_data.window_overlap,
        bucket_lengths=fine_tuning_data.bucket_lengths,
        allow_no_answer=isinstance(task, Squad) and task.version == "2.0",
    )


def require_head(model: LoadedModel) -> TaskHead:
    """The model's head; UserError when it was not fine-tuned, or none of several was chosen."""
    require_single_task(model)
    if model.head is None:
        raise UserError(
            f"{model.path} has no head of a task, so it cannot predict; fine-tune it first: "
            f"bert-jax finetune TASK ... --model {model.path} --run FOLDER"
        )
    return model.head
