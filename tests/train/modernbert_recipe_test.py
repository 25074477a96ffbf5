"""Covers configs/pretrain/modernbert.py: its hyperparameters, and a run with a small model."""

import dataclasses
from pathlib import Path

import pytest

from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.data import Masking, PackedSegments, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.train import CheckpointConfig, HeldOutEval, StableAdamW, WarmupStableDecay
from bert_jax.export.export import export
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.objectives.make import make_objective
from bert_jax.pretrained.load import load_encoder
from bert_jax.train.run import run
from tests.helpers.one_device import one_device_mesh

RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/modernbert.py")


def test_recipe_has_the_published_hyperparameters() -> None:
    experiment, _ = planned_experiment(RECIPE, ["heldout=data/heldout"], [], 50288)
    train, data, objective = experiment.train, experiment.data, experiment.objective
    assert train.optimizer == StableAdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.0125)
    assert train.max_grad_norm is None
    (phase,) = train.phases
    assert phase.steps * 4608 * 1024 == pytest.approx(1.719e12, rel=1e-5)
    assert train.schedule == WarmupStableDecay(
        peak_learning_rate=8e-4, warmup_steps=636, decay_steps=round(0.03 * phase.steps)
    )
    assert (phase.batch_size, phase.seq_length, phase.max_predictions_per_seq) == (4608, 1024, 307)
    assert isinstance(data, PretrainingData) and data.input_format == PackedSegments()
    assert data.masking == Masking(mlm_probability=0.3)
    assert isinstance(train.evaluation, HeldOutEval) and train.evaluation.masking == Masking()
    assert isinstance(objective, Pretraining)
    assert objective.loss_weights["mlm"] == 1.0 and objective.loss_weights["nsp"] == 0.0
    model = objective.model
    assert isinstance(model, ModernBertConfig)
    assert (model.vocab_size, model.num_hidden_layers) == (50304, 22)
    assert model.attention_output_dropout == 0.1 and model.attention_probs_dropout_prob == 0.0
    assert model.global_rope_theta == 10_000.0


def test_batches_are_packed_and_long_sequences_have_other_rotations() -> None:
    arguments = ["size=ettin-17m", "steps=240", "seq_length=8192", "batch_size=16"]
    experiment, _ = planned_experiment(RECIPE, arguments, [], 50288)
    (inputs,) = make_inputs(experiment)
    fields = make_objective(experiment.objective).batch_fields()
    assert set(inputs.fields) == {*fields, "packing_ids", "position_ids"}
    model = experiment.objective.model
    assert isinstance(model, ModernBertConfig)
    assert model.global_rope_theta == 160_000.0 and model.max_length == 8192
    assert isinstance(experiment.train.schedule, WarmupStableDecay)
    assert experiment.train.schedule.warmup_steps == 24


def small_run(corpus: Path) -> Experiment:
    """Returns the recipe for 6 updates, with a model of one global and two local layers."""
    arguments = [f"corpus={corpus}", "size=ettin-17m", "steps=6", "batch_size=8", "seq_length=32"]
    arguments += ["learning_rate=1e-3", "warmup_steps=2", "bfloat16=false"]
    experiment = call_recipe(load_recipe(RECIPE), arguments, RECIPE)
    objective, train = experiment.objective, experiment.train
    assert isinstance(objective, Pretraining) and isinstance(objective.model, ModernBertConfig)
    model = dataclasses.replace(
        objective.model, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=24, layer_types=(), local_attention=8,
    )  # fmt: skip
    assert isinstance(train.schedule, WarmupStableDecay)
    return dataclasses.replace(
        experiment,
        objective=dataclasses.replace(objective, model=model),
        train=dataclasses.replace(
            train,
            schedule=dataclasses.replace(train.schedule, decay_steps=3),
            checkpoints=CheckpointConfig(save_every=3),
        ),
    )


@pytest.mark.slow  # run_test.py runs packed rows, and tests/parity exports such models
def test_run_is_exported_with_its_prediction_head(tmp_path: Path) -> None:
    experiment = small_run(prepare_corpus(tmp_path / "corpus"))
    with one_device_mesh():
        assert run(experiment, tmp_path / "run") == 0
    model = load_encoder(tmp_path / "run")
    assert model.params.keys() == {"encoder", "prediction_head", "masked_lm"}
    assert export(model, tmp_path / "exported") <= 1e-5
