"""Tests fine-tuning objectives: microbatches, padding, devices, invalid configs."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import batch as batch_lib
from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.objectives import FineTuning, ObjectiveConfig
from bert_jax.config.train import make_mesh_config
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
    WindowEncoder,
    window_encoder_of,
)
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.parameters import parts_in, validate_params
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.train.optimizer import decay_mask

HEADS = [
    SequenceClassificationHead(labels=("no", "yes", "perhaps")),
    RegressionHead(),
    TokenClassificationHead(labels=("O", "B-PER", "I-PER")),
    QuestionAnsweringHead(),
    MultipleChoiceHead(),
    RegressionHead(window_encoder=WindowEncoder(num_windows=3, num_layers=1)),
]


def head_id(head) -> str:
    return ("windows-" if window_encoder_of(head) else "") + type(head).__name__


each_head = pytest.mark.parametrize("head", HEADS, ids=head_id)
# Where the texts of an example do not matter: regression of windows is regression, choices are
# classes, and spans are summed over examples as classes are.
each_sum = pytest.mark.parametrize(
    "head",
    [
        pytest.param(head, marks=[pytest.mark.slow] if head in (HEADS[1], *HEADS[3:5]) else [])
        for head in HEADS
    ],
    ids=head_id,
)
# Where only the loss of the head matters: that of windows has the loss of regression.
each_loss = pytest.mark.parametrize("head", HEADS[:-1], ids=head_id)
MODEL = small_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
WEIGHTS = (0.25, 1.0, 3.0)


@functools.cache
def program(head, **fields):
    """Makes an objective without dropout, with class weights and smoothing if there are classes."""
    values: dict = {"classifier_dropout": 0.0}
    if isinstance(head, SequenceClassificationHead | TokenClassificationHead):
        values |= {"class_weights": WEIGHTS, "label_smoothing": 0.1}
    return FineTuningObjective(FineTuning(model=MODEL, head=head, **{**values, **fields}))


def parameters(head):
    return paths.unflatten(random_parameters(MODEL, head=head))


def make(head, **fields) -> Any:
    sizes = {"batch_size": 8, "seq_length": 16, "vocab_size": 18, **fields}
    return fine_tuning_batch(head, **sizes)


@functools.cache
def gradient_of(program):
    """Returns a function from (params, batch, loss_denominators, key) to (gradient, losses)."""

    def loss(params, batch, loss_denominators, key):
        losses = program.compute_loss(params, batch, loss_denominators, key)
        return losses.loss, losses

    compiled = jax.jit(jax.grad(loss, has_aux=True))
    return lambda *arguments: jax.device_get(compiled(*arguments))


def whole(program, params, batch, key=None):
    """Computes the gradient and the losses of a batch without microbatches."""
    return gradient_of(program)(params, batch, program.loss_denominators(batch), key)


def assert_same_tree(found, expected, tolerance=1e-6):
    expected = paths.flatten(expected)
    assert paths.flatten(found).keys() == expected.keys()
    for path, leaf in paths.flatten(found).items():
        np.testing.assert_allclose(leaf, expected[path], atol=tolerance, err_msg=path)


@each_head
def test_parameters_are_in_every_table(head):
    made = make_objective(program(head).config)
    assert isinstance(made, FineTuningObjective)
    flat = paths.flatten(made.abstract())
    validate_params(flat, MODEL, "a program", head)
    pooled = not isinstance(head, TokenClassificationHead | QuestionAnsweringHead)
    linear = "span" if isinstance(head, QuestionAnsweringHead) else "classifier"
    windows = {"window_encoder"} if window_encoder_of(head) else set()
    assert parts_in(flat) == {"encoder", linear} | ({"pooler"} if pooled else set()) | windows
    decay = paths.flatten(decay_mask(made.abstract()))
    assert decay[f"{linear}/kernel"] and not decay[f"{linear}/bias"]
    grid = sharding.make_mesh(make_mesh_config("fsdp_tp"))
    assert sharding.parameter_shardings(made.abstract(), grid)
    fresh = paths.flatten(made.init(jax.random.key(0)))
    assert {p: (x.shape, x.dtype) for p, x in fresh.items()} == {
        p: (x.shape, x.dtype) for p, x in flat.items()
    }
    assert not fresh[f"{linear}/bias"].any() and 0.01 < fresh[f"{linear}/kernel"].std() < 0.03


@each_head
def test_batches_match_the_batch_spec(head):
    made = program(head)
    batch = make(head)
    sizes = {"B": 8, "L": 16, "A": 3}
    batch_lib.check_batch(batch, batch_lib.batch_spec(made.batch_fields(), sizes))
    assert set(made.input_fields()) < set(made.batch_fields()) == set(batch)


@each_sum
def test_padding_examples_change_nothing(head):
    made, params = program(head), parameters(head)
    filled = make(head, num_padding_examples=4)
    cut = {name: rows[:4] for name, rows in filled.items()}
    found, losses = whole(made, params, filled)
    expected, alone = whole(made, params, cut)
    assert float(losses.loss) == pytest.approx(float(alone.loss), rel=1e-6)
    assert_same_tree(found, expected)
    for name in losses.metrics.keys() - {"padding_fraction"}:
        np.testing.assert_allclose(losses.metrics[name], alone.metrics[name], rtol=1e-6)


@each_loss
def test_batch_of_padding_examples_is_zero_not_nan(head):
    found, losses = whole(program(head), parameters(head), make(head, num_padding_examples=8))
    assert float(losses.loss) == 0
    assert not any(leaf.any() for leaf in paths.flatten(found).values())


@each_sum
def test_microbatches_add_up_to_the_batch(head):
    made, params = program(head), parameters(head)
    batch = make(head, num_padding_examples=3)
    loss_denominators = made.loss_denominators(batch)
    shares = [
        gradient_of(made)(
            params, {name: rows[part::2] for name, rows in batch.items()}, loss_denominators, None
        )
        for part in range(2)
    ]
    total = jax.tree.map(np.add, *shares)
    expected = whole(made, params, batch)
    assert float(total[1].loss) == pytest.approx(float(expected[1].loss), rel=1e-6)
    assert_same_tree(total[0], expected[0])
    # Microbatches have different counts, so a mean of means would be another number.
    assert abs(shares[0][1].loss - shares[1][1].loss) > 0.01


def with_and_without_padding(head):
    short = make(head, seq_length=10)
    long = {
        name: np.pad(field, [(0, 0)] * (field.ndim - 1) + [(0, 10)])
        if batch_lib.FIELDS[name].dims.endswith("L")
        else field
        for name, field in short.items()
    }
    return short, long


@each_sum
def test_padded_length_does_not_change_gradients(head):
    made, params = program(head), parameters(head)
    (expected, losses), (found, of_long) = (
        whole(made, params, batch) for batch in with_and_without_padding(head)
    )
    if made.spec.loss_reads_padding:  # as in BERT's run_squad.py
        assert isinstance(head, QuestionAnsweringHead)
        return
    assert float(of_long.loss) == pytest.approx(float(losses.loss), rel=1e-6)
    assert_same_tree(found, expected)


@each_head
def test_padded_length_does_not_change_predictions(head):
    made, params = program(head), parameters(head)
    short, long = with_and_without_padding(head)
    assert long[made.input_fields()[0]].shape[-1] == 20
    predict = jax.jit(made.predict)
    for name, values in predict(params, short).items():
        found = predict(params, long)[name]
        assert found.dtype == jnp.float32
        if isinstance(head, TokenClassificationHead | QuestionAnsweringHead):
            found = found[:, :10]
        np.testing.assert_allclose(found, values, atol=1e-6, err_msg=name)


@each_head
def test_predictions_need_no_labels_and_have_the_same_loss(head):
    made, params = program(head), parameters(head)
    batch = make(head)
    inputs = {name: batch[name] for name in made.input_fields()}
    found = jax.jit(made.predict)(params, inputs)
    shapes = {name: values.shape for name, values in found.items()}
    match head:
        case SequenceClassificationHead():
            assert shapes == {"logits": (8, 3)}
        case RegressionHead():
            assert shapes == {"values": (8,)}
            error = np.square(np.asarray(found["values"]) - batch["label_values"]).mean()
            assert float(whole(made, params, batch)[1].loss) == pytest.approx(error, rel=1e-5)
        case TokenClassificationHead():
            assert shapes == {"logits": (8, 16, 3)}
        case QuestionAnsweringHead():
            assert shapes == {"start_logits": (8, 16), "end_logits": (8, 16)}
        case MultipleChoiceHead():
            assert shapes == {"logits": (8, 3)}
            # Each choice is scored by itself: reversing the choices reverses the scores.
            turned = {name: field[:, ::-1] for name, field in inputs.items()}
            again = jax.jit(made.predict)(params, turned)["logits"]
            np.testing.assert_allclose(again[:, ::-1], found["logits"], atol=1e-6)


@each_loss
def test_dropout_is_before_classifiers_but_not_before_spans(head):
    made, params = program(head, classifier_dropout=0.5), parameters(head)
    batch = make(head)

    @jax.jit
    def loss(key):
        return made.compute_loss(params, batch, made.loss_denominators(batch), key).loss

    still = float(loss(None))
    losses = [float(loss(jax.random.key(seed))) for seed in (0, 0, 1)]
    assert losses[0] == losses[1]
    if isinstance(head, QuestionAnsweringHead):
        assert losses[0] == losses[2] == pytest.approx(still, rel=1e-6)
    else:
        assert len({*losses, still}) == 3


# One head that reads the pooler, and one that reads every token.
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(head, marks=[] if head in (HEADS[0], HEADS[3]) else [pytest.mark.slow])
        for head in HEADS[:-1]
    ],
    ids=head_id,
)
def test_bfloat16_is_close_and_outputs_are_float32(head):
    made, params = program(head), parameters(head)
    half = program(head, compute=ComputeConfig(dtype="bfloat16"))
    batch = make(head)
    exact, rough = jax.jit(made.predict)(params, batch), jax.jit(half.predict)(params, batch)
    for name, values in exact.items():
        assert rough[name].dtype == jnp.float32
        np.testing.assert_allclose(rough[name], values, atol=0.05)
        assert (np.asarray(rough[name]) != np.asarray(values)).any()
    losses = jax.eval_shape(half.compute_loss, params, batch, half.loss_denominators(batch), None)
    assert losses.loss.dtype == jnp.float32


# tests/train/adapter_step_test.py trains a classifier on a mesh, with dropout.
@pytest.mark.slow
@pytest.mark.parametrize(
    "head", [pytest.param(HEADS[0], id="classes"), pytest.param(HEADS[5], id="windows")]
)
def test_eight_devices_equal_one(head):
    made, params = program(head, classifier_dropout=0.1), parameters(head)
    batch, key = make(head, num_padding_examples=1), jax.random.key(3)
    expected = whole(made, params, batch, key)
    grid = sharding.make_mesh(make_mesh_config("fsdp"))
    placed = jax.device_put(params, sharding.parameter_shardings(made.abstract(), grid))
    rows = sharding.put_batch(batch, sharding.batch_sharding(grid))
    found = whole(made, placed, rows, key)
    assert float(found[1].loss) == pytest.approx(float(expected[1].loss), rel=1e-6)
    assert_same_tree(found[0], expected[0])


@each_head
def test_configs_round_trip_through_json(head):
    config = program(head).config
    assert from_json(ObjectiveConfig, to_json(config)) == config


@pytest.mark.parametrize(
    "head, fields, message",
    [
        (HEADS[0], {"class_weights": (1.0, 2.0)}, "2 weights, but objective.head has 3 labels: no"),
        (HEADS[0], {"class_weights": (1.0, -2.0, 1.0)}, "expected numbers >= 0"),
        (HEADS[0], {"class_weights": (0.0, 0.0, 0.0)}, "one of them > 0"),
        (HEADS[1], {"class_weights": (1.0,)}, "a RegressionHead has no classes"),
        (HEADS[3], {"label_smoothing": 0.1}, "a QuestionAnsweringHead has no classes to smooth"),
        (HEADS[0], {"label_smoothing": 1.0}, "expected 0 <= label_smoothing < 1"),
        (HEADS[0], {"classifier_dropout": -0.1}, "expected 0, or a rate"),
    ],
)
def test_invalid_configs_are_rejected(head, fields, message):
    with pytest.raises(ConfigError, match=message):
        FineTuning(model=MODEL, head=head, **fields)


@pytest.mark.parametrize("kind", [SequenceClassificationHead, TokenClassificationHead])
def test_labels_must_be_two_or_more_and_distinct(kind):
    with pytest.raises(ConfigError, match="expected at least two labels"):
        kind(labels=("only",))
    with pytest.raises(ConfigError, match="'a' more than once"):
        kind(labels=("a", "b", "a"))


def test_head_is_an_overridable_field():
    config = program(HEADS[0]).config
    fewer = dataclasses.replace(
        config, head=SequenceClassificationHead(labels=("a", "b")), class_weights=()
    )
    assert paths.flatten(make_objective(fewer).abstract())["classifier/kernel"].shape == (16, 2)
