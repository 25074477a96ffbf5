"""Checks the settings and the inputs of a `Predictor`, and that a task fits its model."""

from collections.abc import Sequence
from typing import Any, TypeGuard

from bert_jax.config.labeled_data import (
    COLUMNS_METRICS,
    TRUNCATIONS,
    JointWindows,
    Truncation,
    make_truncation,
    truncation_name,
)
from bert_jax.config.train import LARGEST_BATCH_SIZE
from bert_jax.data.finetuning.example import (
    Example,
    Task,
    TextExample,
    class_labels,
    is_labeled,
)
from bert_jax.errors import ConfigError, UserError, check_range
from bert_jax.models.heads.config import (
    TaskHead,
    label_tokens_of,
    window_encoder_of,
)
from bert_jax.tasks.base import AnyTaskKind, ModelInput
from bert_jax.tasks.registry import check_truncation, kind_of_head

_MAX_SHOWN_LABELS = 8


def check_sizes(max_length: int, max_positions: int, batch_size: int, window_overlap: int) -> None:
    """Raises a ConfigError if a size is out of range."""
    if not 4 <= max_length <= max_positions:
        raise ConfigError(
            f"max_length is {max_length}; expected 4 to {max_positions}, the number of tokens "
            "for which the model has positions"
        )
    check_range("batch_size", batch_size, at_least=1, at_most=LARGEST_BATCH_SIZE)
    check_range("window_overlap", window_overlap, at_least=0)


def check_no_answer(kind: AnyTaskKind, allow_no_answer: bool | None) -> None:
    """Raises a ConfigError if `allow_no_answer` is set for a model that answers no questions."""
    if allow_no_answer is not None and kind.head_type.scope != "span":
        raise ConfigError(
            f"allow_no_answer is set, but this is a model for {kind.name}; it is for "
            "question answering only"
        )


def choose_truncation(
    head: TaskHead, trained: Truncation, name: str | None, window_pooling: str | None
) -> Truncation:
    """Returns the truncation that the arguments of a `Predictor` name, by default the trained one.

    Raises:
      ConfigError: an argument is unknown, or does not apply to the head of the model.
    """
    kind, windows = kind_of_head(head), window_encoder_of(head)
    if windows is not None:
        if name is not None or window_pooling is not None:
            raise ConfigError(
                f"truncation is {name!r} and window_pooling {window_pooling!r}, but the head of "
                f"this model reads up to {windows.num_windows} windows of a text together; leave "
                "both out"
            )
        return JointWindows(num_windows=windows.num_windows)
    if name is None and window_pooling is None:
        return trained
    if label_tokens_of(head) is not None:
        raise ConfigError(
            f"truncation is {name!r} and window_pooling {window_pooling!r}, but this model reads "
            "texts in a prompt, which is one sequence; leave both out"
        )
    if name is not None and TRUNCATIONS.get(name) is JointWindows:
        raise ConfigError(
            f"truncation is {name!r}, but the head of this model has no window_encoder; fine-tune "
            "the model with --truncation hierarchical, or choose another truncation"
        )
    truncation = make_truncation(name or truncation_name(trained), window_pooling)
    check_truncation(kind, truncation)
    return truncation


def is_one_input(inputs: ModelInput | Sequence[ModelInput]) -> TypeGuard[ModelInput]:
    """Returns whether the argument of a `Predictor` is one input, and not a sequence of inputs.

    One input is a text, an example, or a tuple of texts. A tuple of examples, as in `Task.splits`,
    is a sequence of inputs.
    """
    if isinstance(inputs, str | Example):
        return True
    return (
        isinstance(inputs, tuple) and bool(inputs) and all(isinstance(text, str) for text in inputs)
    )


def is_empty_text(model_input: object) -> bool:
    """Returns whether an input is one text of white space only, for which nothing is predicted."""
    return isinstance(model_input, str) and not model_input.strip()


def nonempty_examples(kind: AnyTaskKind, inputs: Sequence[ModelInput]) -> dict[int, Any]:
    """Returns inputs as examples, by index; texts of white space only are left out.

    Raises:
      UserError: a text of a tuple is empty, or an input is not what the kind reads.
    """
    return {
        index: kind.example_from_input(model_input, str(index))
        for index, model_input in enumerate(inputs)
        if not is_empty_text(model_input)
    }


def pair_texts(first: Any, second: Any, kind: AnyTaskKind) -> tuple[str, str] | list[Any]:
    """Combines two texts into a pair, or two lists of texts into a list of pairs.

    Raises:
      UserError: the model does not read pairs, or the lists have different lengths.
      TypeError: only one of the two is a list.
    """
    if not kind.reads_pairs:
        raise UserError(
            f"text_pair is given, but a model for {kind.name} reads "
            f"{kind.description.expected_input}"
        )
    if isinstance(first, str) and isinstance(second, str):
        return first, second
    if isinstance(first, str) or isinstance(second, str):
        raise TypeError("expected two texts, or two lists of texts, found one text and one list")
    if len(first) != len(second):
        raise UserError(
            f"found {len(first)} first texts and {len(second)} second texts; expected lists of "
            "the same length"
        )
    return list(zip(first, second, strict=True))


def check_pairs(examples: Sequence[Example], reads_pairs: bool | None, model_path: str) -> None:
    """Checks that examples are pairs of texts if, and only if, the model was trained on pairs.

    Args:
      reads_pairs: of `TrainedSettings`; None checks nothing.

    Raises:
      UserError: an example is a pair and should not be, or the reverse.
    """
    if reads_pairs is None:
        return
    for example in examples:
        if isinstance(example, TextExample) and (example.text_pair is not None) != reads_pairs:
            expected, found, advice = (
                ("pairs of texts", "a single text", "give a second text for each input (with")
                if reads_pairs
                else ("single texts", "a pair of texts", "give one text for each input (without")
            )
            raise UserError(
                f"{model_path} was trained on {expected}, but the input {example.text[:40]!r} is "
                f"{found}; {advice} --pairs, or --text-pair for a table)"
            )


def check_fits_model(
    task: Task, split: str, kind: AnyTaskKind, labels: Sequence[str], model_path: str
) -> None:
    """Checks that the metrics of a split can be computed with a model.

    Args:
      kind: the kind of the model.
      labels: the labels of the model.

    Raises:
      ConfigError: the task has no such split, or is of another kind than the model.
      UserError: an example has no label, or one that the model does not have.
    """
    if split not in task.splits:
        splits = ", ".join(task.splits)
        raise ConfigError(f"{task.name} has no split {split!r}; expected one of: {splits}")
    if task.kind != kind.name:
        advice = f"use a model that was fine-tuned for {task.kind}"
        if {task.kind, kind.name} <= COLUMNS_METRICS.keys():
            advice = (
                f"if the labels of {task.name} are meant for {kind.name}, pass --kind {kind.name}; "
                f"otherwise {advice}"
            )
        raise ConfigError(
            f"{task.name} is a task of {task.kind}, but {model_path} is a model for "
            f"{kind.name}; {advice}"
        )
    examples = task.splits[split]
    num_unlabeled = sum(not is_labeled(example) for example in examples)
    if num_unlabeled:
        raise UserError(
            f"{task.name}: {num_unlabeled:,} of {len(examples):,} examples of the split {split} "
            "have no label; metrics need a label for each example, so add the labels, or compute "
            "predictions without metrics with `bert-jax predict`"
        )
    known, num_unknown = set(labels), 0
    unknown: set[str] = set()
    for example in examples:
        found = {str(label) for label in class_labels(example)} - known
        unknown |= found
        num_unknown += bool(found)
    if unknown:
        raise UserError(
            f"{task.name}: {num_unknown:,} of {len(examples):,} examples of the split {split} "
            f"have labels that {model_path} does not have: {_join_labels(sorted(unknown))}; its "
            f"labels are {_join_labels(labels)}; correct the labels, or use a model that was "
            "fine-tuned with these labels"
        )


def _join_labels(labels: Sequence[str]) -> str:
    """Returns quoted labels, separated by commas; only the first few if there are many."""
    shown = ", ".join(repr(str(label)) for label in labels[:_MAX_SHOWN_LABELS])
    remaining = len(labels) - _MAX_SHOWN_LABELS
    return shown if remaining <= 0 else f"{shown} and {remaining:,} more"


def shown_text(text: str) -> str:
    """Returns a text in quotes for a message, cut to 60 characters."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
