"""Classifies texts by logistic regression on the frozen vectors of their words."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from bert_jax.apps.word_vectors.elmo_model import scalar_mix
from bert_jax.apps.word_vectors.word_encoder import WordEncoder
from bert_jax.data.finetuning.readers.columns import cell_text, require_columns
from bert_jax.data.finetuning.readers.tabular_files import read_table
from bert_jax.errors import UserError
from bert_jax.tasks.metrics.text_baselines import (
    logistic_regression,
    most_common_label,
    tfidf_predictions,
)

SCALAR_MIX = "scalar mix"
_TEXTS_AT_ONCE = 256


class LabeledTexts(NamedTuple):
    """Holds texts and the label of each."""

    texts: list[str]
    labels: list[str]


def read_labeled_texts(path: str, text: str, label: str) -> LabeledTexts:
    """Reads two columns of a table (CSV, TSV, JSON lines, Parquet).

    Raises:
      UserError: the table is damaged, has no such column (named), or a cell is empty.
    """
    table = read_table(path)
    require_columns(table, path, (text, label))
    rows = [(cell_text(r, text, "text"), cell_text(r, label, "label")) for r in table.rows]
    if not rows:
        raise UserError(f"{path}: no rows; expected labeled texts")
    return LabeledTexts([row[0] for row in rows], [row[1] for row in rows])


def mean_features(encoder: WordEncoder, texts: Sequence[str]) -> np.ndarray:
    """Returns the means of the vectors of words, float32 [texts, N, D].

    Words without a vector are left out; a text without any has zeros.
    """
    means: list[np.ndarray] = []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        for vectors in encoder.embed(texts[start : start + _TEXTS_AT_ONCE]):
            known = vectors[vectors.any(axis=(1, 2))]
            means.append(known.sum(axis=0) / max(len(known), 1))
    return np.stack(means)


def classify_frozen(
    encoder: WordEncoder, train: LabeledTexts, dev: LabeledTexts
) -> dict[str, list[bool]]:
    """Classifies dev by logistic regression on each layer, and on their mix.

    Returns:
      Layer -> whether each text of dev gets its label; for several layers also with the scalar mix
      of ELMo, under "scalar mix".

    Raises:
      UserError: the training examples have one label only.
    """
    _check_labels(train)
    fitted, held_out = mean_features(encoder, train.texts), mean_features(encoder, dev.texts)
    predictions = {
        name: logistic_regression(fitted[:, layer], train.labels, held_out[:, layer])
        for layer, name in enumerate(encoder.layer_names)
    }
    if len(encoder.layer_names) > 1:
        predictions[SCALAR_MIX] = mixed_logistic_regression(fitted, train.labels, held_out)[0]
    return {name: _correct(predicted, dev) for name, predicted in predictions.items()}


def classify_without_model(
    features: Literal["tf-idf", "majority"], train: LabeledTexts, dev: LabeledTexts
) -> dict[str, list[bool]]:
    """Classifies dev by logistic regression on TF-IDF features, or by the most frequent label.

    Returns:
      The name of the features -> whether each text of dev gets its label.

    Raises:
      UserError: the training examples have one label only.
    """
    _check_labels(train)
    if features == "majority":
        predicted = [most_common_label(train.labels)] * len(dev.labels)
    else:
        predicted = tfidf_predictions((train.texts, train.labels), dev.texts)
    return {features: _correct(predicted, dev)}


def _check_labels(train: LabeledTexts) -> None:
    if len(set(train.labels)) < 2:
        raise UserError(
            f"all {len(train.labels)} training examples have the label {train.labels[0]!r}; "
            "expected at least two labels"
        )


def _correct(predicted: Sequence[str], dev: LabeledTexts) -> list[bool]:
    return [a == b for a, b in zip(predicted, dev.labels, strict=True)]


def mixed_logistic_regression(
    features: np.ndarray, labels: Sequence[str], held_out: np.ndarray
) -> tuple[list[str], np.ndarray]:
    """Fits logistic regression together with the weights and the gamma of a scalar mix.

    The objective is scikit-learn's with C = 1: half of the squares of the kernel and the sum of the
    losses; features are standardized by layer. L-BFGS minimizes it.

    Args:
      features, held_out: float32 [texts, N, D].

    Returns:
      The predicted labels of `held_out`, and the weights of the layers, which add up to 1.
    """
    names = sorted(set(labels))
    ids = jnp.asarray([names.index(label) for label in labels], jnp.int32)
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation = np.where(deviation == 0, 1, deviation)
    layers, size = features.shape[1:]
    shapes = {"kernel": (size, len(names)), "bias": (len(names),), "mix": (layers,), "gamma": (1,)}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])

    def unpack(flat: Any) -> dict[str, Any]:
        parts = jnp.split(flat, ends[:-1])
        return {k: p.reshape(s) for (k, s), p in zip(shapes.items(), parts, strict=True)}

    def logits(p: dict[str, Any], inputs: jax.Array) -> jax.Array:
        return scalar_mix(inputs, p["mix"], p["gamma"][0]) @ p["kernel"] + p["bias"]

    @jax.jit
    @jax.value_and_grad
    def objective(flat: jax.Array, inputs: jax.Array) -> jax.Array:
        p = unpack(flat)
        log_probabilities = jax.nn.log_softmax(logits(p, inputs))
        likelihood = jnp.take_along_axis(log_probabilities, ids[:, None], axis=1).sum()
        return 0.5 * jnp.square(p["kernel"]).sum() - likelihood

    inputs = jnp.asarray((features - mean) / deviation)
    start = np.zeros(int(ends[-1]))
    start[-1] = 1.0  # gamma

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(jnp.asarray(flat, jnp.float32), inputs)
        return float(value), np.asarray(gradient, np.float64)

    found = minimize(evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    p = unpack(jnp.asarray(found.x, jnp.float32))
    best = np.asarray(logits(p, jnp.asarray((held_out - mean) / deviation))).argmax(axis=1)
    return [names[index] for index in best], np.asarray(jax.nn.softmax(p["mix"]))
