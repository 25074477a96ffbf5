"""Covers configs/pretrain/roberta.py."""

from pathlib import Path

import pytest

from bert_jax.apps.plan.inputs import planned_experiment
from bert_jax.config.data import DynamicMasking, FullSentences, Masking, PretrainingData
from bert_jax.config.objectives import Pretraining
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.train import AdamW, WarmupLinear
from bert_jax.models.roberta.config import RobertaConfig, RobertaSize

RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/roberta.py")


@pytest.mark.parametrize(
    ("size", "peak", "warmup_steps"), [("base", 6e-4, 24_000), ("large", 4e-4, 30_000)]
)
def test_recipe_has_the_published_hyperparameters(
    size: RobertaSize, peak: float, warmup_steps: int
) -> None:
    experiment, _ = planned_experiment(RECIPE, [f"size={size}"], [], 50265)
    train, data = experiment.train, experiment.data
    assert train.optimizer == AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01)
    assert train.max_grad_norm is None
    assert isinstance(train.schedule, WarmupLinear)
    assert train.schedule.peak_learning_rate == peak
    assert train.schedule.warmup_steps == warmup_steps
    (phase,) = train.phases
    assert (phase.steps, phase.batch_size, phase.seq_length) == (500_000, 8192, 512)
    assert isinstance(data, PretrainingData)
    assert data.input_format == FullSentences() and data.masking_schedule == DynamicMasking()
    assert data.masking == Masking(mlm_probability=0.15)
    assert isinstance(experiment.objective, Pretraining)
    assert experiment.objective.model == RobertaConfig.from_size(size)
    assert experiment.objective.nsp_weight == 0.0


def test_recipe_takes_the_hyperparameters_of_fairseq() -> None:
    arguments = ["steps=125000", "batch_size=2048", "learning_rate=5e-4", "warmup_steps=10000"]
    experiment, missing = planned_experiment(RECIPE, arguments, [], 50265)
    assert missing == ("corpus",)
    assert isinstance(experiment.train.schedule, WarmupLinear)
    assert experiment.train.schedule.peak_learning_rate == 5e-4
    assert experiment.train.schedule.warmup_steps == 10_000


def test_recipe_needs_a_corpus() -> None:
    with pytest.raises(Exception, match="corpus"):
        call_recipe(load_recipe(RECIPE), [], RECIPE)
