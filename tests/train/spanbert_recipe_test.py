"""Covers configs/pretrain/spanbert.py."""

from pathlib import Path

import pytest

from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.config.data import DocSentences, PretrainingData, SpanMasking
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import AdamW, HeldOutEval, WarmupLinear
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.objectives.make import make_objective
from bert_jax.train.workloads.pretraining import check_held_out_fields

RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/spanbert.py")


def test_recipe_has_the_published_hyperparameters() -> None:
    experiment, _ = planned_experiment(RECIPE, ["heldout=data/heldout"], [], 28996)
    train, data, objective = experiment.train, experiment.data, experiment.objective
    assert train.optimizer == AdamW(b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.01)
    assert train.max_grad_norm == 1.0
    assert isinstance(train.schedule, WarmupLinear)
    assert (train.schedule.peak_learning_rate, train.schedule.warmup_steps) == (1e-4, 10_000)
    (phase,) = train.phases
    assert (phase.steps, phase.batch_size, phase.seq_length) == (2_400_000, 256, 512)
    assert phase.max_predictions_per_seq == 77  # 15 % of 510, rounded up
    assert isinstance(data, PretrainingData)
    assert data.input_format == DocSentences()
    assert data.masking == SpanMasking(mlm_probability=0.15, max_span_length=10, geometric_p=0.2)
    assert isinstance(train.evaluation, HeldOutEval) and train.evaluation.masking == data.masking
    assert isinstance(objective, Pretraining)
    assert objective.loss_weights == {
        "mlm": 1.0,
        "diffusion": 0.0,
        "nsp": 0.0,
        "sop": 0.0,
        "sbo": 1.0,
    }
    assert objective.model == BertConfig.from_size("large", vocab_size=28996)


def test_batches_have_the_fields_of_the_objective() -> None:
    experiment, _ = planned_experiment(RECIPE, ["steps=240", "seq_length=128"], [], 28996)
    (inputs,) = make_inputs(experiment)
    assert set(inputs.fields) == set(make_objective(experiment.objective).batch_fields())
    assert inputs.batch_spec()["span_target_weights"] == ((256, 19), "float32")
    assert isinstance(experiment.train.schedule, WarmupLinear)
    assert experiment.train.schedule.warmup_steps == 1


def test_held_out_masking_without_a_field_of_the_objective_is_refused() -> None:
    data, evaluation = PretrainingData(corpus="a", masking=SpanMasking()), HeldOutEval(corpus="b")
    message = "masking is Masking, which .* 'span_left_positions' .*; expected SpanMasking"
    with pytest.raises(ConfigError, match=message):
        check_held_out_fields(evaluation, data, ("input_ids", "span_left_positions"))
    check_held_out_fields(evaluation, data, ("input_ids", "masked_lm_ids"))
