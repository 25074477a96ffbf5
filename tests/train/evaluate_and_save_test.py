"""Covers bert_jax/train/evaluate_and_save.py: which states are saved, and names of metrics."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.train import CheckpointConfig, HeldOutEval, Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.runs.hooks import TrainingHalted
from bert_jax.train import loop
from bert_jax.train.evaluate_and_save import (
    BestEvaluation,
    Evaluate,
    EvaluationHistory,
    SaveCheckpoint,
    find_non_finite,
)
from bert_jax.train.loop import TrainingMeter, pause_seconds_left


@dataclasses.dataclass(frozen=True)
class Train:
    steps: int = 10
    checkpoints: CheckpointConfig = CheckpointConfig(save_every=1)
    tuning: TuningConfig = TuningConfig()


@dataclasses.dataclass(frozen=True)
class Config:
    """Stands for an experiment that saves every step."""

    train: Train = Train()


class Checkpoints:
    """Records the steps that are saved."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def save(self, step, state, info, metrics) -> None:
        assert info["step"] == step
        self.steps.append(step)

    def latest_valid_step(self) -> int | None:
        return max(self.steps, default=None)


def make_state(value: float) -> dict:
    moments = {"mu": jnp.array([0.0, value]), "count": jnp.int32(3)}
    return {"params": {"kernel": jnp.ones((2, 3))}, "opt_state": moments}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_state_that_is_not_finite_is_never_saved(value: float):
    checkpoints = Checkpoints()
    preemption = SimpleNamespace(should_stop=lambda: False)
    history = EvaluationHistory(best=BestEvaluation())
    save = SaveCheckpoint(
        cast(Any, Config()),
        cast(Any, checkpoints),
        cast(Any, preemption),
        history,
        TrainingMeter(),
    )
    with pytest.raises(TrainingHalted, match=r"after step 1 .* opt_state/mu .* no checkpoint was"):
        save(1, make_state(value), 0)
    save(2, make_state(1.0), 0)
    with pytest.raises(
        TrainingHalted, match=r"the last valid checkpoint is step 2: start a new run from it"
    ):
        save(3, make_state(value), 0)
    assert checkpoints.steps == [2]


def test_non_finite_values_are_found_in_sharded_arrays():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.NamedSharding(mesh, jax.P("data"))
    leaf = jax.device_put(np.arange(16.0), split)
    with jax.set_mesh(mesh):
        assert find_non_finite({"params": {"a": leaf}}) is None
        broken = jax.device_put(np.where(np.arange(16) == 13, np.nan, 1.0), split)
        assert find_non_finite({"params": {"a": leaf, "b": broken}}) == "params/b"


class Evaluator:
    """Counts evaluations."""

    known_metrics = ("accuracy",)
    count = 0

    def __call__(self, params) -> dict[str, float]:
        self.count += 1
        return {"accuracy": 0.5, "f1": 0.4}


def test_unknown_best_metric_is_found_before_training():
    evaluator = Evaluator()

    def check(name: str | None) -> None:
        mode = "max" if name else None
        train = Train(checkpoints=CheckpointConfig(best_metric=name, best_mode=mode))
        history = EvaluationHistory(best=BestEvaluation())
        Evaluate(evaluator, cast(Any, train), history, [], TrainingMeter()).check_best_metric({})

    check(None)
    check("accuracy")
    assert evaluator.count == 0
    check("f1")
    with pytest.raises(ConfigError, match=r"best_metric is 'acuracy'.*one of: accuracy, f1"):
        check("acuracy")


def test_the_first_pause_compiles_and_counts_only_while_it_is_alone(monkeypatch):
    # The meter reads the clock when it starts, twice before a pause, and once after it.
    times = iter([0.0, 1.0, 1.0, 11.0, 12.0, 12.0, 14.0, 15.0, 15.0, 18.0])
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(times)))
    meter, means = TrainingMeter(), []
    for _ in range(3):
        with meter.paused("evaluate"):
            pass
        means.append(meter.mean_pause("evaluate"))
    assert means == [10, 2, 2.5] and meter.mean_pause("save") == 0


@pytest.mark.parametrize(("save_every", "eval_every"), [(100, 100), (100, 60), (300, 50), (7, 5)])
def test_pauses_are_those_of_the_remaining_steps(save_every: int, eval_every: int):
    train = TrainConfig(
        phases=(Phase(steps=310, seq_length=8, batch_size=1),),
        schedule=WarmupLinear(warmup_steps=0),
        checkpoints=CheckpointConfig(
            save_every=save_every, best_metric="mlm_loss", best_mode="min"
        ),
        evaluation=HeldOutEval(corpus="none", eval_every=eval_every),
    )

    class Meter:
        def mean_pause(self, activity: str) -> float:
            return {"evaluate": 1000.0, "save": 1.0}[activity]

    for step in (0, 100, 299):
        left = range(step + 1, 311)
        evaluated = {s for s in left if s % eval_every == 0 or s == 310}
        saved = {s for s in left if s % save_every == 0 or s == 310} | evaluated
        expected = 1000.0 * len(evaluated) + len(saved)
        assert pause_seconds_left(train, cast(Any, Meter()), step) == expected
