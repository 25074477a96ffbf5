"""Compares 20 steps of a reranker with the listwise losses of sentence-transformers."""

from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.config.objectives import LISTWISE_LOSSES, FineTuning
from bert_jax.config.train import AdamW
from bert_jax.export.export import export
from bert_jax.models.heads.config import RankingHead
from bert_jax.objectives.fine_tuning import FineTuningObjective
from tests.helpers.torch_training import STEPS, train_config, train_jax, train_torch

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
reference_losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")

COUNTS, SIZE, LENGTH = (4, 3, 2), 10, 10  # the last row is padding
TRAIN = train_config(
    2e-3, AdamW(epsilon=1e-8, weight_decay=0.01), seq_length=LENGTH, batch_size=SIZE
)
REFERENCES = {
    "listnet": reference_losses.ListNetLoss,
    "ranknet": reference_losses.RankNetLoss,
    "lambdaloss": reference_losses.LambdaLoss,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a cross-encoder without dropout, and the folder to which it is exported."""
    folder = tmp_path_factory.mktemp("cross-encoder")
    no_dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = small_model(folder / "words", head=RankingHead(), initializer_range=0.3, **no_dropout)
    export(model, folder / "model")
    return model, folder / "model"


def make_batches() -> list[dict[str, np.ndarray]]:
    """Returns batches of all steps; texts with more tokens 6 are more relevant."""
    rng, batches = np.random.default_rng(0), []
    for _ in range(STEPS):
        labels = rng.integers(0, 3, SIZE) / 2
        ids = rng.integers(7, 18, (SIZE, LENGTH))
        ids[:, 2:6] = np.where(np.arange(4) < 2 * labels[:, None], 6, ids[:, 2:6])
        mask = np.arange(LENGTH) < rng.integers(6, LENGTH + 1, (SIZE, 1))
        is_real = np.arange(SIZE) < sum(COUNTS)
        batches.append(
            {
                "input_ids": (ids * mask).astype(np.int32),
                "token_type_ids": np.zeros(ids.shape, np.int32),
                "attention_mask": mask.astype(np.int32),
                "label_values": (labels * is_real).astype(np.float32),
                "example_weights": is_real.astype(np.float32),
                "query_ids": np.repeat([7, 3, 5, 0], [*COUNTS, 1]).astype(np.int32),
            }
        )
    return batches


@pytest.mark.parametrize("name", LISTWISE_LOSSES)
def test_losses_equal_sentence_transformers(model, name):
    loaded, folder = model
    batches = make_batches()
    config = FineTuning(
        model=loaded.config, head=RankingHead(), classifier_dropout=0.0, listwise_loss=name
    )
    actual = train_jax(FineTuningObjective(config), loaded.params, batches, TRAIN, "loss")

    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    loss_module, ends = REFERENCES[name](reference), np.cumsum(COUNTS)

    def compute_losses(batch):
        # Numbers of rows in place of texts, which are tokens already.
        fields = ("input_ids", "token_type_ids", "attention_mask")
        tensors = {field: torch.from_numpy(batch[field]).long() for field in fields}
        reference.preprocess = lambda pairs, **_: {
            field: values[[row for _, row in pairs]] for field, values in tensors.items()
        }
        texts = [list(range(end - n, end)) for end, n in zip(ends, COUNTS, strict=True)]
        labels = [torch.from_numpy(batch["label_values"][rows]) for rows in texts]
        return (loss_module([list(range(len(COUNTS))), texts], labels),)

    expected, _ = train_torch(reference, batches, TRAIN, compute_losses)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
