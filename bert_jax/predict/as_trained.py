"""How a model was fine-tuned, as far as its predictions depend on it."""

from dataclasses import dataclass

from bert_jax.config import from_json
from bert_jax.data.config import Labelled
from bert_jax.data.labelled.config import Squad
from bert_jax.errors import UserError
from bert_jax.models.config import SpanHead, TaskHead
from bert_jax.programs.config import FineTuning
from bert_jax.train.pretrained import LoadedModel, check_one_task

QUESTION_LENGTH = 384
"""Of the rows of a question answerer that does not tell its own: that of BERT's release."""


@dataclass(frozen=True, kw_only=True)
class AsTrained:
    """A run's own settings; for a model from elsewhere the usual ones.

    Attributes:
      program: network and head, and how they are computed.
      length: the most pieces in a row; from elsewhere, all that the model can read.
      stride: pieces that two windows share.
      buckets: lengths of batches.
      no_answer: whether there were questions that the context does not answer (SQuAD 2.0).
    """

    program: FineTuning
    length: int
    stride: int = Labelled.stride
    buckets: tuple[int, ...] = Labelled.buckets
    no_answer: bool = False


def as_trained(model: LoadedModel) -> AsTrained:
    """The settings of a fine-tuned model.

    Raises:
      UserError: it has no task's head.
    """
    head = require_head(model)
    config = {} if model.run is None else model.run.config
    data = config.get("data", {})
    if data.get("type") != Labelled.__name__:
        table = model.config.positions.max_length
        length = min(QUESTION_LENGTH, table) if isinstance(head, SpanHead) else table
        return AsTrained(program=FineTuning(model=model.config, head=head), length=length)
    labelled: Labelled = from_json(Labelled, data, "data")
    task = labelled.task
    return AsTrained(
        program=from_json(FineTuning, config["program"], "program"),
        length=config["train"]["phases"][-1]["length"],
        stride=labelled.stride,
        buckets=labelled.buckets,
        no_answer=isinstance(task, Squad) and task.version == "2.0",
    )


def require_head(model: LoadedModel) -> TaskHead:
    """The model's head; UserError when it was not fine-tuned, or none of several was chosen."""
    check_one_task(model)
    if model.head is None:
        raise UserError(
            f"{model.origin} has no head of a task, so it cannot predict; fine-tune it first: "
            f"bert-jax finetune TASK ... --model {model.origin} --run FOLDER"
        )
    return model.head
