"""Lists the kinds of tasks, and finds what depends on them: heads, truncation, metrics, HF classes.

To add a kind, write a module with a subclass of `TaskKind`, add an instance to `KINDS`, and the
config of its head to `bert_jax/models/heads/config.py`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.batch import WINDOW_FIELDS
from bert_jax.config.data import FineTuningData
from bert_jax.config.labeled_data import HeadTruncation, JointWindows, Truncation, truncation_name
from bert_jax.config.prompts import Prompt
from bert_jax.data.finetuning.example import Example, Task
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.heads.config import TaskHead, WindowEncoder, window_encoder_of
from bert_jax.tasks.base import AnyTaskKind
from bert_jax.tasks.classification import SequenceClassification
from bert_jax.tasks.losses import HeadSpec
from bert_jax.tasks.multi_label import MultiLabel
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.prompt_features import find_label_tokens
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.ranking import Ranking
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.token_classification import TokenClassification
from bert_jax.text.tokenizer import Tokenizer

# Instances, because a kind has no state. The order matters: `head_from_config` tries later kinds
# first, so a kind stands after the more general kind of the same Hugging Face class.
KINDS: tuple[AnyTaskKind, ...] = (
    SequenceClassification(),
    MultiLabel(),
    Regression(),
    Ranking(),
    TokenClassification(),
    QuestionAnswering(),
    MultipleChoice(),
)


def kind_named(name: str) -> AnyTaskKind:
    """Returns the kind of task with this name.

    Raises:
      ConfigError: there is no such kind.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    names = ", ".join(kind.name for kind in KINDS)
    raise ConfigError(f"there is no kind of task {name!r}; expected one of {names}")


def kind_of(task: Task) -> AnyTaskKind:
    """Returns the kind of a task."""
    return kind_named(task.kind)


def kind_of_head(head: TaskHead) -> AnyTaskKind:
    """Returns the kind of task that a head is for."""
    return next(kind for kind in KINDS if isinstance(head, kind.head_type))


def head_spec(head: TaskHead) -> HeadSpec:
    """Returns the spec of a head."""
    spec = kind_of_head(head).spec
    if window_encoder_of(head) is None:
        return spec
    # The windows of a text are encoded like the choices of a question.
    features_field = MultipleChoice.spec.features_field
    return dataclasses.replace(spec, input_fields=WINDOW_FIELDS, features_field=features_field)


def make_head(task: Task, truncation: Truncation = HeadTruncation()) -> TaskHead:  # noqa: B008
    """Returns the config of the head that a task needs, with a `WindowEncoder` for `JointWindows`.

    Raises:
      ConfigError: the kind of task has no such truncation.
    """
    kind = kind_of(task)
    check_truncation(kind, truncation)
    head: Any = kind.make_head(task.labels)  # has a window_encoder: `check_truncation` has passed
    if not isinstance(truncation, JointWindows):
        return head
    return dataclasses.replace(
        head, window_encoder=WindowEncoder(num_windows=truncation.num_windows)
    )


def make_prompt_head(task: Task, prompt: Prompt, tokenizer: Tokenizer) -> TaskHead:
    """Returns the head that scores the label words of a prompt for the classes of a task.

    Raises:
      ConfigError: the task is not a classification, or the prompt has other labels.
      UserError: a label word is not a token; see `find_label_tokens`.
    """
    kind = kind_of(task)
    if not kind.reads_prompts:
        raise ConfigError(
            f"a prompt is given for {task.name}, whose kind of task is {kind.name}; expected a "
            "classification, whose classes have label words"
        )
    head: Any = kind.make_head(task.labels)
    return dataclasses.replace(head, label_tokens=find_label_tokens(prompt, task.labels, tokenizer))


def head_for_data(task: Task, data: FineTuningData, tokenizer: Tokenizer) -> TaskHead:
    """Returns the config of the head that a task needs with these settings of the data.

    Raises:
      UserError: as `make_head` and `make_prompt_head`.
    """
    if data.prompt is None:
        return make_head(task, data.truncation)
    return make_prompt_head(task, data.prompt, tokenizer)


def check_truncation(kind: AnyTaskKind, truncation: Truncation) -> None:
    """Raises a ConfigError unless long examples of this kind can be truncated in this way."""
    if not kind.has_truncations and not isinstance(truncation, HeadTruncation):
        raise ConfigError(
            f"truncation is {truncation_name(truncation)!r}, but the kind of task is {kind.name}; "
            "expected 'head', because only classification, multi-label, regression and ranking "
            "have other ways of truncation"
        )


def compute_metrics(task: Task, examples: Sequence[Example], predictions: Any) -> dict[str, float]:
    """Computes the metrics of labeled examples.

    Args:
      predictions: the result of `TaskKind.decode` for these examples.
    """
    kind = kind_of(task)
    references = kind.get_references(examples, task.labels)
    metrics = kind.compute_metrics(references, predictions, task.labels)
    return metrics | kind.example_metrics(examples, references, predictions)


HUGGING_FACE_CLASSES = tuple(dict.fromkeys(kind.hugging_face_class for kind in KINDS))
"""The ends of the names of Hugging Face's classes with a task head, as in BertFor..."""


def head_from_config(suffix: str, data: Mapping[str, Any], source: str) -> TaskHead:
    """Reads the head of a Hugging Face class from the content of its `config.json`.

    Args:
      suffix: the end of the class name, out of `HUGGING_FACE_CLASSES`.
      source: the file, for messages.

    Raises:
      UserError: labels or a problem type that is not supported; names the field.
    """
    try:
        # Later kinds are special cases of a class, which they recognize by other fields.
        for kind in reversed(KINDS):
            if kind.hugging_face_class == suffix:
                head = kind.head_from_hugging_face(data, source)
                if head is not None:
                    return head
    except ConfigError as error:
        raise UserError(f"{source}: {error}") from None
    raise AssertionError(f"no kind of task has the class {suffix}")
