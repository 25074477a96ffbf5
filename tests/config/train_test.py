"""Covers bert_jax/config/train.py, presets.py and the ranges of the other configs."""

import math

import pytest

from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.config.config_lib import override
from bert_jax.config.data import PretrainingData
from bert_jax.config.train import HeldOutEval, Phase
from bert_jax.errors import ConfigError
from bert_jax.train.presets import fine_tuning_experiment


@pytest.mark.parametrize("batch_size, nearest", [(10, "8 or 12"), (3, "4")])
def test_batch_size_that_does_not_divide_into_microbatches_is_refused(batch_size, nearest):
    with pytest.raises(ConfigError) as error:
        Phase(steps=5, seq_length=32, batch_size=batch_size, gradient_accumulation_steps=4)
    assert str(error.value) == (
        f"the phase of train.phases with 5 steps of sequence length 32 has batch_size {batch_size},"
        f" expected a multiple of its gradient_accumulation_steps 4; the nearest is {nearest}"
    )


@pytest.mark.parametrize(
    "assignment",
    [
        "train.logging.log_every=0",
        "train.checkpoints.save_every=0",
        "train.checkpoints.save_every=-1",
        "train.checkpoints.keep_last=0",
        "train.max_grad_norm=0",
        "train.max_grad_norm=-1",
        "train.optimizer.b1=2",
        "train.optimizer.b2=NaN",
        "train.optimizer.epsilon=-1",
        "train.schedule.peak_learning_rate=NaN",
        "train.schedule.peak_learning_rate=Infinity",
        "train.phases.0.batch_size=1000000",
        "train.phases.0.steps=3000000000",
        "train.phases.0.max_predictions_per_seq=-1",
        "data.num_workers=999",
        "seed=99999999999999999999999",
        "objective.model.hidden_size=1000000000",
        "objective.model.num_hidden_layers=0",
        "objective.model.num_hidden_layers=100000",
        "objective.model.vocab_size=1000000000000",
        "objective.model.hidden_dropout_prob=NaN",
    ],
)
def test_number_out_of_range_is_refused_before_any_work(assignment):
    experiment = tiny_experiment("test", "corpus", two_length_phases(12))
    with pytest.raises(ConfigError, match=assignment.partition("=")[0].rpartition(".")[2]):
        override(experiment, [assignment])


def test_more_predictions_than_tokens_are_refused():
    message = "max_predictions_per_seq is 17, but seq_length is 16"
    with pytest.raises(ConfigError, match=message):
        Phase(steps=1, seq_length=16, batch_size=1, max_predictions_per_seq=17)
    Phase(steps=1, seq_length=16, batch_size=1, max_predictions_per_seq=16)


def test_numbers_of_evaluation_and_epochs_are_checked():
    for field in ("eval_every", "num_examples", "batch_size"):
        with pytest.raises(ConfigError, match=f"train.evaluation.{field} is 0"):
            HeldOutEval(corpus="x", **{field: 0})  # pyright: ignore
    for epochs in (math.nan, math.inf, 0, -1):
        with pytest.raises(ConfigError, match=f"epochs is {epochs}"):
            fine_tuning_experiment(None, "model", epochs=epochs)  # pyright: ignore
    with pytest.raises(ConfigError, match=r"batch_size is 100000000, .* at most 524288"):
        fine_tuning_experiment(None, "model", batch_size=10**8)  # pyright: ignore
    assert PretrainingData(corpus="x", num_workers=256).num_workers == 256
