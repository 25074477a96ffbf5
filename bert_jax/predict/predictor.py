"""Predicts with a fine-tuned model: labels, scores, entities, answers or choices.

from bert_jax.predict.predictor import Predictor
predict = Predictor(load_model("runs/reviews"))
predict(["A fine film.", "Two hours of my life."])
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.data.finetuning.example import (
    Example,
    Task,
    TextExample,
    class_labels,
    is_labeled,
)
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import evaluation_batches, gather_outputs
from bert_jax.errors import ConfigError, UserError, require_list_of_texts
from bert_jax.models.heads.config import QuestionAnsweringHead, head_param_name, uses_pooler
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.predict.batching import next_power_of_two, params_to_device, require_tokenizer
from bert_jax.predict.long_texts import (
    TRUNCATIONS,
    WINDOW_POOLINGS,
    Truncation,
    WindowPooling,
    pool_windows,
    text_features,
)
from bert_jax.predict.training_settings import require_head, trained_settings
from bert_jax.pretrained.load import LoadedModel
from bert_jax.tasks import AnyTaskKind, compute_metrics, kind_of_head, make_features
from bert_jax.tasks.base import ModelInput
from bert_jax.tasks.text_pair import TextPairKind
from bert_jax.train.config import LARGEST_BATCH_SIZE

_SPLIT = "test"


class Predictor:
    """Predicts on texts: `Predictor(load_model("runs/rte"))([("A premise.", "A hypothesis.")])`.

    A prediction depends on its own input only, not on the other inputs of the call.

    Attributes:
      kind: the kind of task of the model.
      max_length: maximum number of tokens in a sequence.
      num_truncated: number of inputs so far that were not read completely.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        truncation: Truncation = "head",
        window_pooling: WindowPooling | None = None,
        max_length: int | None = None,
        window_overlap: int | None = None,
        batch_size: int = 32,
        allow_no_answer: bool | None = None,
    ):
        """Copies the model to the device.

        Args:
          model: a model with the head of a task and a tokenizer.
          truncation: which part is read of a text or pair that exceeds `max_length`. Words to tag
            and contexts of questions are always read completely, in windows.
          window_pooling: how the outputs of several windows of a text are combined (default
            "mean").
          max_length: maximum number of tokens in a sequence; None for the length of the training
            run, or if the model does not come from a run, for the maximum of the model (384 for
            question answering).
          window_overlap: number of tokens that neighboring windows share; None for that of the
            training run, or 128.
          batch_size: maximum number of sequences in a batch.
          allow_no_answer: whether a question may be left unanswered; None for the setting of the
            training run, or False.

        Raises:
          UserError: the model has no head or no tokenizer.
          ConfigError: a setting is out of range or does not fit the model.
        """
        head, settings = require_head(model), trained_settings(model)
        self._tokenizer = require_tokenizer(model)
        self.kind: AnyTaskKind = kind_of_head(head)
        self._labels: tuple[str, ...] = getattr(head, "labels", ())
        self.num_truncated = 0
        self.max_length = settings.max_length if max_length is None else max_length
        self._window_overlap = settings.window_overlap if window_overlap is None else window_overlap
        self._check_sizes(batch_size, model.config.max_length)
        if window_overlap is not None and window_overlap >= self.max_length:
            raise ConfigError(
                f"window_overlap is {window_overlap}; expected less than max_length "
                f"{self.max_length}"
            )
        self._check_truncation(truncation, window_pooling, allow_no_answer)
        self._truncation: Truncation = truncation
        self._window_pooling: WindowPooling = window_pooling or "mean"
        shorter_lengths = [length for length in settings.bucket_lengths if length < self.max_length]
        self._bucket_lengths, self._batch_size = (*shorter_lengths, self.max_length), batch_size
        self._allow_no_answer = (
            settings.allow_no_answer if allow_no_answer is None else allow_no_answer
        )
        self._model_path = model.path
        has_pooler = uses_pooler(head, model.config.sequence_classifier)
        part_names = ["encoder", head_param_name(head), *(["pooler"] * has_pooler)]
        self._params = {part: params_to_device(model, part) for part in part_names}
        objective = FineTuningObjective(settings.objective)
        self._field_names = objective.input_fields()
        self._predict_batch = jax.jit(objective.predict)

    def _check_sizes(self, batch_size: int, max_positions: int) -> None:
        if not 4 <= self.max_length <= max_positions:
            raise ConfigError(
                f"max_length is {self.max_length}; expected 4 to {max_positions}, the number of "
                "positions of the model"
            )
        if batch_size > LARGEST_BATCH_SIZE:
            raise ConfigError(f"batch_size is {batch_size}; expected at most {LARGEST_BATCH_SIZE}")
        if batch_size < 1 or self._window_overlap < 0:
            raise ConfigError(
                f"batch_size is {batch_size} and window_overlap {self._window_overlap}; expected "
                "batch_size >= 1 and window_overlap >= 0"
            )

    def _check_truncation(
        self,
        truncation: Truncation,
        window_pooling: WindowPooling | None,
        allow_no_answer: bool | None,
    ) -> None:
        if truncation not in TRUNCATIONS:
            raise ConfigError(
                f"truncation is {truncation!r}; expected one of {', '.join(TRUNCATIONS)}"
            )
        if window_pooling is not None and window_pooling not in WINDOW_POOLINGS:
            raise ConfigError(
                f"window_pooling is {window_pooling!r}; expected one of "
                f"{', '.join(WINDOW_POOLINGS)}"
            )
        if allow_no_answer is not None and self.kind.head_type is not QuestionAnsweringHead:
            raise ConfigError(
                f"allow_no_answer is set, but this is a model for {self.kind.name}; it is for "
                "question answering only"
            )
        if truncation != "head" and not isinstance(self.kind, TextPairKind):
            raise ConfigError(
                f"truncation is {truncation!r}, but this is a model for {self.kind.name}; expected "
                "'head', because only classification and regression have other ways of truncation"
            )
        if window_pooling is not None and truncation != "windows":
            raise ConfigError(
                f"window_pooling is {window_pooling!r} and truncation {truncation!r}; expected "
                "truncation 'windows', or no window_pooling"
            )

    def __call__(
        self, inputs: Sequence[ModelInput], on_progress: Callable[[int], object] | None = None
    ) -> list[dict[str, Any]]:
        """Predicts on each input; returns one JSON object for each.

        The objects have these keys, by kind of task, and the texts or the id of the input:

          classification         "label", "probabilities": {label: probability}
          regression             "value"
          token classification   "tags", "entities": [{"type", "start", "end", "text"}]
          question answering     "answer", "start", "end", "score", "probability",
                                 "no_answer_score"
          multiple choice        "choice", "probabilities": [probability, ...]

        "start" and "end" of answers, and of entities of a text, count characters, "end" excluded;
        those of entities of words count words. "No answer" is "", from -1 to -1.

        Args:
          inputs: see `bert_jax.tasks.base.ModelInput`.
          on_progress: called after each batch with the number of inputs that it finished.

        Raises:
          UserError: an input is empty, or is not what the model reads.
          TypeError: `inputs` is one text instead of a list.
        """
        require_list_of_texts(inputs)
        kind = self.kind
        examples = tuple(
            kind.example_from_input(model_input, str(index))
            for index, model_input in enumerate(inputs)
        )
        if not examples:
            return []
        predictions = self._predict_examples(examples, on_progress)
        records = kind.predictions_to_json(examples, predictions, self._labels)
        return [
            kind.add_input(model_input, record)
            for model_input, record in zip(inputs, records, strict=True)
        ]

    def evaluate(
        self, task: Task, split: str, on_progress: Callable[[int], object] | None = None
    ) -> dict[str, float]:
        """Computes the metrics of a labeled split, such as {"accuracy": 0.91, ...}.

        Args:
          task: the result of `load_task`. Its labels may have another order than the model's.
          on_progress: as for `__call__`.

        Raises:
          ConfigError: the task has no such split, or is of another kind than the model.
          UserError: an example has no label, or one that the model does not have.
        """
        if split not in task.splits:
            splits = ", ".join(task.splits)
            raise ConfigError(f"{task.name} has no split {split!r}; expected one of: {splits}")
        if task.kind != self.kind.name:
            raise ConfigError(
                f"{task.name} is a task of {task.kind}, but {self._model_path} is a model for "
                f"{self.kind.name}; use a model that was fine-tuned on such a task"
            )
        examples = task.splits[split]
        self._check_labels(task.name, split, examples)
        predictions = self._predict_examples(tuple(examples), on_progress)
        # The model's labels, whose order gives the class ids of its predictions.
        own_task = dataclasses.replace(task, labels=self._labels)
        return compute_metrics(own_task, examples, predictions)

    def _check_labels(self, task_name: str, split: str, examples: Sequence[Example]) -> None:
        num_unlabeled = sum(not is_labeled(example) for example in examples)
        if num_unlabeled:
            raise UserError(
                f"{task_name}: {num_unlabeled:,} of {len(examples):,} examples of the split "
                f"{split} have no label; metrics need a label for each example"
            )
        known = set(self._labels)
        for example in examples:
            unknown = set(class_labels(example)) - known
            if unknown:
                raise UserError(
                    f"{task_name}: the label {min(map(str, unknown))!r} of the split {split} is "
                    f"not a label of {self._model_path}; its labels are {', '.join(self._labels)}"
                )

    def _predict_examples(
        self, examples: tuple[Example, ...], on_progress: Callable[[int], object] | None
    ) -> Any:
        """Returns the result of `TaskKind.decode` for these examples."""
        features, decode = self._make_features(examples), self.kind.decode
        self.num_truncated += features.num_truncated
        outputs: Mapping[str, Sequence[np.ndarray]] = self._run_model(features, on_progress)
        if isinstance(self.kind, TextPairKind):
            outputs = pool_windows(outputs, features.example_index, self._window_pooling)
        return decode(
            examples, features, outputs, self._labels, allow_no_answer=self._allow_no_answer
        )

    def _make_features(self, examples: tuple[Example, ...]) -> Features:
        if self._truncation != "head":
            texts = [example for example in examples if isinstance(example, TextExample)]
            return text_features(
                texts, self._tokenizer, self.max_length, self._truncation, self._window_overlap
            )
        task = Task(
            name=self._model_path,
            kind=self.kind.name,
            labels=self._labels,
            metrics=(),
            splits={_SPLIT: examples},
        )
        return make_features(task, _SPLIT, self._tokenizer, self.max_length, self._window_overlap)

    def _run_model(
        self, features: Features, on_progress: Callable[[int], object] | None
    ) -> dict[str, list[np.ndarray]]:
        """Computes the head outputs of each sequence."""
        is_last_sequence = np.diff(features.example_index, append=-1) != 0

        def batch_outputs() -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
            for indices, batch in evaluation_batches(
                features,
                self._bucket_lengths,
                batch_size=min(self._batch_size, next_power_of_two(len(features))),
                pad_id=self._tokenizer.pad_id,
            ):
                fields = {name: batch[name] for name in self._field_names}
                yield indices, jax.device_get(self._predict_batch(self._params, fields))
                if on_progress is not None:
                    on_progress(int(is_last_sequence[indices].sum()))

        return gather_outputs(batch_outputs(), len(features))
