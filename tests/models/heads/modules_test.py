"""Compares the hierarchical head with a slow reference that reads the windows one by one.

Covers bert_jax/models/heads/modules.py.
"""

import numpy as np
import pytest
from scipy.special import erf, softmax

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import RegressionHead, SequenceClassificationHead, WindowEncoder
from bert_jax.models.model import run_forward
from bert_jax.params import paths

MODEL = small_config(num_hidden_layers=1, initializer_range=0.3)
WINDOWS = WindowEncoder(num_windows=4, num_layers=2)
HEAD = SequenceClassificationHead(labels=("no", "perhaps", "yes"), window_encoder=WINDOWS)
PARAMS = random_parameters(MODEL, head=HEAD)


def make_batch() -> dict[str, np.ndarray]:
    batch = fine_tuning_batch(HEAD, batch_size=3, seq_length=12, vocab_size=18, seed=4)
    assert sorted(batch["window_mask"].sum(axis=1).tolist()) != [4, 4, 4]
    return batch


def logits(batch: dict[str, np.ndarray]) -> np.ndarray:
    return run_forward(paths.unflatten(PARAMS), MODEL, batch, HEAD)["task"]


def dense(x: np.ndarray, name: str) -> np.ndarray:
    return x @ PARAMS[f"{name}/kernel"] + PARAMS[f"{name}/bias"]


def norm(x: np.ndarray, name: str) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + MODEL.layer_norm_eps
    )
    return scaled * PARAMS[f"{name}/scale"] + PARAMS[f"{name}/bias"]


def slow_layer(x: np.ndarray, name: str) -> np.ndarray:
    """Applies a post-norm layer to the windows of one text, [windows, D]."""
    query, key, value = (dense(x, f"{name}/attention/{part}") for part in ("query", "key", "value"))
    width = MODEL.hidden_size // MODEL.num_attention_heads
    context = np.zeros_like(x)
    for start in range(0, MODEL.hidden_size, width):
        head = slice(start, start + width)
        weights = softmax(query[:, head] @ key[:, head].T / width**0.5, axis=-1)
        context[:, head] = weights @ value[:, head]
    x = norm(x + dense(context, f"{name}/attention/output"), f"{name}/attention_norm")
    hidden = dense(x, f"{name}/feed_forward/intermediate")
    hidden = hidden * (1 + erf(hidden / 2**0.5)) / 2
    return norm(x + dense(hidden, f"{name}/feed_forward/output"), f"{name}/feed_forward_norm")


def slow_logits(batch: dict[str, np.ndarray], text: int) -> np.ndarray:
    encoder = {path: leaf for path, leaf in PARAMS.items() if path.startswith("encoder/")}
    vectors = []
    for window in range(batch["window_mask"][text].sum()):
        length = batch["choice_attention_mask"][text, window].sum()
        alone = {
            name: batch[f"choice_{name}"][text, window, None, :length]
            for name in ("input_ids", "token_type_ids", "attention_mask")
        }
        outputs = run_forward(paths.unflatten(encoder), MODEL, alone)
        vectors.append(outputs["hidden_states"][-1][0, 0].astype(np.float64))
    positions = PARAMS["window_encoder/position_embeddings/embedding"][: len(vectors)]
    x = norm(np.stack(vectors) + positions, "window_encoder/norm")
    for layer in range(WINDOWS.num_layers):
        x = slow_layer(x, f"window_encoder/layers/{layer}")
    return dense(np.tanh(dense(x.mean(axis=0), "pooler/dense")), "classifier")


def test_logits_equal_a_reference_that_reads_windows_one_by_one():
    batch = make_batch()
    expected = np.stack([slow_logits(batch, text) for text in range(3)])
    assert np.ptp(expected, axis=0).min() > 1e-2
    np.testing.assert_allclose(logits(batch), expected, atol=1e-5)


def test_padded_windows_change_nothing():
    batch, rng = make_batch(), np.random.default_rng(0)
    expected = logits(batch)
    padded = batch["window_mask"] == 0
    assert padded.any()
    for name, high in (("input_ids", 18), ("token_type_ids", 2), ("attention_mask", 2)):
        field = batch[f"choice_{name}"]
        field[padded] = rng.integers(0, high, field[padded].shape)
    np.testing.assert_array_equal(logits(batch), expected)


def test_order_of_the_windows_matters():
    batch = make_batch()
    text = int(batch["window_mask"].sum(axis=1).argmax())
    swapped = {
        name: values[:, [1, 0, 2, 3]] if name.startswith("choice") else values
        for name, values in batch.items()
    }
    assert np.abs(logits(swapped)[text] - logits(batch)[text]).max() > 1e-3


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"num_windows": 1}, "num_windows is 1, "), ({"num_layers": 0}, "num_layers is 0, ")],
)
def test_invalid_sizes_are_rejected(fields, message):
    with pytest.raises(ConfigError, match=f"objective.head.window_encoder.{message}"):
        RegressionHead(window_encoder=WindowEncoder(**fields))
