"""Defines the texts that describe kinds of tasks and their examples in reports and messages."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Json = dict[str, Any]
"""A JSON object."""

UNLABELED = "(no label)"
MAX_SHOWN_CHARACTERS = 400
"""Limit for one text of an error example in a report."""


@dataclass(frozen=True, kw_only=True)
class KindDescription:
    """Holds the texts that describe a kind of task in messages, reports and model cards.

    Attributes:
      expected_input: completes "a model for this kind reads ...".
      text_names: names of the texts of an input, for messages.
      class_table: title of the table of scores by class.
      error_loss: column title of what error examples are ranked by.
      pipeline_tag: the tag of the task on model hubs.
      auto_class: the class of Hugging Face Transformers that loads the model.
      head_output: completes "Output of the head: ...", in a model card.
      result: completes "With bert_jax, to get ... from texts", in a model card.
      example_arguments: arguments of `bert-jax predict` that show an input.
    """

    expected_input: str
    text_names: tuple[str, ...]
    class_table: str = "Classes"
    error_loss: str
    pipeline_tag: str
    auto_class: str
    head_output: str
    result: str
    example_arguments: str


def excerpt(text: str, center: int = 0, max_characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """Cuts a text to at most `max_characters` around character `center`; "…" marks each cut."""
    if len(text) <= max_characters:
        return text
    start = max(0, min(center - max_characters // 2, len(text) - max_characters))
    prefix, suffix = "…" if start else "", "…" if start + max_characters < len(text) else ""
    return f"{prefix}{text[start : start + max_characters]}{suffix}"


def as_dicts(rows: Sequence[Any]) -> list[Json]:
    """Converts dataclass instances to JSON objects."""
    return [asdict(row) for row in rows]
