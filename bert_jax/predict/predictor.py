"""Predicts with a fine-tuned model: labels, scores, entities, answers or choices.

from bert_jax.predict.predictor import Predictor
predict = Predictor(load_model("runs/reviews"))
predict("A fine film.")                             # one text: one prediction
predict(["A fine film.", "Two hours of my life."])  # a list of texts: a list of predictions
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, overload

import jax
import numpy as np

from bert_jax.config.labeled_data import WindowPooling
from bert_jax.config.train import LARGEST_BATCH_SIZE
from bert_jax.data.finetuning.example import Example, Task
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import with_doubles
from bert_jax.errors import check_range
from bert_jax.models.heads.config import task_parts
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params.paths import ADAPTER
from bert_jax.predict.batches import compute_features, params_to_device
from bert_jax.predict.checks import check_fits_model, is_one_input, pair_texts
from bert_jax.predict.task_processor import TaskProcessor, TruncationName, require_head
from bert_jax.pretrained.load import AnyModel, require_encoder
from bert_jax.tasks.base import ModelInput
from bert_jax.tasks.registry import compute_metrics

_InputT = TypeVar("_InputT", bound=ModelInput)


class Predictor:
    """Predicts on texts: `Predictor(load_model("runs/reviews"))("A fine film.")`.

    A prediction depends on its own input only, not on the other inputs of the call.

    Attributes:
      kind: the kind of task of the model.
      labels: the class names of the model, if it has any.
      max_length: maximum number of tokens in a sequence.
      num_truncated: number of inputs so far that were not read completely.
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        truncation: TruncationName | None = None,
        window_pooling: WindowPooling | None = None,
        max_length: int | None = None,
        window_overlap: int | None = None,
        batch_size: int = 32,
        allow_no_answer: bool | None = None,
    ):
        """Copies the model to the device.

        Args:
          model: a model with the head of a task and a tokenizer.
          truncation: which part is read of a text or pair that exceeds `max_length`; None for the
            part that was read in training. Words to tag and contexts of questions are always read
            completely, in windows.
          window_pooling: how the outputs of several windows of a text are combined; None for the
            way of the training run if it had windows, or "mean".
          max_length: maximum number of tokens in a sequence; None for the length of the training
            run, or if the model does not come from a run, for the maximum of the model (384 for
            question answering).
          window_overlap: number of tokens that neighboring windows share; None for that of the
            training run, or 128.
          batch_size: maximum number of sequences in a batch.
          allow_no_answer: whether a question may be left unanswered; None for the setting of the
            training run, or False.

        Raises:
          UserError: the model has no head or no tokenizer, or is T5 or BART.
          ConfigError: a setting is out of range or does not fit the model.
        """
        model = require_encoder(model, "predict")
        self._processor = TaskProcessor(
            model,
            truncation=truncation,
            window_pooling=window_pooling,
            max_length=max_length,
            window_overlap=window_overlap,
            allow_no_answer=allow_no_answer,
        )
        head, settings = require_head(model), self._processor.settings
        check_range("batch_size", batch_size, at_least=1, at_most=LARGEST_BATCH_SIZE)
        self.kind, self.max_length = self._processor.kind, self._processor.max_length
        self.num_truncated, self.labels = 0, self._processor.labels
        # Batches have the lengths of training, so that evaluation in a run and prediction compute
        # the same.
        shorter_lengths = with_doubles(settings.bucket_lengths, self.max_length)
        self._bucket_lengths, self._batch_size = (*shorter_lengths, self.max_length), batch_size
        part_names = ("encoder", *task_parts(head, model.config))
        self._params = params_to_device(model, part_names)
        if model.adapter is not None:
            self._params[ADAPTER] = jax.device_put(model.adapter_params)
        objective = FineTuningObjective(settings.objective, model.adapter)
        self._field_names, self._path = objective.input_fields(), model.path
        self._predict_batch = jax.jit(objective.predict)

    def __repr__(self) -> str:
        """Returns one line with the model, the kind of task and the labels."""
        labels = ", ".join(self.labels[:5]) + ", ..." * (len(self.labels) > 5)
        return f"<Predictor {self._path}: {self.kind.name}{labels and f' ({labels})'}>"

    @overload
    def __call__(
        self,
        inputs: str | tuple[str, ...] | Example,
        text_pair: str | None = None,
        *,
        on_progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any]: ...

    @overload
    def __call__(
        self,
        inputs: list[_InputT] | tuple[Example, ...],
        text_pair: list[str] | None = None,
        *,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[dict[str, Any]]: ...

    def __call__(
        self,
        inputs: ModelInput | Sequence[ModelInput],
        text_pair: str | Sequence[str] | None = None,
        *,
        on_progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Predicts on one input, which returns one JSON object, or on a list, which returns a list.

        The objects have these keys, by kind of task, and the texts or the id of the input:

          classification         "label", "probabilities": {label: probability}
          regression             "value"
          ranking                "score", from 0 to 1, "logit"
          token classification   "tags", "entities": [{"type", "start", "end", "text"}]
          question answering     "answer", "start", "end", "score", "probability",
                                 "no_answer_score"
          multiple choice        "choice", "probabilities": [probability, ...]

        "start" and "end" of answers, and of entities of a text, count characters, "end" excluded;
        positions of entities of words count words. "No answer" is "", from -1 to -1. The values for
        an empty text are None, or empty lists of tags and entities.

        Args:
          inputs: a text, a tuple of texts (a pair, a question and its context, a context and its
            choices, or words to tag), an example, or a list of these.
          text_pair: the second text of a pair or the context of a question, if `inputs` is one
            text; a list of these if `inputs` is a list of texts.
          on_progress: called after each batch with the number of inputs that it finished.

        Raises:
          UserError: a text of a tuple is empty, an input is not what the model reads, or `inputs`
            and `text_pair` have different lengths.
          TypeError: only one of `inputs` and `text_pair` is a list.
        """
        if text_pair is not None:
            inputs = pair_texts(inputs, text_pair, self.kind)
        if is_one_input(inputs):
            return self._predict([inputs], on_progress)[0]
        return self._predict(cast(Sequence[ModelInput], inputs), on_progress)

    def _predict(
        self, inputs: Sequence[ModelInput], on_progress: Callable[[int], object] | None
    ) -> list[dict[str, Any]]:
        processor = self._processor
        prepared = processor.prepare(inputs)
        num_empty = len(inputs) - len(prepared.examples)
        if on_progress is not None and num_empty:
            on_progress(num_empty)
        self.num_truncated += prepared.features.num_truncated
        outputs = self._run_model(prepared.features, on_progress) if prepared.examples else {}
        return processor.records(prepared, outputs)

    def logits(
        self, inputs: Sequence[ModelInput], on_progress: Callable[[int], object] | None = None
    ) -> np.ndarray:
        """Computes the logits of inputs of a classifier, float32 [n, C].

        Args:
          inputs: as in `__call__`; none may be empty.
          on_progress: as in `__call__`.
        """
        if not inputs:
            return np.zeros((0, len(self.labels)), np.float32)
        prepared = self._processor.prepare(inputs)
        self.num_truncated += prepared.features.num_truncated
        outputs = self._run_model(prepared.features, on_progress)
        return self._processor.decode(prepared.examples, prepared.features, outputs)

    def evaluate(
        self, task: Task, split: str, on_progress: Callable[[int], object] | None = None
    ) -> dict[str, float]:
        """Computes the metrics of a labeled split, such as {"accuracy": 0.91, ...}.

        Args:
          task: the result of `load_task`. Its labels may have another order than the model's.
          on_progress: as for `__call__`.

        Raises:
          ConfigError, UserError: as `predict_split`.
        """
        own_task, predictions = self.predict_split(task, split, on_progress)
        return compute_metrics(own_task, own_task.splits[split], predictions)

    def predict_split(
        self, task: Task, split: str, on_progress: Callable[[int], object] | None = None
    ) -> tuple[Task, Any]:
        """Predicts the examples of a labeled split.

        Args:
          task, on_progress: as for `evaluate`.

        Returns:
          The task with the labels of the model, whose order gives the class ids of predictions, and
          the result of `TaskKind.decode`, one prediction for each example.

        Raises:
          ConfigError: the task has no such split, or is of another kind than the model.
          UserError: an example has no label, or one that the model does not have.
        """
        processor = self._processor
        check_fits_model(task, split, self.kind, processor.labels, processor.model_path)
        examples = tuple(task.splits[split])
        features = processor.make_features(examples)
        self.num_truncated += features.num_truncated
        predictions = processor.decode(examples, features, self._run_model(features, on_progress))
        return dataclasses.replace(task, labels=processor.labels), predictions

    def _run_model(
        self, features: Features, on_progress: Callable[[int], object] | None
    ) -> dict[str, list[np.ndarray]]:
        """Computes the head outputs of each sequence."""
        is_last_sequence = np.diff(features.example_index, append=-1) != 0

        def report(indices: np.ndarray) -> None:
            if on_progress is not None:
                on_progress(int(is_last_sequence[indices].sum()))

        return compute_features(
            features,
            functools.partial(self._predict_batch, self._params),
            self._field_names,
            bucket_lengths=self._bucket_lengths,
            batch_size=self._batch_size,
            pad_id=self._processor.tokenizer.pad_id,
            on_batch=report,
        )
