"""Classifies texts with the vectors of a sentence encoder and a logistic regression (SetFit)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast, overload

import numpy as np

from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.sentence_embeddings.loader import joined_text
from bert_jax.errors import UserError
from bert_jax.predict.checks import (
    check_fits_model,
    check_pairs,
    is_one_input,
    nonempty_examples,
)
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.load import AnyModel, LoadedSetFit
from bert_jax.pretrained.setfit import HEAD_CONFIG
from bert_jax.tasks.base import ModelInput
from bert_jax.tasks.features import text_examples
from bert_jax.tasks.registry import compute_metrics, kind_named

_GROUP_SIZE = 256


class SetFitClassifier:
    """Classifies texts: `SetFitClassifier(load_model("runs/setfit"))("A fine film.")["label"]`.

    Attributes:
      head: the logistic regression.
      kind: the task kind, which is classification.
      max_length: maximum number of tokens in a text.
      num_truncated: number of texts so far that were truncated to `max_length`.
    """

    def __init__(self, model: AnyModel):
        """Copies the sentence encoder to the device.

        Raises:
          UserError: the model is no run of SetFit, or its head does not fit its encoder.
        """
        if not isinstance(model, LoadedSetFit):
            raise UserError(
                f"{model.path} has no {HEAD_CONFIG}; expected the folder of a completed run of "
                "`bert-jax setfit`: if the run was stopped, run its command again; for other "
                "fine-tuned models use bert_jax.Predictor"
            )
        self.head, self._path, self._embedder = model.head, model.path, Embedder(model)
        self.kind, self.max_length = kind_named("classification"), self._embedder.max_length
        self.num_truncated = 0
        if self.head.weight.shape[1] != self._embedder.embedding_size:
            raise UserError(
                f"{model.path}: the head expects embeddings of size {self.head.weight.shape[1]}, "
                f"but those of the encoder have size {self._embedder.embedding_size}; copy the "
                "whole folder again, or train the model again"
            )

    @overload
    def __call__(
        self,
        inputs: str | tuple[str, str] | TextExample,
        *,
        on_progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any]: ...

    @overload
    def __call__(
        self,
        inputs: Sequence[ModelInput],
        *,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[dict[str, Any]]: ...

    def __call__(
        self, inputs: Any, *, on_progress: Callable[[int], object] | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Returns {"text", "label", "probabilities"} of one text, pair or example, or of a list.

        Both texts of a pair are joined with a space, as in training. The values for a text of
        whitespace alone are None.

        Args:
          on_progress: called after each group of texts with their number.

        Raises:
          UserError: an input is not a text, a pair of texts or an example, or it is a pair and
            the training examples were not, or the reverse.
        """
        if is_one_input(inputs):
            return self._predict([inputs], on_progress)[0]
        return self._predict(cast(Sequence[ModelInput], inputs), on_progress)

    def _predict(
        self, inputs: Sequence[ModelInput], on_progress: Callable[[int], object] | None
    ) -> list[dict[str, Any]]:
        examples = nonempty_examples(self.kind, inputs)
        check_pairs(list(examples.values()), self.head.reads_pairs, self._path)
        logits = self.logits([joined_text(each) for each in examples.values()], on_progress)
        if on_progress is not None and len(examples) < len(inputs):
            on_progress(len(inputs) - len(examples))
        labels, results = self.head.labels, [dict(self.kind.empty_prediction) for _ in inputs]
        records = self.kind.predictions_to_json(list(examples.values()), logits, labels)
        for index, record in zip(examples, records, strict=True):
            results[index] = record
        return [
            self.kind.add_input(model_input, result)
            for model_input, result in zip(inputs, results, strict=True)
        ]

    def logits(
        self, texts: Sequence[str], on_progress: Callable[[int], object] | None = None
    ) -> np.ndarray:
        """Computes the logits of texts, float32 [n, C]; `on_progress` as in `__call__`."""
        vectors = np.zeros((len(texts), self._embedder.embedding_size), np.float32)
        for start in range(0, len(texts), _GROUP_SIZE):
            group, truncated = self._embedder.embed(texts[start : start + _GROUP_SIZE])
            vectors[start : start + len(group)] = group
            self.num_truncated += sum(truncated)
            if on_progress is not None:
                on_progress(len(group))
        return self.head.logits(vectors)

    def evaluate(self, task: Task, split: str) -> dict[str, float]:
        """Computes the metrics of a labeled split; raises what `predict_split` raises."""
        own_task, logits = self.predict_split(task, split)
        return compute_metrics(own_task, own_task.splits[split], logits)

    def predict_split(
        self, task: Task, split: str, on_progress: Callable[[int], object] | None = None
    ) -> tuple[Task, np.ndarray]:
        """Computes the logits of a labeled split, as `Predictor.predict_split`.

        Returns:
          The task with the labels of the head, whose order gives the class ids, and the logits,
          float32 [n, C].

        Raises:
          ConfigError: the task has no such split, or is not a classification task.
          UserError: an example has no label, or one that the head does not have, or it is a pair
            and the training examples were not, or the reverse.
        """
        check_fits_model(task, split, self.kind, self.head.labels, self._path)
        examples = text_examples(task, split)
        check_pairs(examples, self.head.reads_pairs, self._path)
        texts = [joined_text(each) for each in examples]
        own_task = dataclasses.replace(task, labels=self.head.labels)
        return own_task, self.logits(texts, on_progress)
