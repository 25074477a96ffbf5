"""Covers configs/pretrain/distilbert.py: its hyperparameters, and a run on text."""

from pathlib import Path

import pytest

from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.config_lib import override
from bert_jax.config.distillation import (
    TEACHER_PARAMS,
    PretrainingDistillation,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.train import AdamW, WarmupLinear
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.pretrained.load import build_model, load_encoder
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.run import run
from tests.helpers.one_device import one_device_mesh

RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/distilbert.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a corpus, and with teachers of 4 and 12 layers that have its vocabulary."""
    folder = tmp_path_factory.mktemp("distilbert")
    tokenizer = PreparedCorpus(prepare_corpus(folder)).tokenizer()
    for num_layers in (4, 12):
        config = small_config(
            vocab_size=tokenizer.vocab_size,
            num_hidden_layers=num_layers,
            positions=LearnedPositions(max_position_embeddings=32),
        )
        imported = ImportedModel(random_parameters(config), config, tokenizer)
        export(build_model(imported, "teacher"), folder / f"teacher-{num_layers}")
    return folder


def recipe(folder: Path, num_layers: int = 4, *arguments: str) -> Experiment:
    given = [f"corpus={folder / 'prepared'}", f"teacher={folder / f'teacher-{num_layers}'}"]
    sizes = ["seq_length=32"]
    return call_recipe(load_recipe(RECIPE), [*given, *sizes, *arguments], RECIPE)


def distillation_of(experiment: Experiment) -> PretrainingDistillation:
    assert isinstance(experiment.objective, Pretraining)
    assert experiment.objective.distillation is not None
    return experiment.objective.distillation


def test_recipe_has_the_published_hyperparameters(folder):
    experiment = recipe(folder, 12)
    train, distillation = experiment.train, distillation_of(experiment)
    assert train.optimizer == AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.0)
    assert train.max_grad_norm == 5.0
    assert isinstance(train.schedule, WarmupLinear)
    assert (train.schedule.peak_learning_rate, train.schedule.warmup_steps) == (5e-4, 625)
    assert train.tuning.frozen == (TEACHER_PARAMS,)
    assert isinstance(experiment.objective, Pretraining)
    assert experiment.objective.loss_weights == {
        "mlm": 2.0,
        "diffusion": 0.0,
        "nsp": 0.0,
        "sop": 0.0,
        "sbo": 0.0,
    }
    assert (distillation.soft_weight, distillation.cosine_weight) == (5.0, 1.0)
    assert distillation.temperature == 2.0
    assert distillation.soft_targets == "all_tokens"
    assert distillation.teacher.layers == (0, 2, 4, 7, 9, 11)
    model = experiment.objective.model
    assert isinstance(model, DistilBertConfig) and model.num_hidden_layers == 6


def test_layers_and_soft_targets_are_arguments(folder):
    assert distillation_of(recipe(folder)).teacher.layers == (0, 2)
    chosen = recipe(folder, 4, "teacher_layers=[3]", "masked_tokens_only=true")
    assert distillation_of(chosen).teacher.layers == (3,)
    assert distillation_of(chosen).soft_targets == "masked_tokens"
    assert isinstance(chosen.objective, Pretraining)
    assert chosen.objective.model.num_hidden_layers == 1


@pytest.mark.slow  # tests/integration and teacher_test.py train with a teacher
def test_recipe_trains_a_distilbert(folder, tmp_path):
    sizes = ("steps=6", "batch_size=8", "learning_rate=1e-2", "bfloat16=false")
    changes = ["train.checkpoints.save_every=3", "train.logging.log_every=1"]
    config = override(recipe(folder, 4, *sizes), changes)
    with one_device_mesh():
        assert run(config, tmp_path / "run") == 0
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    for row in rows:
        total = 2 * row["mlm_loss"] + 5 * row["soft_loss"] + row["cosine_loss"]
        assert row["loss"] == pytest.approx(total, rel=1e-4)
    assert rows[-1]["loss"] < rows[0]["loss"]
    model = load_encoder(tmp_path / "run")
    assert isinstance(model.config, DistilBertConfig)
    assert set(model.params) == {"encoder", "masked_lm"}
    assert export(model, tmp_path / "exported") < 1e-5
