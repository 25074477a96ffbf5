"""Covers bert_jax/objectives/distillation: losses, objectives of both kinds, configs, meshes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch, pretraining_batch
from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.distillation import (
    PretrainingDistillation,
    SoftLabels,
    TaskDistillation,
    Teacher,
)
from bert_jax.config.objectives import FineTuning, ObjectiveConfig, Pretraining
from bert_jax.config.train import Phase
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from bert_jax.objectives.distillation import (
    PretrainingDistillationObjective,
    SoftLabelObjective,
    TaskDistillationObjective,
)
from bert_jax.objectives.make import make_objective
from bert_jax.params import paths
from bert_jax.train.flops import step_flops

# One and two layers: compiling them is most of these tests' time.
STUDENT = small_config(
    num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
TEACHER_MODEL = small_config(num_hidden_layers=2)
TEACHER = Teacher(path="teacher", model=TEACHER_MODEL)
PHASE = Phase(steps=4, seq_length=16, batch_size=8, max_predictions_per_seq=4)
HEADS = [
    SequenceClassificationHead(labels=("a", "b", "c")),
    RegressionHead(),
    TokenClassificationHead(labels=("x", "y", "z")),
    QuestionAnsweringHead(),
    MultipleChoiceHead(),
]
each_head = pytest.mark.parametrize(
    "head",
    [
        HEADS[0],
        HEADS[1],
        HEADS[3],
        # The classes of sequences have the same soft targets.
        pytest.param(HEADS[2], marks=pytest.mark.slow),
        pytest.param(HEADS[4], marks=pytest.mark.slow),
    ],
    ids=lambda head: type(head).__name__,
)
each_kind_of_soft_targets = pytest.mark.parametrize(
    "soft_targets", ["all_tokens", "masked_tokens"], ids=["all", "masked"]
)


def pretraining(**fields) -> Pretraining:
    distillation = PretrainingDistillation(teacher=TEACHER, **fields)
    return Pretraining(
        model=STUDENT, mask_token_id=4, mlm_weight=2.0, nsp_weight=0.0, distillation=distillation
    )


def fine_tuning(head, **fields) -> FineTuning:
    distillation = TaskDistillation(teacher=TEACHER, **fields)
    return FineTuning(model=STUDENT, head=head, distillation=distillation, classifier_dropout=0.0)


def parameters(config: ObjectiveConfig, scale: float = 5.0):
    """Random parameters, large enough that student and teacher disagree."""
    head = config.head if isinstance(config, FineTuning) else None
    student = random_parameters(STUDENT, head=head)
    teacher = random_parameters(TEACHER_MODEL, head=head, seed=1)
    named = student | {f"teacher/{path}": value for path, value in teacher.items()}
    expected = paths.flatten(make_objective(config).abstract())
    return paths.unflatten({path: jnp.asarray(scale * named[path]) for path in expected})


def masked_lm_batch(seed: int = 0):
    return pretraining_batch(
        batch_size=8, seq_length=16, max_predictions_per_seq=4, vocab_size=18, seed=seed
    )


# Equal configs get the same objective, and `gradients` compiles once for each objective.
objective_of = functools.cache(make_objective)


@functools.partial(jax.jit, static_argnums=0)
def gradients(objective, params, batch, denominators):
    def loss(params):
        output = objective.compute_loss(params, batch, denominators, None)
        return output.loss, output

    return jax.grad(loss, has_aux=True)(params)


def whole(objective, params, batch):
    return gradients(objective, params, batch, objective.loss_denominators(batch))


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@each_kind_of_soft_targets
def test_pretraining_losses_equal_loops_over_tokens(soft_targets):
    """The reference is a loop over examples and tokens, in float64."""
    config = pretraining(temperature=3.0, soft_targets=soft_targets)
    objective, batch = objective_of(config), masked_lm_batch()
    assert isinstance(objective, PretrainingDistillationObjective)
    params = parameters(config)
    _, output = whole(objective, params, batch)
    networks = {"student": objective.network, "teacher": objective.teacher}
    hidden, logits = {}, {}
    for name, network in networks.items():

        @jax.jit
        def states_and_logits(params, network=network):
            model = network.merge(params)
            last = model.encode(batch).last_hidden_state
            return last, model.masked_lm_logits(last)

        found = states_and_logits(params["teacher"] if name == "teacher" else params)
        hidden[name], logits[name] = (np.asarray(each, np.float64) for each in found)
    soft, cosines = [], []
    for row in range(8):
        real = int(batch["attention_mask"][row].sum())
        used = batch["masked_lm_weights"][row] > 0
        selected = batch["masked_lm_positions"][row][used]
        for position in range(real) if soft_targets == "all_tokens" else selected:
            p, q = (log_softmax(logits[n][row, position] / 3) for n in ("teacher", "student"))
            soft.append(9 * np.sum(np.exp(p) * (p - q)))
        for position in range(real):
            s, t = hidden["student"][row, position], hidden["teacher"][row, position]
            cosines.append(1 - s @ t / np.sqrt((s @ s) * (t @ t)))
    found = {name: float(mean.total / mean.weight) for name, mean in output.metrics.items()}
    assert np.mean(soft) > 0.1 and np.mean(cosines) > 0.1
    assert found["soft_loss"] == pytest.approx(np.mean(soft), rel=1e-4)
    assert found["cosine_loss"] == pytest.approx(np.mean(cosines), rel=1e-4)
    total = 2 * found["mlm_loss"] + 5 * found["soft_loss"] + found["cosine_loss"]
    assert float(output.loss) == pytest.approx(total, rel=1e-5)


@each_head
def test_soft_targets_of_each_head(head):
    config = fine_tuning(head, soft_weight=0.7, hard_weight=0.2)
    objective = make_objective(config)
    assert isinstance(objective, TaskDistillationObjective)
    sizes = {"batch_size": 8, "seq_length": 12, "vocab_size": 18}
    batch = fine_tuning_batch(head, **sizes, num_padding_examples=2)
    batch = jax.tree.map(jnp.asarray, batch)
    params = parameters(config)
    found_gradients, output = whole(objective, params, batch)
    metrics = {name: float(mean.total / mean.weight) for name, mean in output.metrics.items()}
    assert float(output.loss) == pytest.approx(
        0.2 * metrics["hard_loss"] + 0.7 * metrics["soft_loss"], rel=1e-5
    )

    @jax.jit
    def outputs(params):
        student, teacher = objective.network, objective.teacher.merge(params["teacher"])
        return (
            objective.head_outputs(student.merge(params), batch, None),
            objective.head_outputs(teacher, batch, None),
        )

    student, teacher = outputs(params)
    weights = np.asarray(objective.spec.label_weights(batch, ()))
    losses = []
    for name, values in student.items():
        s, t = np.asarray(values, np.float64), np.asarray(teacher[name], np.float64)
        if name == "values":
            losses.append((s - t) ** 2)
        else:
            p, q = log_softmax(t / 2), log_softmax(s / 2)
            losses.append(4 * np.sum(np.exp(p) * (p - q), axis=-1))
    expected = np.sum(np.mean(losses, axis=0) * weights) / np.sum(weights)
    assert metrics["soft_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-6) and expected > 1e-3
    for path, gradient in paths.flatten(found_gradients["teacher"]).items():
        assert not np.asarray(gradient).any(), path


def test_student_equal_to_its_teacher_has_no_soft_loss():
    teacher = Teacher(path="teacher", model=STUDENT)
    config = dataclasses.replace(
        pretraining(), distillation=PretrainingDistillation(teacher=teacher)
    )
    objective = make_objective(config)
    params = paths.unflatten(random_parameters(STUDENT))
    params["teacher"] = {name: params[name] for name in ("encoder", "masked_lm")}
    _, output = whole(objective, params, masked_lm_batch())
    assert float(output.metrics["soft_loss"].total) == pytest.approx(0, abs=1e-3)
    assert float(output.metrics["cosine_loss"].total) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        pretraining(temperature=3.0, soft_targets="all_tokens"),
        pytest.param(fine_tuning(HEADS[2]), marks=pytest.mark.slow),
    ],
    ids=["pretraining", "fine-tuning"],
)
def test_microbatches_add_up_to_the_batch(config):
    objective, params = objective_of(config), parameters(config)
    batch = (
        masked_lm_batch()
        if isinstance(config, Pretraining)
        else fine_tuning_batch(HEADS[2], batch_size=8, seq_length=12, vocab_size=18)
    )
    expected = float(whole(objective, params, batch)[1].loss)
    denominators = objective.loss_denominators(jax.tree.map(jnp.asarray, batch))
    halves = [{name: values[part::2] for name, values in batch.items()} for part in (0, 1)]
    parts = [float(gradients(objective, params, half, denominators)[1].loss) for half in halves]
    assert sum(parts) == pytest.approx(expected, rel=1e-5)
    assert min(parts) > 0


def test_teacher_adds_its_forward_flops():
    plain = dataclasses.replace(pretraining(), distillation=None)
    all_tokens = step_flops(pretraining(), PHASE) - step_flops(plain, PHASE)
    masked = step_flops(pretraining(soft_targets="masked_tokens"), PHASE) - step_flops(plain, PHASE)
    cosine = step_flops(pretraining(soft_weight=0.0), PHASE) - step_flops(plain, PHASE)
    assert cosine == 8 * 16 * step_flops_per_token()
    assert (all_tokens - cosine) / (masked - cosine) == pytest.approx(16 / 4)


def step_flops_per_token() -> float:
    return TEACHER_MODEL.encoder_flops(PHASE.seq_length)


@pytest.mark.parametrize(
    "config", [pretraining(soft_targets="masked_tokens"), fine_tuning(HEADS[0])]
)
def test_configs_round_trip_through_json(config):
    assert from_json(ObjectiveConfig, to_json(config)) == config


@pytest.mark.parametrize(
    "student, fields, message",
    [
        ({"vocab_size": 20}, {}, "a vocabulary of 20 tokens, but the teacher teacher has 18"),
        ({"hidden_size": 8}, {}, "hidden size of the student is 8 and that of the teacher 16"),
        ({}, {"temperature": 0.0}, "temperature is 0.0, expected a number > 0"),
        ({}, {"soft_weight": 0.0, "cosine_weight": 0.0}, "the teacher has no effect"),
        ({}, {"soft_weight": -1.0}, "soft_weight"),
        (
            {"num_hidden_layers": 2},
            {"teacher": dataclasses.replace(TEACHER, layers=(0,))},
            r"layers is \[0\], but the student has 2 layers",
        ),
    ],
)
def test_invalid_configs_are_rejected(student, fields, message):
    with pytest.raises(ConfigError, match=message):
        Pretraining(
            model=dataclasses.replace(STUDENT, **student),
            mask_token_id=4,
            nsp_weight=0.0,
            distillation=PretrainingDistillation(**{"teacher": TEACHER, **fields}),
        )


def test_layer_that_the_teacher_does_not_have_is_rejected():
    with pytest.raises(ConfigError, match="contains 2, but the teacher teacher has 2 layers"):
        dataclasses.replace(TEACHER, layers=(0, 2))


def test_loss_of_soft_labels_is_that_of_pet():
    """Computes the loss as `distillation_loss` of PET does, in PyTorch, without empty examples."""
    torch = pytest.importorskip("torch")
    config = FineTuning(
        model=STUDENT, head=HEADS[0], distillation=SoftLabels(), classifier_dropout=0.0
    )
    objective = make_objective(config)
    assert isinstance(objective, SoftLabelObjective)
    params = parameters(config)
    inputs = fine_tuning_batch(HEADS[0], batch_size=8, seq_length=16, vocab_size=18)
    weights = np.array([1, 1, 1, 0, 1, 1, 1, 1], np.float32)
    soft = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    batch = jax.tree.map(jnp.asarray, inputs | {"example_weights": weights, "label_logits": soft})
    assert {*objective.batch_fields()} <= batch.keys()
    output = objective.compute_loss(params, batch, objective.loss_denominators(batch), None)
    rows = weights > 0
    logits = torch.tensor(np.asarray(objective.predict(params, batch)["logits"])[rows])
    p = torch.log_softmax(logits / 2, dim=-1)
    q = torch.softmax(torch.tensor(soft[rows]) / 2, dim=-1)
    expected = torch.nn.functional.kl_div(p, q, reduction="sum") * 2**2 / len(logits)
    assert float(output.loss) == pytest.approx(float(expected), abs=1e-5)


def test_soft_labels_need_a_classifier():
    with pytest.raises(ConfigError, match=r"is SoftLabels, but objective.head is a RegressionHead"):
        FineTuning(model=STUDENT, head=RegressionHead(), distillation=SoftLabels())
