"""Compares the multi-task objective with the objectives of the single tasks."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax import batch as batch_lib
from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.objectives import (
    FineTuning,
    MultiTask,
    NamedHead,
    ObjectiveConfig,
    UncertaintyWeighting,
    UniformWeighting,
)
from bert_jax.config.train import make_mesh_config
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.objectives.make import make_objective
from bert_jax.objectives.multi_task import MultiTaskObjective, task_params
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.train.optimizer import decay_mask
from bert_jax.train.tuning.freezing import param_depth

MODEL = small_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
# Two tasks use the field `labels`; one has label ids that the other does not have.
HEADS = {
    "rte": SequenceClassificationHead(labels=("no", "yes")),
    "genre": SequenceClassificationHead(labels=tuple("abcdefgh")),
    "stsb": RegressionHead(),
    "conll": TokenClassificationHead(labels=("O", "B-PER", "I-PER")),
    "squad": QuestionAnsweringHead(),
}
ROWS = {"rte": 3, "genre": 2, "stsb": 4, "conll": 5, "squad": 2}
NAMED = tuple(NamedHead(name=name, head=head) for name, head in HEADS.items())


@functools.cache
def program(
    weighting: UniformWeighting | UncertaintyWeighting = UniformWeighting(),  # noqa: B008
) -> MultiTaskObjective:
    return MultiTaskObjective(
        MultiTask(model=MODEL, heads=NAMED, weighting=weighting, classifier_dropout=0.0)
    )


def parameters(**log_variances: float) -> Any:
    """Returns random parameters; the encoder is the same for all heads."""
    heads = {}
    for number, (name, head) in enumerate(HEADS.items()):
        tree = paths.unflatten(random_parameters(MODEL, head=head, seed=number))
        heads[name] = {part: leaves for part, leaves in tree.items() if part != "encoder"}
        if log_variances:
            heads[name]["log_variance"] = np.float32(log_variances.get(name, 0.0))
    encoder = paths.unflatten(random_parameters(MODEL))["encoder"]
    return {"encoder": encoder, "heads": heads}


@functools.cache
def rows_of(name: str) -> Any:
    """Returns a batch of one task."""
    return fine_tuning_batch(
        HEADS[name], batch_size=ROWS[name], seq_length=16, vocab_size=18, seed=len(name)
    )


def mixed(names=tuple(HEADS)) -> Any:
    """Returns shuffled examples of several tasks in one batch, padded to 18 examples."""
    size = sum(ROWS[name] for name in names)
    spec = batch_lib.batch_spec(program().batch_fields(), {"B": 18, "L": 16})
    batch = {field: np.zeros(shape, dtype) for field, (shape, dtype) in spec.items()}
    positions = iter(np.random.default_rng(0).permutation(size))
    for name in names:
        for row in range(ROWS[name]):
            place = next(positions)
            batch["task_ids"][place] = list(HEADS).index(name)
            for field, values in rows_of(name).items():
                batch[field][place] = values[row]
    batch["attention_mask"][size:, 0] = 1
    return batch


@functools.cache
def gradient_of(made: Any):
    """Returns a function from (params, batch, loss_denominators) to (gradient, losses)."""

    def loss(params, batch, loss_denominators):
        losses = made.compute_loss(params, batch, loss_denominators, None)
        return losses.loss, losses

    compiled = jax.jit(jax.grad(loss, has_aux=True))
    return lambda *arguments: jax.device_get(compiled(*arguments))


def whole(made, params, batch):
    return gradient_of(made)(params, batch, made.loss_denominators(batch))


@functools.cache
def alone(name: str):
    """Computes gradient, loss and metrics of a task's examples by the task's own objective."""
    made = FineTuningObjective(FineTuning(model=MODEL, head=HEADS[name], classifier_dropout=0.0))
    return whole(made, task_params(parameters(), name), rows_of(name))


def assert_is_sum_of(found, weights: dict[str, float]):
    """Asserts that the gradient of a mixed batch is the weighted sum of the tasks' gradients."""
    flat, expected = paths.flatten(found), {}
    for name, weight in weights.items():
        for path, leaf in paths.flatten(alone(name)[0]).items():
            place = path if path.startswith("encoder/") else f"heads/{name}/{path}"
            expected[place] = expected.get(place, 0) + weight * leaf
    for path, leaf in expected.items():
        np.testing.assert_allclose(flat[path], leaf, atol=2e-6, err_msg=path)
    others = {path for path in flat.keys() - expected.keys() if "log_variance" not in path}
    assert not any(flat[path].any() for path in others)


def test_mixed_batch_is_the_weighted_sum_of_its_tasks():
    found, losses = whole(program(), parameters(), mixed())
    shares = {name: rows / sum(ROWS.values()) for name, rows in ROWS.items()}
    expected = sum(fraction * float(alone(name)[1].loss) for name, fraction in shares.items())
    assert float(losses.loss) == pytest.approx(expected, rel=1e-6)
    assert_is_sum_of(found, shares)
    for name in HEADS:
        for metric, mean in alone(name)[1].metrics.items():
            if metric != "padding_fraction":
                np.testing.assert_allclose(losses.metrics[f"{name}/{metric}"], mean, rtol=1e-5)


def test_task_without_examples_contributes_nothing():
    found, losses = whole(program(), parameters(), mixed(names=("rte", "conll")))
    assert_is_sum_of(found, {"rte": 3 / 8, "conll": 5 / 8})
    assert losses.metrics["stsb/loss"].weight == 0
    assert losses.metrics["stsb/example_fraction"].total == 0
    assert all(np.isfinite(leaf).all() for leaf in paths.flatten(found).values())
    empty, nothing = whole(program(), parameters(), mixed(names=()))
    assert nothing.loss == 0 and not any(leaf.any() for leaf in paths.flatten(empty).values())


VARIANCES = {"rte": 0.5, "genre": -0.3, "stsb": 1.1, "conll": -1.2, "squad": 0.0}


@pytest.mark.parametrize("rate", [pytest.param(1.0, marks=pytest.mark.slow), 100.0])
def test_uncertainty_weighting_equals_kendall_et_al(rate):
    """Tests equations 7 and 10: exp(-s) / 2 for squared errors, exp(-s) for cross-entropy."""
    made = program(UncertaintyWeighting(lr_multiplier=rate))
    params = parameters(**{name: s / rate for name, s in VARIANCES.items()})
    found, losses = whole(made, params, mixed())
    weights, expected = {}, 0.0
    for name, s in VARIANCES.items():
        fraction = ROWS[name] / sum(ROWS.values())
        precision = np.exp(-s) * (0.5 if name == "stsb" else 1.0)
        loss = float(alone(name)[1].loss)
        weights[name] = fraction * precision
        expected += fraction * (precision * loss + s / 2)
        slope = float(found["heads"][name]["log_variance"])
        assert slope == pytest.approx(fraction * (0.5 - precision * loss), rel=1e-4)
        assert losses.metrics[f"{name}/log_variance"].total == pytest.approx(s, abs=1e-6)
    assert float(losses.loss) == pytest.approx(expected, rel=1e-5)
    assert_is_sum_of(found, weights)


@pytest.mark.parametrize(
    "weighting",
    [
        # test_mixed_batch_is_the_weighted_sum_of_its_tasks adds shares of the batch.
        pytest.param(UniformWeighting(), marks=pytest.mark.slow),
        # The same program as above.
        UncertaintyWeighting(lr_multiplier=100.0),
    ],
    ids=["rows", "uncertainty"],
)
def test_microbatches_add_up_to_the_batch(weighting):
    made, batch = program(weighting), mixed()
    params = (
        parameters(**{name: s / 100 for name, s in VARIANCES.items()})
        if isinstance(weighting, UncertaintyWeighting)
        else parameters()
    )
    loss_denominators = made.loss_denominators(batch)
    parts = [
        gradient_of(made)(
            params, {n: rows[part::3] for n, rows in batch.items()}, loss_denominators
        )
        for part in range(3)
    ]
    total, expected = jax.tree.map(lambda *x: sum(x), *parts), whole(made, params, batch)
    assert float(total[1].loss) == pytest.approx(float(expected[1].loss), rel=1e-5)
    flat = paths.flatten(expected[0])
    for path, leaf in paths.flatten(total[0]).items():
        np.testing.assert_allclose(leaf, flat[path], atol=1e-5, err_msg=path)
    assert abs(parts[0][1].loss - parts[1][1].loss) > 0.01


def test_each_head_has_its_own_dropout():
    made = MultiTaskObjective(dataclasses.replace(program().config, classifier_dropout=0.5))
    batch = mixed()

    @jax.jit
    def metrics(key):
        return made.compute_loss(parameters(), batch, made.loss_denominators(batch), key).metrics

    still, *found = (metrics(key) for key in (None, *map(jax.random.key, (0, 0, 1))))
    for name in HEADS:
        first, again, other = (float(one[f"{name}/loss"].total) for one in found)
        dry = float(still[f"{name}/loss"].total)
        assert first == again
        if name == "squad":
            assert first == other == pytest.approx(dry)
        else:
            assert len({first, other, dry}) == 3


def test_parameters_are_in_every_table_and_form_task_models():
    made = make_objective(program(UncertaintyWeighting()).config)
    assert isinstance(made, MultiTaskObjective)
    flat = paths.flatten(made.abstract())
    fresh = paths.flatten(made.init(jax.random.key(0)))
    assert {p: (x.shape, x.dtype) for p, x in fresh.items()} == {
        p: (x.shape, x.dtype) for p, x in flat.items()
    }
    rte, genre = (fresh[f"heads/{name}/pooler/dense/kernel"] for name in ("rte", "genre"))
    assert (rte != genre).any()
    decay = paths.flatten(decay_mask(made.abstract()))
    assert decay["heads/rte/classifier/kernel"] and decay["heads/rte/pooler/dense/kernel"]
    assert not decay["heads/rte/log_variance"] and not decay["heads/squad/span/bias"]
    assert sharding.parameter_shardings(
        made.abstract(), sharding.make_mesh(make_mesh_config("fsdp_tp"))
    )
    assert {param_depth(path, 1) for path in flat if path.startswith("heads/")} == {2}
    for name, head in HEADS.items():
        one = paths.flatten(task_params(made.abstract(), name))
        expected = FineTuningObjective(FineTuning(model=MODEL, head=head)).abstract()
        assert {p: x.shape for p, x in one.items()} == {
            p: x.shape for p, x in paths.flatten(expected).items()
        }


def test_configs_round_trip_through_json():
    for weighting in (UniformWeighting(), UncertaintyWeighting(lr_multiplier=3.0)):
        config = program(weighting).config
        assert from_json(ObjectiveConfig, to_json(config)) == config


def named(*heads):
    return tuple(NamedHead(name=name, head=head) for name, head in heads)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"heads": ()}, "objective.heads is empty"),
        (
            {"heads": named(("a", QuestionAnsweringHead()), ("a", RegressionHead()))},
            "two tasks 'a'",
        ),
        ({"heads": named(("a/b", QuestionAnsweringHead()))}, "'a/b'; expected a name of letters"),
        (
            {"heads": named(("a", QuestionAnsweringHead()), ("swag", MultipleChoiceHead()))},
            "'swag' is multiple choice",
        ),
        ({"heads": NAMED, "classifier_dropout": 1.0}, "expected 0, or a rate"),
    ],
)
def test_invalid_configs_are_rejected(fields, message):
    with pytest.raises(ConfigError, match=message):
        MultiTask(model=MODEL, **fields)
    with pytest.raises(ConfigError, match=r"lr_multiplier is .*, expected a number above 0"):
        UncertaintyWeighting(lr_multiplier=0.0)


def test_unknown_task_error_names_the_nearest():
    with pytest.raises(
        ConfigError, match=r"no task 'conl'; did you mean 'conll'\? tasks here: rte"
    ):
        program().config.for_task("conl")
