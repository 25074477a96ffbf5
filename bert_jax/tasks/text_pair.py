"""Defines what classification, regression and ranking share: texts or pairs of texts."""

import dataclasses
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from bert_jax.config.labeled_data import HeadTruncation, Truncation
from bert_jax.config.prompts import Prompt
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features, TargetValues, all_labeled
from bert_jax.tasks.base import ModelInput, TaskKind
from bert_jax.tasks.demonstrations import DemonstrationPool, add_demonstrations
from bert_jax.tasks.descriptions import UNLABELED, Json, excerpt
from bert_jax.tasks.long_texts import text_features
from bert_jax.tasks.prompt_features import make_prompt_features
from bert_jax.text.tokenizer import Tokenizer


class TextPairKind(TaskKind[TextExample, np.ndarray, np.ndarray]):
    """Implements features and inputs of kinds that read a text or a pair of texts."""

    # All kinds have both target fields, so that seqio can mix their tasks.
    sequence_fields: ClassVar[Mapping[str, str]] = {
        "input_ids": "L",
        "token_type_ids": "L",
        "labels": "",
        "label_values": "",
    }
    table_columns: ClassVar[Mapping[str, str | None]] = {
        "text": "text",
        "text_pair": None,
        "id": None,
    }

    @abstractmethod
    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns the target field, with one value for each labeled example."""

    def make_features(
        self,
        examples: Sequence[TextExample],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        max_length: int,
        window_overlap: int,
        truncation: Truncation = HeadTruncation(),  # noqa: B008 (frozen)
    ) -> Features:
        """Tokenizes texts and pairs; every window of a long text has the target of the text."""
        features = text_features(examples, tokenizer, max_length, truncation, window_overlap)
        return self._add_targets(features, examples, labels)

    def make_prompt_features(
        self,
        examples: Sequence[TextExample],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        max_length: int,
        prompt: Prompt,
        pool: DemonstrationPool | None = None,
    ) -> Features:
        """Tokenizes texts and pairs in the template of a prompt, with demonstrations of a pool."""
        features = make_prompt_features(examples, prompt, tokenizer, max_length)
        if prompt.demonstrations is not None and pool is not None:
            features = add_demonstrations(features, examples, pool, prompt.demonstrations)
        return self._add_targets(features, examples, labels)

    def _add_targets(
        self, features: Features, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> Features:
        if all_labeled(examples):
            targets = self.make_targets(examples, labels)
            features.targets = {
                name: [values[index] for index in features.example_index]
                for name, values in targets.items()
            }
        return features

    def format_label(self, example: TextExample) -> str:
        """Formats the class name or the score."""
        return UNLABELED if example.label is None else str(example.label)

    def overlap_key(self, example: TextExample) -> Hashable:
        """Returns both texts without case and outer white space."""
        pair = example.text_pair
        return example.text.strip().casefold(), None if pair is None else pair.strip().casefold()

    def parse_input(self, model_input: ModelInput, example_id: str) -> TextExample | None:
        """Converts a text, a pair of texts or a `TextExample`."""
        match model_input:
            case str():
                return TextExample(id=example_id, text=model_input)
            case [str() as text, str() as pair]:
                return TextExample(id=example_id, text=text, text_pair=pair)
            case TextExample():
                return dataclasses.replace(model_input, label=None)
            case _:
                return None

    def input_texts(self, example: TextExample) -> Sequence[str]:
        """Returns the text and, if there is one, the second text."""
        return [example.text] if example.text_pair is None else [example.text, example.text_pair]

    def input_to_json(self, model_input: Sequence[str]) -> Json:
        """Names both texts of a pair."""
        return {"text": model_input[0], "text_pair": model_input[1]}


def shown_texts(example: TextExample) -> dict[str, str]:
    """Returns the texts of an error example for a report."""
    texts = {"text": excerpt(example.text)}
    if example.text_pair is not None:
        texts["second text"] = excerpt(example.text_pair)
    return texts
