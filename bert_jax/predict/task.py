"""What a fine-tuned model says: labels, values, entities, answers, choices.

from bert_jax.predict.task import Predictor
predict = Predictor(load_model("runs/reviews"))
predict(["A fine film.", "Two hours of my life."])
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.data.labelled.example import Example
from bert_jax.data.labelled.features import Features, make_features
from bert_jax.data.labelled.loader import evaluation_batches
from bert_jax.data.labelled.task import Kind, Task
from bert_jax.errors import ConfigError
from bert_jax.evals import verdicts
from bert_jax.models.config import head_part, reads_pooled
from bert_jax.predict.as_trained import as_trained, require_head
from bert_jax.predict.batching import round_up
from bert_jax.predict.inputs import TEXT_KINDS, Input, described, kind_of, to_example
from bert_jax.predict.long_texts import LONGS, POOLS, Long, Pool, pool_windows, text_rows
from bert_jax.predict.model import on_device, require_vocabulary
from bert_jax.programs.fine_tuning import FineTuningProgram
from bert_jax.train.pretrained import LoadedModel

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
        long: Long = "head",
        pool: Pool | None = None,
        max_length: int | None = None,
        stride: int | None = None,
        batch_size: int = 32,
        no_answer: bool | None = None,
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
        self._head, trained = require_head(model), as_trained(model)
        self._vocabulary = require_vocabulary(model)
        self.kind: Kind = kind_of(self._head)
        self.truncated = 0
        self.max_length = trained.length if max_length is None else max_length
        table = model.config.positions.max_length
        if not 4 <= self.max_length <= table:
            raise ConfigError(
                f"max_length is {self.max_length}; expected 4 to {table}, which the model can read"
            )
        self._stride = trained.stride if stride is None else stride
        if batch_size < 1 or self._stride < 0:
            raise ConfigError(
                f"batch_size is {batch_size} and stride {self._stride}; expected batch_size >= 1 "
                "and stride >= 0"
            )
        self._check_long(long, pool)
        self._long: Long = long
        self._pool: Pool = pool or "mean"
        shorter = [length for length in trained.buckets if length < self.max_length]
        self._lengths, self._batch_size = (*shorter, self.max_length), batch_size
        self._no_answer = trained.no_answer if no_answer is None else no_answer
        self._origin = model.origin
        parts = ["encoder", head_part(self._head), *(["pooler"] * reads_pooled(self._head))]
        self._params = {part: on_device(model, part) for part in parts}
        program = FineTuningProgram(trained.program)
        self._fields, self._run = program.input_fields(), jax.jit(program.predict)

    def _check_long(self, long: Long, pool: Pool | None) -> None:
        if long not in LONGS or (pool is not None and pool not in POOLS):
            raise ConfigError(
                f"long is {long!r} and pool {pool!r}; expected one of {', '.join(LONGS)}, and of "
                f"{', '.join(POOLS)}"
            )
        if long != "head" and self.kind not in TEXT_KINDS:
            raise ConfigError(
                f"long is {long!r}, but this is a model for {self.kind}; expected 'head': only for "
                "classification and regression is there a choice"
            )
        if pool is not None and long != "windows":
            raise ConfigError(f"pool is {pool!r}, which goes with long 'windows', not {long!r}")

    def __call__(
        self, inputs: Sequence[Input], advance: Callable[[int], object] | None = None
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
        examples = tuple(to_example(g, number, self.kind) for number, g in enumerate(inputs))
        if not examples:
            return []
        task = Task(
            name=self._origin,
            kind=self.kind,
            labels=getattr(self._head, "labels", ()),
            metrics=(),
            splits={_SPLIT: examples},
        )
        features = self._features(task, examples)
        self.truncated += features.truncated
        outputs: Any = self._outputs(features, advance)
        if self.kind in TEXT_KINDS:
            outputs = pool_windows(outputs, features.example, self._pool)
        decided = verdicts.decide(task, examples, features, outputs, no_answer=self._no_answer)
        rows = verdicts.predictions(task, examples, decided)
        return [described(g, self.kind, row) for g, row in zip(inputs, rows, strict=True)]

    def _features(self, task: Task, examples: Sequence[Example]) -> Features:
        if self._long == "head":
            return make_features(task, _SPLIT, self._vocabulary, self.max_length, self._stride)
        texts: Any = examples
        return text_rows(texts, self._vocabulary, self.max_length, self._long, self._stride)

    def _outputs(
        self, features: Features, advance: Callable[[int], object] | None
    ) -> dict[str, list[np.ndarray]]:
        """What the head says of each row."""
        last_rows = np.diff(features.example, append=-1) != 0

        def found():
            for numbers, batch in evaluation_batches(
                features,
                self._lengths,
                batch_size=min(self._batch_size, round_up(len(features))),
                pad_id=self._vocabulary.pad_id,
            ):
                fields = {name: batch[name] for name in self._fields}
                yield numbers, jax.device_get(self._run(self._params, fields))
                if advance is not None:
                    advance(int(last_rows[numbers].sum()))

        return verdicts.gather(found(), len(features))
