"""What a fine-tuned model says: labels, values, entities, answers, choices.

from bert_jax.predict.predictor import Predictor
predict = Predictor(load_model("runs/reviews"))
predict(["A fine film.", "Two hours of my life."])
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.data.finetuning.example import Example
from bert_jax.data.finetuning.features import Features, make_features
from bert_jax.data.finetuning.loader import evaluation_batches
from bert_jax.data.finetuning.task import Task, TaskKind
from bert_jax.errors import ConfigError
from bert_jax.evals import decode_predictions
from bert_jax.models.heads.config import head_param_name, uses_pooler
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.predict.batching import next_power_of_two
from bert_jax.predict.inputs import TEXT_KINDS, Input, format_prediction, task_kind, to_example
from bert_jax.predict.long_texts import (
    TRUNCATIONS,
    WINDOW_POOLINGS,
    Truncation,
    WindowPooling,
    pool_windows,
    text_features,
)
from bert_jax.predict.model import params_to_device, require_tokenizer
from bert_jax.predict.training_settings import require_head, trained_settings
from bert_jax.pretrained.load import LoadedModel

_SPLIT = "test"


class Predictor:
    """Predicts: `Predictor(load_model("runs/rte"))([("A premise.", "A hypothesis.")])`.

    A prediction depends on its own input alone, not on those beside it.

    Attributes:
      kind: what the model predicts.
      max_length: the most pieces in a row.
      truncated: inputs so far of which something was not read.
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
        """Puts the model on the device.

        Args:
          model: one with a task's head and a vocabulary.
          long: what is read of a text or a pair that is longer than a row. Words to tag and
            contexts of questions are always read whole, in windows.
          pool: how windows of a text become one outcome (default: "mean").
          max_length: of rows in pieces; None for that of the run that the model comes from, and
            otherwise for as many as the model can read (384 for questions).
          stride: pieces that two windows share; None for the run's, otherwise 128.
          batch_size: the most rows that are computed at once.
          no_answer: whether a question may be left unanswered; None for as in training, and
            otherwise False.

        Raises:
          UserError: the model has no head or no vocabulary.
          ConfigError: a setting is out of range or does not fit the model.
        """
        self._head, settings = require_head(model), trained_settings(model)
        self._tokenizer = require_tokenizer(model)
        self.kind: TaskKind = task_kind(self._head)
        self.num_truncated = 0
        self.max_length = settings.max_length if max_length is None else max_length
        max_positions = model.config.max_length
        if not 4 <= self.max_length <= max_positions:
            raise ConfigError(
                f"max_length is {self.max_length}; expected 4 to {max_positions}, which the model "
                "can read"
            )
        self._window_overlap = settings.window_overlap if window_overlap is None else window_overlap
        if batch_size < 1 or self._window_overlap < 0:
            raise ConfigError(
                f"batch_size is {batch_size} and window_overlap {self._window_overlap}; expected "
                "batch_size >= 1 and window_overlap >= 0"
            )
        self._check_truncation(truncation, window_pooling)
        self._truncation: Truncation = truncation
        self._window_pooling: WindowPooling = window_pooling or "mean"
        shorter_lengths = [length for length in settings.bucket_lengths if length < self.max_length]
        self._bucket_lengths, self._batch_size = (*shorter_lengths, self.max_length), batch_size
        self._allow_no_answer = (
            settings.allow_no_answer if allow_no_answer is None else allow_no_answer
        )
        self._model_path = model.path
        part_names = [
            "encoder",
            head_param_name(self._head),
            *(["pooler"] * uses_pooler(self._head, model.config.sequence_classifier)),
        ]
        self._params = {part: params_to_device(model, part) for part in part_names}
        objective = FineTuningObjective(settings.objective)
        self._field_names, self._predict_batch = (
            objective.input_fields(),
            jax.jit(objective.predict),
        )

    def _check_truncation(
        self, truncation: Truncation, window_pooling: WindowPooling | None
    ) -> None:
        if truncation not in TRUNCATIONS or (
            window_pooling is not None and window_pooling not in WINDOW_POOLINGS
        ):
            raise ConfigError(
                f"truncation is {truncation!r} and window_pooling {window_pooling!r}; expected one "
                f"of {', '.join(TRUNCATIONS)}, and of {', '.join(WINDOW_POOLINGS)}"
            )
        if truncation != "head" and self.kind not in TEXT_KINDS:
            raise ConfigError(
                f"truncation is {truncation!r}, but this is a model for {self.kind}; expected "
                "'head': only for classification and regression is there a choice"
            )
        if window_pooling is not None and truncation != "windows":
            raise ConfigError(
                f"window_pooling is {window_pooling!r}, which goes with truncation 'windows', not "
                f"{truncation!r}"
            )

    def __call__(
        self, inputs: Sequence[Input], on_progress: Callable[[int], object] | None = None
    ) -> list[dict[str, Any]]:
        """One prediction for each input, as JSON values.

        {"label", "probabilities": {label: p}}, {"value"}, {"tags", "entities": [{"type", "start",
        "end", "text"}]}, {"answer", "start", "end", "score", "probability", "no_answer_score"} or
        {"choice", "probabilities": [p, ...]}, beside the texts or the id of the input. Answers, and
        entities of texts that are not given as words, start and end at characters, end excluded;
        entities of words at words. An answer that is not there is "", from -1 to -1.

        Args:
          inputs: see `bert_jax.predict.inputs.Input`.
          advance: called with how many more inputs are done, batch after batch.

        Raises:
          UserError: an input is empty, or is not what the model reads.
        """
        examples = tuple(
            to_example(model_input, index, self.kind) for index, model_input in enumerate(inputs)
        )
        if not examples:
            return []
        task = Task(
            name=self._model_path,
            kind=self.kind,
            labels=getattr(self._head, "labels", ()),
            metrics=(),
            splits={_SPLIT: examples},
        )
        features = self._make_features(task, examples)
        self.num_truncated += features.num_truncated
        outputs: Any = self._run_model(features, on_progress)
        if self.kind in TEXT_KINDS:
            outputs = pool_windows(outputs, features.example_index, self._window_pooling)
        predictions = decode_predictions.decode(
            task, examples, features, outputs, allow_no_answer=self._allow_no_answer
        )
        records = decode_predictions.predictions_to_json(task, examples, predictions)
        return [
            format_prediction(model_input, self.kind, record)
            for model_input, record in zip(inputs, records, strict=True)
        ]

    def _make_features(self, task: Task, examples: Sequence[Example]) -> Features:
        if self._truncation == "head":
            return make_features(
                task, _SPLIT, self._tokenizer, self.max_length, self._window_overlap
            )
        texts: Any = examples
        return text_features(
            texts, self._tokenizer, self.max_length, self._truncation, self._window_overlap
        )

    def _run_model(
        self, features: Features, on_progress: Callable[[int], object] | None
    ) -> dict[str, list[np.ndarray]]:
        """What the head says of each row."""
        is_last_sequence = np.diff(features.example_index, append=-1) != 0

        def batch_outputs():
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

        return decode_predictions.gather_outputs(batch_outputs(), len(features))
