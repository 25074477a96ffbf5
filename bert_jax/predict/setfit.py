"""Classifies texts with the vectors of a sentence encoder and a logistic regression (SetFit)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from scipy.special import softmax

from bert_jax.atomic_io import atomic_write, write_json
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.sentence_embeddings.contrastive_pairs import joined_text
from bert_jax.errors import UserError
from bert_jax.json_io import read_json_object
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.load import load_model
from bert_jax.tasks import compute_metrics

HEAD_WEIGHTS, HEAD_CONFIG = "setfit_head.safetensors", "setfit_head.json"


@dataclass(frozen=True, kw_only=True)
class SetFitHead:
    """Holds a logistic regression over vectors of E components; never a pickle, which runs code.

    Attributes:
      labels: class names, in the order of the logits.
      weight: float32 [C, E].
      bias: float32 [C].
    """

    labels: tuple[str, ...]
    weight: np.ndarray
    bias: np.ndarray

    def logits(self, vectors: np.ndarray) -> np.ndarray:
        """Computes the logits of vectors [n, E], float32 [n, C]."""
        return vectors @ self.weight.T + self.bias

    def save(self, folder: Path) -> None:
        """Writes setfit_head.safetensors and setfit_head.json."""
        tensors = {"weight": self.weight, "bias": self.bias}
        atomic_write(folder / HEAD_WEIGHTS, save_tensors(tensors))
        write_json(folder / HEAD_CONFIG, {"labels": list(self.labels)})


def load_head(folder: Path) -> SetFitHead:
    """Reads the head that `SetFitHead.save` wrote.

    Raises:
      UserError: a file is missing or damaged, or both do not fit together.
    """
    labels = read_json_object(folder / HEAD_CONFIG).get("labels")
    try:
        tensors = load_tensors((folder / HEAD_WEIGHTS).read_bytes())
        weight, bias = tensors["weight"], tensors["bias"]
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(
            f"{folder / HEAD_WEIGHTS} cannot be read: {error}; train the model again"
        ) from None
    if not isinstance(labels, list) or (len(labels), weight.ndim) != (len(bias), 2):
        raise UserError(
            f"{folder}: {HEAD_CONFIG} has the labels {labels}, but {HEAD_WEIGHTS} has a weight of "
            f"shape {list(weight.shape)} and a bias of {list(bias.shape)}; copy both again"
        )
    return SetFitHead(labels=tuple(map(str, labels)), weight=weight, bias=bias)


class SetFitClassifier:
    """Classifies texts: `SetFitClassifier("runs/setfit")("A fine film.")["label"]`."""

    def __init__(self, folder: str | Path, head: SetFitHead | None = None):
        """Reads the sentence encoder of a run folder and its head.

        Raises:
          UserError: the folder is not that of a run of SetFit, or the head has another size.
        """
        self.head = load_head(Path(folder)) if head is None else head
        self._embedder = Embedder(load_model(folder))
        if self.head.weight.shape[1] != self._embedder.embedding_size:
            raise UserError(
                f"{folder}: the head reads vectors of {self.head.weight.shape[1]} components, but "
                f"those of the encoder have {self._embedder.embedding_size}; train it again"
            )

    @overload
    def __call__(self, inputs: str | TextExample) -> dict[str, Any]: ...

    @overload
    def __call__(self, inputs: Sequence[str] | Sequence[TextExample]) -> list[dict[str, Any]]: ...

    def __call__(self, inputs: Any) -> dict[str, Any] | list[dict[str, Any]]:
        """Returns {"text", "label", "probabilities"} of one text or example, or a list of them."""
        if isinstance(inputs, str | TextExample):
            return self._predict([inputs])[0]
        return self._predict(inputs)

    def _predict(self, inputs: Sequence[str | TextExample]) -> list[dict[str, Any]]:
        texts = [each if isinstance(each, str) else joined_text(each) for each in inputs]
        probabilities = softmax(self.logits(texts).astype(np.float64), axis=1)
        return [
            {
                "text": text,
                "label": self.head.labels[int(row.argmax())],
                "probabilities": dict(zip(self.head.labels, row.tolist(), strict=True)),
            }
            for text, row in zip(texts, probabilities, strict=True)
        ]

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """Computes the logits of texts, float32 [n, C]."""
        return self.head.logits(self._embedder.vectors(texts))

    def evaluate(self, task: Task, split: str) -> dict[str, float]:
        """Computes the metrics of a labeled split; the task has the labels of the head."""
        examples = [each for each in task.splits[split] if isinstance(each, TextExample)]
        return compute_metrics(task, examples, self.logits([joined_text(e) for e in examples]))
