"""Covers configs/pretrain/t5.py, configs/pretrain/bart.py and the config checks of `Seq2Seq`."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.plan.inputs import planned_experiment
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.data import (
    BartDenoising,
    ConcatenatedDocuments,
    PretrainingData,
    SingleSegment,
    SpanCorruption,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Seq2Seq
from bert_jax.config.train import (
    Adafactor,
    AdamW,
    HeldOutEval,
    InverseSquareRoot,
    Phase,
    WarmupLinear,
)
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.models.t5.config import T5Config
from bert_jax.objectives.seq2seq import Seq2SeqObjective, shift_right
from bert_jax.train.flops import step_flops
from bert_jax.train.optimizer import learning_rate_schedule
from bert_jax.train.workloads.pretraining import check_held_out_fields
from tests.helpers.quick_init import quick_init

RECIPES = Path(__file__).parents[2] / "configs/pretrain"
SMALL = T5Config(
    vocab_size=50,
    hidden_size=16,
    d_kv=4,
    num_attention_heads=2,
    intermediate_size=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout_rate=0.0,
)


def _t5(*arguments: str) -> Experiment:
    return planned_experiment(str(RECIPES / "t5.py"), list(arguments), [], 32100)[0]


def test_t5_recipe_has_the_published_hyperparameters() -> None:
    experiment = _t5("size=base")
    train, data, objective = experiment.train, experiment.data, experiment.objective
    assert train.optimizer == Adafactor() and train.max_grad_norm is None
    assert train.schedule == InverseSquareRoot(scale=1.0, warmup_steps=10_000)
    (phase,) = train.phases
    assert (phase.steps, phase.batch_size, phase.seq_length) == (524_288, 128, 512)
    assert phase.target_length == 128 and phase.sizes["T"] == 128
    assert isinstance(data, PretrainingData) and isinstance(objective, Seq2Seq)
    assert data.input_format == ConcatenatedDocuments() and data.masking == SpanCorruption()
    assert objective.z_loss == 1e-4
    expected = T5Config.v1_1("base", vocab_size=32128, dropout_rate=0.0)
    tokens = dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    assert dataclasses.replace(objective.model, **tokens) == dataclasses.replace(expected, **tokens)
    assert from_json(Experiment, to_json(experiment), "config") == experiment


def test_bart_recipe_has_the_published_hyperparameters() -> None:
    experiment, missing = planned_experiment(str(RECIPES / "bart.py"), ["size=large"], [], 50265)
    train, data = experiment.train, experiment.data
    assert missing == ("corpus",)
    assert train.optimizer == AdamW(b2=0.98) and train.max_grad_norm == 0.1
    assert train.schedule == WarmupLinear(peak_learning_rate=4e-4, warmup_steps=10_000)
    (phase,) = train.phases
    assert (phase.steps, phase.seq_length, phase.target_length) == (500_000, 512, 512)
    assert isinstance(data, PretrainingData)
    assert data.input_format == SingleSegment() and data.masking == BartDenoising()


def test_inverse_square_root_schedule() -> None:
    schedule = learning_rate_schedule(InverseSquareRoot(scale=2.0, warmup_steps=100), 5)
    rates = [np.asarray(schedule(step)) for step in (0, 99, 100, 400, 10_000)]
    np.testing.assert_allclose(rates, [0.2, 0.2, 0.2, 0.1, 0.02], rtol=1e-6)


def test_each_packed_target_begins_with_the_start_token() -> None:
    targets, packing_ids = jnp.array([[7, 8, 1, 9, 1, 0]]), jnp.array([[1, 1, 1, 2, 2, 0]])
    assert shift_right(targets, 3).tolist() == [[3, 7, 8, 1, 9, 1]]
    assert shift_right(targets, 3, packing_ids).tolist() == [[3, 7, 8, 3, 9, 3]]


def test_loss_with_label_smoothing_and_z_loss() -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(2, 50, (2, 5)).astype(np.int32)
    batch = {
        "input_ids": jnp.asarray(rng.integers(2, 50, (2, 7)), jnp.int32),
        "attention_mask": jnp.ones((2, 7), jnp.int32),
        "decoder_target_ids": jnp.asarray(targets),
        "decoder_target_weights": jnp.asarray([[1.0] * 5, [1.0] * 3 + [0.0] * 2]),
    }
    objective = Seq2SeqObjective(Seq2Seq(model=SMALL, label_smoothing=0.1, z_loss=1e-2))
    params = quick_init(objective.abstract())

    def outputs(params, batch):
        decoder_input_ids = shift_right(batch["decoder_target_ids"], 0)
        model = objective.network.merge(params)
        hidden = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids)
        loss = objective.compute_loss(params, batch, objective.loss_denominators(batch), None)
        return model.logits(hidden.last_hidden_state), loss

    logits, loss = jax.jit(outputs)(params, batch)
    log_z = np.asarray(jax.nn.logsumexp(logits, axis=-1))
    log_probs = np.asarray(logits) - log_z[..., None]
    nll = -np.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
    terms = 0.9 * nll - 0.1 * log_probs.mean(axis=-1) + 1e-2 * log_z**2
    is_target = np.asarray(batch["decoder_target_weights"]) > 0
    assert float(loss.loss) == pytest.approx(terms[is_target].mean(), abs=1e-5)
    mean = loss.metrics["seq2seq_loss"]
    assert float(mean.total / mean.weight) == pytest.approx(nll[is_target].mean(), abs=1e-5)


def test_flops_are_those_of_both_stacks() -> None:
    phase = Phase(steps=1, seq_length=8, target_length=4, batch_size=3)
    objective = Seq2Seq(model=SMALL)
    assert step_flops(objective, phase) == 9 * SMALL.forward_flops(8, 4)


def test_configs_that_do_not_fit_an_encoder_decoder_raise() -> None:
    experiment = _t5("size=small")
    (phase,) = experiment.train.phases
    no_targets = dataclasses.replace(phase, target_length=0)
    train = dataclasses.replace(experiment.train, phases=(no_targets,))
    with pytest.raises(ConfigError, match="target_length 0, expected 1 to"):
        dataclasses.replace(experiment, train=train)
    tuning = TuningConfig(layerwise_lr_decay=0.9)
    with pytest.raises(ConfigError, match="settings for encoders, but objective is Seq2Seq"):
        dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, tuning=tuning))
    data = experiment.data
    assert isinstance(data, PretrainingData)
    with pytest.raises(ConfigError, match=r"train.evaluation.masking is Masking, but data.masking"):
        check_held_out_fields(HeldOutEval(corpus="b"), data, ())


def test_a_target_longer_than_the_decoder_raises() -> None:
    arguments = ["size=base", "seq_length=2048"]
    with pytest.raises(ConfigError, match="has seq_length 2048, expected 1 to 1024"):
        planned_experiment(str(RECIPES / "bart.py"), arguments, [], 50265)
