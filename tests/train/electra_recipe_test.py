"""Covers configs/pretrain/electra.py and deberta.py: hyperparameters, runs with small networks."""

import dataclasses
import functools
import json
import logging
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.plan.inputs import planned_experiment
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.data import Masking, PretrainingData, SingleSegment
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import ReplacedTokens
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.train import AdamW, CheckpointConfig, LoggingConfig, WarmupLinear
from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.export.export import export
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.electra.config import ElectraConfig, ElectraSize, generator_config
from bert_jax.models.layers.config import LearnedPositions, NoPositions
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.pretrained.initial import load_generator
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from tests.helpers.one_device import one_device_mesh

DEBERTA_RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/deberta.py")
RECIPE = str(Path(__file__).parents[2] / "configs/pretrain/electra.py")
# Peak learning rate, batch size, updates, sequence length, predictions, generator's hidden size.
PUBLISHED = {
    "small": (5e-4, 128, 1_000_000, 128, 19, 256),
    "base": (2e-4, 256, 766_000, 512, 79, 256),
    "large": (2e-4, 2048, 400_000, 512, 130, 256),
}


@pytest.mark.parametrize("size", get_args(ElectraSize))
def test_recipe_has_the_published_hyperparameters(size: ElectraSize) -> None:
    experiment, _ = planned_experiment(RECIPE, [f"size={size}"], [], 30522)
    train, data, objective = experiment.train, experiment.data, experiment.objective
    peak, batch_size, steps, seq_length, predictions, generator_width = PUBLISHED[size]
    assert train.optimizer == AdamW(epsilon=1e-6, weight_decay=0.01, bias_correction=False)
    assert train.max_grad_norm == 1.0
    assert isinstance(train.schedule, WarmupLinear)
    assert (train.schedule.peak_learning_rate, train.schedule.warmup_steps) == (peak, 10_000)
    (phase,) = train.phases
    assert (phase.steps, phase.batch_size, phase.seq_length) == (steps, batch_size, seq_length)
    assert phase.max_predictions_per_seq == predictions
    assert isinstance(data, PretrainingData) and data.input_format == SingleSegment()
    assert data.masking == Masking(
        mlm_probability=0.25 if size == "large" else 0.15,
        mask_replace_prob=0.85,
        random_replace_prob=0.0,
    )
    assert isinstance(objective, ReplacedTokens)
    assert objective.model == ElectraConfig.from_size(size)
    assert objective.generator.hidden_size == generator_width
    assert (objective.mlm_weight, objective.rtd_weight) == (1.0, 50.0)


def small_run(corpus: Path, heldout: Path) -> Experiment:
    """Returns the recipe for 6 updates, with networks of width 16 and 8."""
    arguments = [f"corpus={corpus}", f"heldout={heldout}", "steps=6", "batch_size=8"]
    arguments += ["seq_length=32", "learning_rate=1e-3", "warmup_steps=2", "bfloat16=false"]
    experiment = call_recipe(load_recipe(RECIPE), arguments, RECIPE)
    objective, train = experiment.objective, experiment.train
    assert isinstance(objective, ReplacedTokens) and isinstance(objective.model, ElectraConfig)
    model = dataclasses.replace(
        objective.model, embedding_size=12, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32,
        positions=LearnedPositions(max_position_embeddings=32),
    )  # fmt: skip
    assert train.evaluation is not None
    return dataclasses.replace(
        experiment,
        objective=dataclasses.replace(
            objective, model=model, generator=generator_config(model, 0.5)
        ),
        train=dataclasses.replace(
            train,
            checkpoints=CheckpointConfig(save_every=3),
            evaluation=dataclasses.replace(
                train.evaluation, eval_every=6, num_examples=16, batch_size=8
            ),
            logging=LoggingConfig(log_every=1),
        ),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Experiment, Path, int]:
    """Returns a finished run, and how often its train step was compiled."""
    folder = tmp_path_factory.mktemp("electra")
    corpus = prepare_corpus(folder / "corpus")
    heldout = prepare_corpus(folder / "heldout", num_documents=12, seed=1)
    experiment = small_run(corpus, heldout)
    return experiment, folder / "run", run_and_count_compilations(experiment, folder / "run")


def run_and_count_compilations(experiment: Experiment, folder: Path) -> int:
    """Runs an experiment, and returns how often its train step was compiled."""
    compilations = []

    class Count(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "Finished XLA compilation of jit(train_step)" in record.getMessage():
                compilations.append(record)

    handler, logger = Count(level=logging.DEBUG), logging.getLogger("jax._src.dispatch")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with one_device_mesh():
            assert run(experiment, folder) == 0
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    return len(compilations)


def logged_rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of a run's log; each has the metrics of both networks."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = {"mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "sampled_accuracy"}
    assert rows and all(names <= row.keys() for row in rows)
    return rows


def test_run_is_compiled_once_and_logs_both_networks(finished):
    _, folder, compilations = finished
    assert compilations == 1
    rows = logged_rows(folder)
    assert [row["step"] for row in rows if row["split"] == "evaluation"] == [6]
    page = (folder / "report.html").read_text()
    assert "Precision and recall of replaced tokens" in page


def test_generator_of_a_run_is_exported_for_masked_lm(finished, tmp_path):
    experiment, folder, _ = finished
    output = tmp_path / "exported"
    assert main(["export", str(folder), "--generator", "--output", str(output)]) == 0
    exported = load_encoder(output)
    assert exported.config == experiment.objective.generator and exported.missing == ()
    params = restore_params(folder / "checkpoints", 6)[0]
    for path, expected in (
        ("masked_lm", params["generator"]["masked_lm"]),
        ("encoder/layers", params["generator"]["encoder"]["layers"]),
        ("encoder/embeddings", params["encoder"]["embeddings"]),  # shared
    ):
        found = functools.reduce(lambda tree, key: tree[key], path.split("/"), exported.params)
        assert paths.flatten(found).keys() == paths.flatten(expected).keys()
        for name, leaf in paths.flatten(expected).items():
            np.testing.assert_array_equal(paths.flatten(found)[name], leaf, err_msg=name)


def test_run_is_exported_as_its_discriminator(finished, tmp_path):
    experiment, folder, _ = finished
    model = load_encoder(folder)
    assert model.params.keys() == {"encoder", "replaced_token"}
    assert model.config == experiment.objective.model
    assert export(model, tmp_path / "exported") == 0.0
    config = json.loads((tmp_path / "exported/config.json").read_text())
    assert config["architectures"] == ["ElectraForPreTraining"]
    assert load_encoder(tmp_path / "exported").params.keys() == {"encoder", "replaced_token"}


def test_deberta_recipe_has_the_hyperparameters_of_the_original_code() -> None:
    experiment, _ = planned_experiment(DEBERTA_RECIPE, ["size=base"], [], 128_100)
    train, data, objective = experiment.train, experiment.data, experiment.objective
    assert isinstance(objective, ReplacedTokens) and isinstance(data, PretrainingData)
    assert objective.model == DebertaV2Config.from_size("base")
    assert objective.generator == dataclasses.replace(objective.model, num_hidden_layers=6)
    assert (objective.mlm_weight, objective.rtd_weight) == (1.0, 10.0)
    assert objective.embedding_sharing == "gradient_disentangled"
    assert data.masking == Masking(mask_replace_prob=1.0, random_replace_prob=0.0)
    (phase,) = train.phases
    assert (phase.steps, phase.batch_size, phase.seq_length) == (1_000_000, 256, 512)
    assert train.schedule == WarmupLinear(peak_learning_rate=1e-4, warmup_steps=10_000)


@pytest.mark.slow
def test_deberta_trains_on_real_text_and_exports_the_sum_of_its_embeddings(shared, tmp_path):
    vocabulary, text = shared / "vocab/bert-base-uncased", shared / "text/sample_text.txt"
    corpus = tmp_path / "corpus"
    prepare(
        PrepareConfig(source=TextFiles(str(text)), tokenizer=str(vocabulary), output=str(corpus)),
        num_workers=1,
    )
    arguments = [f"corpus={corpus}", "steps=8", "batch_size=4", "seq_length=32"]
    arguments += ["learning_rate=0.02", "warmup_steps=1", "bfloat16=false"]
    experiment = call_recipe(load_recipe(DEBERTA_RECIPE), arguments, DEBERTA_RECIPE)
    objective = experiment.objective
    assert isinstance(objective, ReplacedTokens) and isinstance(objective.model, DebertaV2Config)
    model = dataclasses.replace(
        objective.model, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, position_buckets=8, max_relative_positions=32,
        positions=NoPositions(max_position_embeddings=32),
    )  # fmt: skip
    experiment = dataclasses.replace(
        experiment,
        objective=dataclasses.replace(objective, model=model, generator=model),
        train=dataclasses.replace(
            experiment.train,
            checkpoints=CheckpointConfig(save_every=8),
            logging=LoggingConfig(log_every=1),
        ),
    )
    folder = tmp_path / "run"
    assert run_and_count_compilations(experiment, folder) == 1
    rows = logged_rows(folder)
    assert rows[-1]["mlm_loss"] < rows[0]["mlm_loss"]
    params = restore_params(folder / "checkpoints", 8)[0]
    tables = [p["encoder"]["embeddings"]["word_embeddings"] for p in (params, params["generator"])]
    assert np.abs(tables[0]["difference"]).max() > 1e-5
    discriminator, generator = load_encoder(folder), load_generator(folder)
    assert export(discriminator, tmp_path / "exported") == 0.0
    exported = load_encoder(tmp_path / "exported")
    assert exported.config == model and exported.params.keys() == {"encoder", "replaced_token"}
    table = exported.params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, tables[1]["embedding"] + tables[0]["difference"])
    assert generator.missing == ()
    # Pretraining continues from the export, with its embeddings as those of the generator.
    continued = dataclasses.replace(experiment, init_from=str(tmp_path / "exported"))
    with one_device_mesh():
        setup = TrainSetup.from_experiment(continued, sharding.make_mesh(continued.mesh))
        started = initialize_or_load(setup)["params"]
    assert not np.any(started["encoder"]["embeddings"]["word_embeddings"]["difference"])
    started_table = started["generator"]["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(started_table, table)
