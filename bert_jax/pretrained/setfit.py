"""Reads and writes the head of a SetFit run: a logistic regression on vectors of texts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write, write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.runs.run_folder import SETFIT_HEAD

HEAD_WEIGHTS, HEAD_CONFIG = "setfit_head.safetensors", SETFIT_HEAD


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
