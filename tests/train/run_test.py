"""Tests complete runs in this process: outputs, errors, number of compilations."""

import dataclasses
import importlib.util
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.config_lib import override
from bert_jax.config.data import PackedSegments, PretrainingData, SingleSegment
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import CausalLM, Pretraining
from bert_jax.config.train import (
    CheckpointConfig,
    HeldOutEval,
    LoggingConfig,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.params import paths
from bert_jax.runs.attempt_log import read_attempts
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.runs.hooks import TrainingHalted
from bert_jax.runs.run_folder import replaced_failed_start, write_or_check_config
from bert_jax.train.initialize import check_existing_run
from bert_jax.train.run import run
from tests.helpers.event_files import read_scalars

MODEL = BertConfig(
    vocab_size=78,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    positions=LearnedPositions(max_position_embeddings=64),
)

HAS_TENSORBOARD = importlib.util.find_spec("tensorboardX") is not None


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("corpora")
    train = prepare_corpus(folder / "train")
    heldout = prepare_corpus(folder / "heldout", num_documents=12, seed=1)
    return str(train), str(heldout)


def experiment(corpora: tuple[str, str], **data) -> Experiment:
    train, heldout = corpora
    return Experiment(
        name="test",
        objective=Pretraining(model=MODEL, mask_token_id=4),
        data=PretrainingData(corpus=train, **data),
        train=TrainConfig(
            phases=(
                Phase(steps=8, seq_length=32, batch_size=16, max_predictions_per_seq=5),
                Phase(
                    steps=4,
                    seq_length=64,
                    batch_size=8,
                    max_predictions_per_seq=10,
                    gradient_accumulation_steps=2,
                ),
            ),
            schedule=WarmupLinear(peak_learning_rate=1e-2, warmup_steps=2),
            checkpoints=CheckpointConfig(save_every=5),
            evaluation=HeldOutEval(corpus=heldout, eval_every=6, num_examples=32, batch_size=16),
            logging=LoggingConfig(log_every=2),
        ),
        mesh=make_mesh_config("tp"),
    )


def short(config: Experiment) -> Experiment:
    """Returns the experiment without its second phase, on a mesh that fits one device."""
    train = dataclasses.replace(config.train, phases=config.train.phases[:1])
    return dataclasses.replace(config, train=train, mesh=make_mesh_config("dp"))


@pytest.fixture(scope="module")
def finished(corpora, tmp_path_factory) -> tuple[Path, int]:
    """Returns a finished run, and how often its train step was compiled."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    config = override(
        experiment(corpora),
        [
            "mesh.tensor=1",
            "train.phases.1.gradient_accumulation_steps=1",
            *(["train.logging.track=tensorboard"] if HAS_TENSORBOARD else []),
        ],
    )
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
        assert run(config, folder) == 0
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    return folder, len(compilations)


def test_each_phase_is_compiled_once(finished):
    assert finished[1] == 2


def test_finished_run_has_all_outputs(finished):
    folder, _ = finished
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if r["split"] == "train"] == [2, 4, 6, 8, 10, 12]
    assert [r["step"] for r in rows if r["split"] == "evaluation"] == [6, 12]
    assert {"loss", "grad_norm", "learning_rate", "padding_fraction", "nsp_accuracy"} <= set(
        rows[0]
    )
    assert {f"mlm_accuracy_{s}" for s in ("masked", "random", "kept")} <= set(rows[0])
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["mlm_loss"] == pytest.approx(rows[-1]["mlm_loss"])
    page = (folder / "report.html").read_text()
    assert "<svg" in page and "complete, 12 updates" in page
    attempt = read_attempts(folder)[0]
    assert (attempt.start_step, attempt.outcome) == (0, "complete")
    assert f"{attempt.num_parameters:,} parameters" in page
    assert re.search(r"Training corpus</dt><dd>.*: \d+ documents, [\d,]+ tokens", page)
    assert (folder / "vocabulary" / "vocab.txt").is_file()
    _, info, step = restore_params(folder / "checkpoints")
    assert (step, info["position"]) == (12, 32)
    assert info["config"]["name"] == "test" and "jax" in info["versions"]


@pytest.mark.skipif(not HAS_TENSORBOARD, reason="tensorboardX is not installed")
def test_tracker_gets_metrics_and_final_results(finished):
    folder, _ = finished
    scalars = read_scalars(folder / "tensorboard")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for split, metric in (("train", "loss"), ("evaluation", "mlm_loss")):
        expected = {row["step"]: row[metric] for row in rows if row["split"] == split}
        assert scalars[f"{split}/{metric}"] == pytest.approx(expected)
    final = json.loads((folder / "evaluation.json").read_text())
    assert scalars["final/mlm_loss"] == pytest.approx({12: final["mlm_loss"]})


def test_restarting_a_finished_run_changes_nothing(corpora, finished):
    folder, _ = finished
    before = (folder / "metrics.jsonl").read_text()
    config = override(
        experiment(corpora), ["mesh.tensor=1", "train.phases.1.gradient_accumulation_steps=1"]
    )
    assert run(config, folder) == 0
    assert (folder / "metrics.jsonl").read_text() == before


def test_different_config_in_the_same_folder_is_rejected(corpora, finished):
    changed = override(
        experiment(corpora), ["seed=3", "train.phases.1.gradient_accumulation_steps=1"]
    )
    with pytest.raises(UserError, match="seed: 0 there, 3 now"):
        run(changed, finished[0])


@pytest.mark.usefixtures("one_device")
def test_init_from_another_run_in_a_relative_folder(corpora, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = ["train.schedule.peak_learning_rate=1e-12", "train.evaluation=null"]
    config = dataclasses.replace(
        override(short(experiment(corpora)), changes), init_from=str(finished[0])
    )
    assert run(config, Path("run")) == 0
    expected, _, _ = restore_params(finished[0] / "checkpoints")
    found, _, step = restore_params("run/checkpoints")
    assert step == 8
    for path, leaf in paths.flatten(found).items():
        np.testing.assert_allclose(leaf, paths.flatten(expected)[path], atol=1e-8, err_msg=path)


def test_init_from_another_size_names_the_parameter(corpora, finished, tmp_path):
    config = override(experiment(corpora), ["objective.model.intermediate_size=64"])
    config = dataclasses.replace(config, init_from=str(finished[0]))
    with pytest.raises(ConfigError, match=r"feed_forward/intermediate/\w+ has shape"):
        run(config, tmp_path / "run")


@pytest.mark.usefixtures("one_device")
def test_non_finite_loss_names_examples_and_checkpoint(corpora, tmp_path):
    config = override(
        short(experiment(corpora)),
        ["train.schedule.peak_learning_rate=1e30", "train.logging.log_every=1"],
    )
    with pytest.raises(TrainingHalted, match=r"examples \d+ to \d+.*no checkpoint was saved"):
        run(config, tmp_path / "run")
    (attempt,) = read_attempts(tmp_path / "run")
    assert attempt.outcome == "failed" and "no checkpoint was saved" in attempt.message
    assert "stopped by an error" in (tmp_path / "run" / "report.html").read_text()


def test_failed_start_blocks_no_other_and_stays_if_that_fails(corpora, tmp_path):
    folder, config = tmp_path / "run", override(experiment(corpora), ["train.evaluation=null"])
    with pytest.raises(UserError, match="absent: no such folder"):
        run(dataclasses.replace(config, init_from=str(tmp_path / "absent")), folder)
    assert not (folder / "config.json").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: the folder has nothing"):
        run(dataclasses.replace(config, init_from=str(tmp_path / "empty")), folder)
    before = (folder / "config.json").read_text()
    export(small_model(tmp_path / "words"), tmp_path / "other")
    with pytest.raises(UserError, match="have different vocabularies"):
        run(dataclasses.replace(config, init_from=str(tmp_path / "other")), folder)
    assert (folder / "config.json").read_text() == before
    assert (folder / "vocabulary" / "vocab.txt").is_file()
    assert not check_existing_run(config, folder, None)
    with replaced_failed_start(folder, config, tokenizer_folder="vocabulary") as is_replaced:
        assert is_replaced
        write_or_check_config(folder, config)


def test_lost_config_is_compared_with_that_of_the_checkpoint(corpora, finished, tmp_path):
    folder, checkpoints = tmp_path / "run", finished[0] / "checkpoints"
    folder.mkdir()
    config = override(experiment(corpora), ["train.phases.1.gradient_accumulation_steps=1"])
    check_existing_run(config, folder, str(checkpoints))
    message = r"checkpoints/12 was saved by a run with another config:\n  seed: 0 there, 3 now"
    with pytest.raises(UserError, match=message):
        check_existing_run(override(config, ["seed=3"]), folder, str(checkpoints))


def test_data_without_a_required_field_is_rejected(corpora, tmp_path):
    config = experiment(corpora, input_format=SingleSegment())
    message = (
        r"'next_sentence_labels', but data\.input_format SingleSegment and data\.masking Masking "
        r"do not make it; expected data\.input_format SentencePairs"
    )
    with pytest.raises(ConfigError, match=message):
        run(config, tmp_path / "run")


def test_too_few_token_embeddings_are_rejected(corpora, tmp_path):
    config = override(experiment(corpora), ["objective.model.vocab_size=60"])
    with pytest.raises(
        UserError, match=r"78 tokens, but .* 60 rows; set objective\.model\.vocab_size to 78"
    ):
        run(config, tmp_path / "run")


def test_indivisible_batch_size_is_rejected(corpora, tmp_path):
    config = override(experiment(corpora), ["train.phases.0.batch_size=6"])
    with pytest.raises(ConfigError, match="batch_size 6 is not divisible"):
        run(config, tmp_path / "run")


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    "examples",
    [pytest.param(SingleSegment(), marks=pytest.mark.slow), PackedSegments()],
    ids=["single", "packed"],
)
def test_masked_lm_only_with_packing(corpora, tmp_path, examples):
    config = short(experiment(corpora, input_format=examples))
    config = override(config, ["objective.nsp_weight=0"])
    assert run(config, tmp_path / "run") == 0
    assert "nsp_loss" not in json.loads((tmp_path / "run" / "evaluation.json").read_text())


@pytest.mark.slow  # step_test.py trains a causal LM
@pytest.mark.usefixtures("one_device")
def test_causal_lm(corpora, tmp_path):
    config = dataclasses.replace(
        short(experiment(corpora, input_format=SingleSegment(), masking=None)),
        objective=CausalLM(model=MODEL),
    )
    assert run(config, tmp_path / "run") == 0
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert evaluation["lm_loss"] < np.log(78)
