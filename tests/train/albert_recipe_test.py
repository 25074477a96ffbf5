"""Covers configs/pretrain/albert.py."""

from pathlib import Path

import pytest

from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.config.data import NGramMasking, PretrainingData, SentenceOrderPairs
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import Lamb, WarmupLinear
from bert_jax.models.albert.config import AlbertConfig, AlbertSize, AlbertVersion

RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/albert.py")


@pytest.mark.parametrize(
    ("size", "version", "dropout"), [("base", "v2", 0.0), ("xlarge", "v1", 0.1)]
)
def test_recipe_has_the_published_hyperparameters(
    size: AlbertSize, version: AlbertVersion, dropout: float
) -> None:
    experiment, _ = planned_experiment(RECIPE, [f"size={size}", f"version={version}"], [], 30000)
    train, data, objective = experiment.train, experiment.data, experiment.objective
    assert train.optimizer == Lamb(b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01)
    assert train.max_grad_norm == 1.0
    assert isinstance(train.schedule, WarmupLinear)
    assert (train.schedule.peak_learning_rate, train.schedule.warmup_steps) == (1.76e-3, 3125)
    (phase,) = train.phases
    assert (phase.steps, phase.batch_size, phase.seq_length) == (125_000, 4096, 512)
    assert phase.max_predictions_per_seq == 20
    assert isinstance(data, PretrainingData)
    assert data.input_format == SentenceOrderPairs(swap_prob=0.5, short_seq_prob=0.1)
    assert data.masking == NGramMasking(mlm_probability=0.15, max_ngram=3)
    assert isinstance(objective, Pretraining)
    assert objective.loss_weights == {
        "mlm": 1.0,
        "diffusion": 0.0,
        "nsp": 0.0,
        "sop": 1.0,
        "sbo": 0.0,
    }
    assert objective.model == AlbertConfig.from_size(size, version)
    assert objective.model.hidden_dropout_prob == dropout


def test_batches_have_sentence_order_labels() -> None:
    experiment, _ = planned_experiment(RECIPE, [], [], 30000)
    (inputs,) = make_inputs(experiment)
    assert inputs.batch_spec()["sentence_order_labels"] == ((4096,), "int32")
    assert "next_sentence_labels" not in inputs.fields
