"""Registers the kinds of tasks: classification, regression, ranking, tagging and others.

To add a kind, write a module with a subclass of `TaskKind` and add an object of it to `KINDS`. A
kind whose head has a new network or a new loss needs a head config in `bert_jax.models` and an
entry in `bert_jax/objectives/fine_tuning_heads.py` as well.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

from bert_jax.config.data import FineTuningData
from bert_jax.config.labeled_data import HeadTruncation, JointWindows, Truncation, truncation_name
from bert_jax.config.prompts import Prompt
from bert_jax.data.finetuning.example import Example, Task, TextExample
from bert_jax.data.finetuning.features import Features
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.heads.config import (
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    WindowEncoder,
)
from bert_jax.tasks.base import AnyTaskKind, TaskKind
from bert_jax.tasks.classification import SequenceClassification, TextPairKind
from bert_jax.tasks.demonstrations import DemonstrationPool, TrainingDemonstrations
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.prompt_features import find_label_tokens
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.ranking import Ranking
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.token_classification import TokenClassification
from bert_jax.text.tokenizer import Tokenizer

__all__ = [
    "KINDS",
    "AnyTaskKind",
    "TaskKind",
    "check_truncation",
    "compute_metrics",
    "head_for_data",
    "kind_named",
    "kind_of",
    "kind_of_head",
    "make_features",
    "make_head",
    "make_prompt_head",
    "text_examples",
    "training_features",
]

KINDS: tuple[AnyTaskKind, ...] = (
    SequenceClassification(),
    Regression(),
    Ranking(),
    TokenClassification(),
    QuestionAnswering(),
    MultipleChoice(),
)

_MIN_LENGTH = 4
_MAX_CACHED_SPLITS = 16  # at least the tasks of one multi-task run


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


def make_head(task: Task, truncation: Truncation = HeadTruncation()) -> TaskHead:  # noqa: B008
    """Returns the config of the head that a task needs, with a `WindowEncoder` for `JointWindows`.

    Raises:
      ConfigError: the kind of task has no such truncation.
    """
    kind = kind_of(task)
    check_truncation(kind, truncation)
    head = kind.make_head(task.labels)
    if not isinstance(truncation, JointWindows):
        return head
    assert isinstance(head, SequenceClassificationHead | RegressionHead | RankingHead)  # checked
    return dataclasses.replace(
        head, window_encoder=WindowEncoder(num_windows=truncation.num_windows)
    )


def head_for_data(task: Task, data: FineTuningData, tokenizer: Tokenizer) -> TaskHead:
    """Returns the config of the head that a task needs with these settings of the data.

    Raises:
      UserError: as `make_head` and `make_prompt_head`.
    """
    if data.prompt is None:
        return make_head(task, data.truncation)
    return make_prompt_head(task, data.prompt, tokenizer)


def make_prompt_head(
    task: Task, prompt: Prompt, tokenizer: Tokenizer
) -> SequenceClassificationHead:
    """Returns the head that scores the label words of a prompt for the classes of a task.

    Raises:
      ConfigError: the task is not a classification, or the prompt has other labels.
      UserError: a label word is not a token; see `find_label_tokens`.
    """
    kind = kind_of(task)
    if not isinstance(kind, SequenceClassification):
        raise ConfigError(
            f"a prompt is given for {task.name}, whose kind of task is {kind.name}; expected a "
            "classification, whose classes have label words"
        )
    tokens = find_label_tokens(prompt, task.labels, tokenizer)
    return dataclasses.replace(kind.make_head(task.labels), label_tokens=tokens)


def make_features(
    task: Task,
    split: str,
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int = 128,
    truncation: Truncation = HeadTruncation(),  # noqa: B008 (frozen)
    prompt: Prompt | None = None,
) -> Features:
    """Tokenizes a split into sequences of at most `max_length` tokens, with their targets.

    Args:
      window_overlap: number of tokens that neighboring windows of a long example share.
      truncation: which tokens of a long text are read, in classification, regression and ranking.
      prompt: the template into which texts are put, in classification. Its demonstrations are
        examples of the split "train".

    Raises:
      ConfigError: `max_length` leaves no room for text, or the kind of task has no such truncation.
      UserError: an example has a label that the task does not have.
    """
    if max_length < _MIN_LENGTH:
        raise ConfigError(
            f"sequences of {max_length} tokens leave no room for text between [CLS] and [SEP]; "
            f"expected at least {_MIN_LENGTH}"
        )
    kind = kind_of(task)
    check_truncation(kind, truncation)
    examples: Any = task.splits[split]  # of the type that the kind reads
    arguments = examples, task.labels, tokenizer, max_length, window_overlap
    if prompt is not None:
        assert isinstance(kind, TextPairKind)  # checked by `make_prompt_head`
        pool = _demonstration_pool(task, prompt, tokenizer, max_length)
        arguments = examples, task.labels, tokenizer, max_length, prompt, pool
        return kind.make_prompt_features(*arguments)
    if isinstance(kind, TextPairKind):
        return kind.make_features(*arguments, truncation)
    return kind.make_features(*arguments)


def check_truncation(kind: AnyTaskKind, truncation: Truncation) -> None:
    """Raises a ConfigError unless long examples of this kind can be truncated in this way."""
    if not isinstance(kind, TextPairKind) and not isinstance(truncation, HeadTruncation):
        raise ConfigError(
            f"truncation is {truncation_name(truncation)!r}, but the kind of task is {kind.name}; "
            "expected 'head', because only classification, regression and ranking have other "
            "ways of truncation"
        )


def compute_metrics(task: Task, examples: Sequence[Example], predictions: Any) -> dict[str, float]:
    """Computes the metrics of labeled examples.

    Args:
      predictions: the result of `TaskKind.decode` for these examples.
    """
    kind = kind_of(task)
    references = kind.get_references(examples, task.labels)
    return kind.compute_metrics(references, predictions, task.labels)


def training_features(
    task: Task,
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int = 128,
    truncation: Truncation = HeadTruncation(),  # noqa: B008 (frozen)
    prompt: Prompt | None = None,
) -> Features:
    """Tokenizes the split "train", only once in a process for equal examples and settings.

    A preset counts the sequences to choose the number of steps, and the run then trains on them:
    the cache keeps a large training set from being tokenized twice.
    """
    key = (
        task.kind,
        task.labels,
        _digest(task.splits["train"]),
        tokenizer.fingerprint,
        max_length,
        window_overlap,
        truncation,
        prompt,
    )
    if key not in _training_features:
        if len(_training_features) == _MAX_CACHED_SPLITS:
            del _training_features[next(iter(_training_features))]
        _training_features[key] = _new_training_features(
            task, tokenizer, max_length, window_overlap, truncation, prompt
        )
    # A copy, because a run adds encoder features to its own.
    return dataclasses.replace(_training_features[key])


_training_features: dict[Hashable, Features] = {}


def _new_training_features(
    task: Task,
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int,
    truncation: Truncation,
    prompt: Prompt | None,
) -> Features:
    """Tokenizes the split "train", to which demonstrations are appended in each epoch."""
    arguments = task, "train", tokenizer, max_length, window_overlap, truncation
    if prompt is None or prompt.demonstrations is None:
        return make_features(*arguments, prompt)
    features = make_features(*arguments, dataclasses.replace(prompt, demonstrations=None))
    pool = _demonstration_pool(task, prompt, tokenizer, max_length)
    assert pool is not None
    examples = text_examples(task, "train")
    return dataclasses.replace(
        features, appended=TrainingDemonstrations(pool=pool, examples=examples)
    )


def _demonstration_pool(
    task: Task, prompt: Prompt, tokenizer: Tokenizer, max_length: int
) -> DemonstrationPool | None:
    if prompt.demonstrations is None:
        return None
    if "train" not in task.splits:
        raise UserError(
            f"{task.name} has no training examples, from which the demonstrations of the prompt "
            "are drawn; expected a split train"
        )
    examples = text_examples(task, "train")
    return _cached_pool(examples, task.labels, prompt, tokenizer, max_length)


# A predictor makes features in every call, always with the same demonstrations.
_cached_pool = functools.lru_cache(maxsize=4)(DemonstrationPool)


def text_examples(task: Task, split: str) -> tuple[TextExample, ...]:
    """Returns the texts and pairs of texts of a split."""
    return tuple(each for each in task.splits[split] if isinstance(each, TextExample))


def _digest(examples: Sequence[Example]) -> bytes:
    """Hashes the content of examples, which may have been read twice from the same files."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr(example).encode("utf-8", "backslashreplace"))
    return digest.digest()
