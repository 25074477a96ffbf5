"""Trains, saves and applies a quality classifier of documents.

Documents that look like positive examples (Wikipedia, books) get a score near 1, documents that
look like negative ones (raw web text) near 0. As in fastText, the features of a document are
averaged, so its length does not decide. Training is a fixed sequence of float64 operations: the
same files in the same order give the same model on the same kind of processor.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.apps.curate.corpus import hash_text
from bert_jax.apps.curate.signals import TextView
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.errors import UserError, check_range
from bert_jax.io.atomic_io import atomic_path


def save_arrays(
    path: Path, kind: str, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]
) -> None:
    """Writes arrays as one safetensors file, atomically.

    Args:
      kind: what the file is, such as "quality classifier".
      info: JSON values for the header.
    """
    from safetensors.numpy import save_file

    # One entry, because safetensors writes several in random order: the bytes would differ.
    metadata = {"bert_jax": json.dumps({"kind": kind, "info": info}, sort_keys=True)}
    with atomic_path(path) as tmp_path:
        # safetensors writes the memory of an array as it is, also of a strided view.
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(contiguous, tmp_path, metadata)


def load_arrays(
    path: str | Path, kind: str, command: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays and the info of a file.

    Args:
      kind: what the file must be.
      command: the verb that writes such files, for messages.

    Raises:
      UserError: there is no such file, or it is something else.
    """
    from safetensors import SafetensorError, safe_open

    advice = f"make one with `bert-jax {command}`"
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("bert_jax", "{}"))
            if header.get("kind") != kind:
                raise UserError(f"{path}: not a {kind}; {advice}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as a {kind} ({error}); {advice}") from None
    return arrays, header["info"]


MAX_TOKENS = 2000
"""The beginning of a document that is read, in tokens."""

KIND = "quality classifier"
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MAX_CACHED_TOKENS = 1 << 20
_NUM_BINS = 10
_ROUNDED_DIGITS = 6  # sums of floats differ in the last bits between processors


@dataclass(frozen=True, kw_only=True)
class ClassifierTraining:
    """Configures the training of a quality classifier."""

    num_features: int = 1 << 18  # words and bigrams are hashed to this many weights
    epochs: int = 5
    learning_rate: float = 20.0  # large, because a feature of a document is 1 / number of features
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("num_features", self.num_features, at_least=1 << 10, at_most=1 << 24)
        check_range("--epochs", self.epochs, at_least=1)
        check_range("learning_rate", self.learning_rate, above=0)


class Evaluation(NamedTuple):
    """Holds results on the half of the documents that was not trained on.

    `calibration` has (documents, mean score, fraction of positives) for tenths of the scores. Both
    classes have the same total weight in the means and fractions, as in training.
    """

    num_positives: int
    num_negatives: int
    auc: float
    calibration: list[tuple[int, float, float]]


class QualityClassifier:
    """Scores documents with the weights of hashed features, [F] float32, and a bias."""

    def __init__(self, weights: np.ndarray, bias: float, info: dict[str, Any]):
        self.weights, self.bias, self.info = weights, bias, info

    # Six digits, because sums of floats differ between processors.
    def score(self, tokens: Sequence[str]) -> float:
        """Returns the probability that a document is like the positive examples."""
        features = hash_features(tokens, len(self.weights))
        if not len(features):
            return 0.0
        total = float(np.sum(self.weights[features], dtype=np.float64)) / len(features) + self.bias
        return round(float(_sigmoid(total)), _ROUNDED_DIGITS)

    def save(self, path: Path) -> None:
        """Writes the model as one safetensors file, with its training data in the header."""
        arrays = {"weights": self.weights, "bias": np.array([self.bias], np.float64)}
        save_arrays(path, KIND, arrays, self.info)

    @classmethod
    def load(cls, path: str | Path) -> "QualityClassifier":
        """Reads a model.

        Raises:
          UserError: there is no such file, or it is no quality classifier.
        """
        arrays, info = load_arrays(path, KIND, "curate-classifier")
        return cls(arrays["weights"], float(arrays["bias"][0]), info)


@functools.lru_cache(maxsize=4)
def load_classifier(path: str) -> QualityClassifier:
    """Reads a model once for each process."""
    return QualityClassifier.load(path)


def hash_features(tokens: Sequence[str], num_features: int) -> np.ndarray:
    """Returns the indices, int64, of the words and bigrams of a document, in lower case."""
    tokens = tokens[:MAX_TOKENS]
    keys = np.fromiter(map(_token_keys.__getitem__, tokens), np.uint64, len(tokens))
    bigrams = keys[:-1] * _MULTIPLIER + keys[1:]
    # The high bits: the low bits of a product depend on the low bits of its factors only.
    hashes = (np.concatenate([keys, bigrams]) * _MULTIPLIER) >> np.uint64(32)
    return (hashes % np.uint64(num_features)).astype(np.int64)


class _TokenKeys(dict[str, int]):
    """Caches the 64-bit hash of each token, which depends on the token only."""

    def __missing__(self, token: str) -> int:
        if len(self) >= _MAX_CACHED_TOKENS:
            self.clear()
        self[token] = key = hash_text(token.lower())
        return key


_token_keys = _TokenKeys()


def train_classifier(
    positives: Iterable[str], negatives: Iterable[str], config: ClassifierTraining
) -> tuple[QualityClassifier, Evaluation]:
    """Trains on half of the documents, chosen by hash, and evaluates on the others.

    Both classes have the same weight, whatever their sizes.

    Raises:
      UserError: a half has no document of a class.
    """
    halves: dict[tuple[int, int], list[np.ndarray]] = {(h, c): [] for h in (0, 1) for c in (0, 1)}
    for label, texts in ((1, positives), (0, negatives)):
        for text in texts:
            features = hash_features(TextView(text).tokens, config.num_features)
            data = text.encode("utf-8", "surrogatepass")
            half = hashlib.blake2b(data, digest_size=1).digest()[0] % 2
            if len(features):
                halves[half, label].append(features)
    for (_, label), documents in halves.items():
        if not documents:
            raise UserError(
                f"--{'positive' if label else 'negative'}: too few documents; expected at least "
                "one in each half, and some hundreds for a useful classifier"
            )
    weights, bias = _train(halves[0, 1], halves[0, 0], config)
    info = {
        "training": asdict(config),
        "positives": len(halves[0, 1]),
        "negatives": len(halves[0, 0]),
    }
    model = QualityClassifier(weights.astype(np.float32), bias, info)
    evaluation = _evaluate(model, halves[1, 1], halves[1, 0])
    info["held_out"] = {"auc": evaluation.auc, "calibration": evaluation.calibration}
    return model, evaluation


# float64 in a fixed order: the threads of fastText make its models differ. Documents of the smaller
# class are repeated, because larger steps diverge when the classes have very different sizes.
def _train(
    positives: Sequence[np.ndarray], negatives: Sequence[np.ndarray], config: ClassifierTraining
) -> tuple[np.ndarray, float]:
    """Runs averaged SGD (Polyak and Juditsky 1992) on the logistic loss; returns weights, bias."""
    # Each epoch has the documents of the smaller class several times. Larger steps for them would
    # give the same loss, but with a few documents against many they would diverge.
    class_size = max(len(positives), len(negatives))
    total = 2 * class_size
    weights, late = np.zeros(config.num_features), np.zeros(config.num_features)
    bias = late_bias = 0.0
    num_steps = config.epochs * total
    order = [
        permute(np.arange(total), total, epoch_key(config.seed, epoch))
        for epoch in range(config.epochs)
    ]
    for step, index in enumerate(np.concatenate(order).tolist()):
        is_positive, group = index < class_size, positives if index < class_size else negatives
        features = group[index % class_size % len(group)]
        logit = float(weights[features].sum()) / len(features) + bias
        error = float(is_positive) - float(_sigmoid(logit))
        change = config.learning_rate * (1 - step / num_steps) * error
        # The mean of the weights after all steps is weights - late / steps: a change in step t is
        # missing in the t weights before it.
        np.add.at(weights, features, change / len(features))
        np.add.at(late, features, step * change / len(features))
        bias += change / _BIAS_SCALE
        late_bias += step * change / _BIAS_SCALE
    return weights - late / num_steps, bias - late_bias / num_steps


_BIAS_SCALE = 100.0
"""The bias is a feature of every document; without this, it would oscillate."""


def _sigmoid(logit: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(logit, -500, 500)))


def _evaluate(
    model: QualityClassifier, positives: Sequence[np.ndarray], negatives: Sequence[np.ndarray]
) -> Evaluation:
    scores = [
        np.array([_sigmoid(model.weights[f].mean(dtype=np.float64) + model.bias) for f in group])
        for group in (positives, negatives)
    ]
    joined, labels = np.concatenate(scores), np.repeat([1, 0], [len(scores[0]), len(scores[1])])
    # The probability that a positive document has a higher score; equal scores count one half.
    ordered = np.sort(scores[1])
    below = np.searchsorted(ordered, scores[0], "left") + np.searchsorted(
        ordered, scores[0], "right"
    )
    auc = float(below.mean() / 2 / len(ordered))
    bins = np.minimum((joined * _NUM_BINS).astype(int), _NUM_BINS - 1)
    # The scores assume equally frequent classes, whatever the sizes of the files.
    weights = 1 / np.where(labels == 1, len(positives), len(negatives))
    calibration = [
        (
            int(chosen.sum()),
            float(np.average(joined[chosen], weights=weights[chosen])),
            float(np.average(labels[chosen], weights=weights[chosen])),
        )
        for chosen in (bins == index for index in range(_NUM_BINS))
        if chosen.any()
    ]
    return Evaluation(len(positives), len(negatives), auc, calibration)
