"""Converts inputs of a fine-tuned model to token ids, and outputs of its head to predictions.

`Predictor` and the server run the model between these two steps, each in its own batches.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bert_jax.config.labeled_data import WindowPooling
from bert_jax.data.finetuning.example import Example, Task
from bert_jax.data.finetuning.features import Features
from bert_jax.errors import ConfigError
from bert_jax.predict.batching import require_tokenizer
from bert_jax.predict.checks import (
    check_no_answer,
    check_pairs,
    check_sizes,
    choose_truncation,
    nonempty_examples,
)
from bert_jax.predict.training_settings import max_text_length, require_head, trained_settings
from bert_jax.pretrained.load import LoadedModel
from bert_jax.tasks.base import AnyTaskKind, ModelInput, SequenceOutputs
from bert_jax.tasks.features import make_features
from bert_jax.tasks.registry import kind_of_head

TruncationName = Literal["head", "tail", "head+tail", "windows"]
"""The names in `TRUNCATIONS` of `config/labeled_data.py`, which describes them."""

_SPLIT = "test"


@dataclass(frozen=True, kw_only=True)
class PreparedInputs:
    """Holds inputs of a model with their token ids.

    Attributes:
      inputs: the inputs, as the caller gave them.
      indices: the index of each example in `inputs`; texts of white space give no example.
      examples: the inputs as examples.
      features: the token ids of the examples; a long example may be several sequences.
    """

    inputs: Sequence[ModelInput]
    indices: tuple[int, ...]
    examples: tuple[Example, ...]
    features: Features


class TaskProcessor:
    """Makes features of inputs, and decodes the outputs of the head, as the model was trained.

    Attributes:
      kind: the kind of task of the model.
      labels: the class names of the model, if it has any.
      tokenizer: the tokenizer of the model.
      settings: the settings of the training run.
      max_length: maximum number of tokens in a sequence.
      model_path: the path of the model, for error messages.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        truncation: TruncationName | None = None,
        window_pooling: WindowPooling | None = None,
        max_length: int | None = None,
        window_overlap: int | None = None,
        allow_no_answer: bool | None = None,
    ):
        """Reads the settings of the model; the arguments are those of `Predictor`.

        Raises:
          UserError: the model has no head or no tokenizer.
          ConfigError: a setting is out of range or does not fit the model.
        """
        head, self.settings = require_head(model), trained_settings(model)
        self.tokenizer, self.model_path = require_tokenizer(model), model.path
        self.kind: AnyTaskKind = kind_of_head(head)
        self.labels: tuple[str, ...] = getattr(head, "labels", ())
        self.max_length = self.settings.max_length if max_length is None else max_length
        self._window_overlap = (
            self.settings.window_overlap if window_overlap is None else window_overlap
        )
        check_sizes(self.max_length, max_text_length(model), 1, self._window_overlap)
        if window_overlap is not None and window_overlap >= self.max_length:
            raise ConfigError(
                f"window_overlap is {window_overlap}; expected less than max_length "
                f"{self.max_length}"
            )
        check_no_answer(self.kind, allow_no_answer)
        self.truncation = choose_truncation(
            head, self.settings.truncation, truncation, window_pooling
        )
        self._allow_no_answer = (
            self.settings.allow_no_answer if allow_no_answer is None else allow_no_answer
        )

    def prepare(self, inputs: Sequence[ModelInput]) -> PreparedInputs:
        """Tokenizes inputs; texts of white space only are left out.

        Raises:
          UserError: a text of a tuple is empty, or an input is not what the model reads.
        """
        examples = nonempty_examples(self.kind, inputs)
        nonempty = tuple(examples.values())
        return PreparedInputs(
            inputs=inputs,
            indices=tuple(examples),
            examples=nonempty,
            features=self.make_features(nonempty),
        )

    def make_features(self, examples: tuple[Example, ...]) -> Features:
        """Tokenizes examples into sequences of at most `max_length` tokens.

        Raises:
          UserError: an example is a pair and should not be, or the reverse.
        """
        if not examples:
            return Features()
        check_pairs(examples, self.settings.reads_pairs, self.model_path)
        task = Task(
            name=self.model_path,
            kind=self.kind.name,
            labels=self.labels,
            metrics=(),
            splits={_SPLIT: examples, "train": self.settings.demonstrations},
        )
        return make_features(
            task,
            _SPLIT,
            self.tokenizer,
            self.max_length,
            self._window_overlap,
            self.truncation,
            self.settings.prompt,
        )

    def decode(
        self, examples: Sequence[Example], features: Features, outputs: SequenceOutputs
    ) -> Any:
        """Returns the result of `TaskKind.decode`: a prediction for each example."""
        return self.kind.decode(
            examples, features, outputs, self.labels, allow_no_answer=self._allow_no_answer
        )

    def records(
        self, prepared: PreparedInputs, outputs: Mapping[str, Sequence[np.ndarray]]
    ) -> list[dict[str, Any]]:
        """Returns the predictions as JSON objects, one for each input; see `Predictor.__call__`."""
        results = [
            {"text": model_input, **copy.deepcopy(dict(self.kind.empty_prediction))}
            for model_input in prepared.inputs
        ]
        if not prepared.examples:
            return results
        predictions = self.decode(prepared.examples, prepared.features, outputs)
        records = self.kind.predictions_to_json(prepared.examples, predictions, self.labels)
        for index, record in zip(prepared.indices, records, strict=True):
            results[index] = self.kind.add_input(prepared.inputs[index], record)
        return results
