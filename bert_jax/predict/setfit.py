"""Classifies texts with the vectors of a sentence encoder and a logistic regression (SetFit)."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.sentence_embeddings.loader import joined_text
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write, write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.predict.checks import (
    check_fits_model,
    check_pairs,
    is_one_input,
    nonempty_examples,
)
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.load import load_model
from bert_jax.runs.run_folder import SETFIT_HEAD
from bert_jax.tasks.base import ModelInput
from bert_jax.tasks.features import text_examples
from bert_jax.tasks.registry import compute_metrics, kind_named

HEAD_WEIGHTS, HEAD_CONFIG = "setfit_head.safetensors", SETFIT_HEAD
_GROUP_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class SetFitHead:
    """Holds a logistic regression over embeddings of size E.

    It is saved as safetensors and JSON, because loading a pickle can run code.

    Attributes:
      labels: class names, in the order of the logits.
      weight: float32 [C, E].
      bias: float32 [C].
      reads_pairs: whether it was fitted to pairs of texts; None if that is unknown.
    """

    labels: tuple[str, ...]
    weight: np.ndarray
    bias: np.ndarray
    reads_pairs: bool | None = None

    def logits(self, vectors: np.ndarray) -> np.ndarray:
        """Computes the logits of embeddings [n, E], float32 [n, C]."""
        return vectors @ self.weight.T + self.bias

    def save(self, folder: Path) -> None:
        """Writes setfit_head.safetensors and setfit_head.json."""
        tensors = {"weight": self.weight, "bias": self.bias}
        atomic_write(folder / HEAD_WEIGHTS, save_tensors(tensors))
        config = {"labels": list(self.labels), "reads_pairs": self.reads_pairs}
        write_json(folder / HEAD_CONFIG, config)


def is_setfit_folder(folder: Path) -> bool:
    """Returns whether a folder has the head of a run of SetFit."""
    return (folder / HEAD_CONFIG).is_file()


def load_head(folder: Path) -> SetFitHead:
    """Reads the head that `SetFitHead.save` wrote.

    Raises:
      UserError: a file is missing or damaged, or both do not fit together.
    """
    if not is_setfit_folder(folder):
        raise UserError(
            f"{folder} has no {HEAD_CONFIG}; expected the folder of a completed run of `bert-jax "
            "setfit`: if the run was stopped, run its command again; for other fine-tuned models "
            "use bert_jax.Predictor"
        )
    config = read_json_object(folder / HEAD_CONFIG)
    labels, reads_pairs = config.get("labels"), config.get("reads_pairs")
    advice = "copy the whole folder again, or train the model again"
    try:
        tensors = load_tensors((folder / HEAD_WEIGHTS).read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder / HEAD_WEIGHTS} cannot be read: {error}; {advice}") from None
    if missing := sorted({"weight", "bias"} - tensors.keys()):
        raise UserError(
            f"{folder / HEAD_WEIGHTS} has no tensor {missing[0]!r}; expected 'weight' and 'bias'; "
            f"{advice}"
        )
    weight, bias = tensors["weight"], tensors["bias"]
    if (
        not isinstance(labels, list)
        or weight.ndim != 2
        or not ((len(labels),) == bias.shape == weight.shape[:1])
    ):
        raise UserError(
            f"{folder}: {HEAD_CONFIG} has the labels {labels}, but {HEAD_WEIGHTS} has a weight of "
            f"shape {list(weight.shape)} and a bias of shape {list(bias.shape)}; expected one row "
            f"and one bias for each label; {advice}"
        )
    if not np.isfinite(weight).all() or not np.isfinite(bias).all():
        raise UserError(f"{folder / HEAD_WEIGHTS} has values that are not finite; {advice}")
    if not isinstance(reads_pairs, bool | None):
        raise UserError(
            f"{folder / HEAD_CONFIG}: reads_pairs is {reads_pairs!r}; expected true, false or "
            f"null; {advice}"
        )
    labels = tuple(map(str, labels))
    return SetFitHead(labels=labels, weight=weight, bias=bias, reads_pairs=reads_pairs)


class SetFitClassifier:
    """Classifies texts: `SetFitClassifier("runs/setfit")("A fine film.")["label"]`.

    Attributes:
      head: the logistic regression.
      kind: the task kind, which is classification.
      max_length: maximum number of tokens in a text.
      num_truncated: number of texts so far that were truncated to `max_length`.
    """

    def __init__(self, folder: str | Path, head: SetFitHead | None = None):
        """Reads the sentence encoder of a run folder and its head.

        Raises:
          UserError: the folder is not a SetFit run, or its head does not fit its encoder.
        """
        folder = resolve_model_folder(folder)
        self.head = load_head(folder) if head is None else head
        self._path, self._embedder = str(folder), Embedder(load_model(folder))
        self.kind, self.max_length = kind_named("classification"), self._embedder.max_length
        self.num_truncated = 0
        if self.head.weight.shape[1] != self._embedder.embedding_size:
            raise UserError(
                f"{folder}: the head expects embeddings of size {self.head.weight.shape[1]}, but "
                f"those of the encoder have size {self._embedder.embedding_size}; copy the whole "
                "folder again, or train the model again"
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
