"""Compares distillation with a PyTorch loop: 20 updates of both kinds, without dropout.

The loop is written from the descriptions of the losses (Hinton et al. 2015, section 2; Sanh et al.
2019, section 2) with PyTorch's loss modules. Student and teacher are Hugging Face's classes.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch, pretraining_batch
from bert_jax.config.distillation import (
    TEACHER_PARAMS,
    PretrainingDistillation,
    TaskDistillation,
    Teacher,
)
from bert_jax.config.objectives import FineTuning, Pretraining
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import TuningConfig
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.objectives.base import Objective
from bert_jax.objectives.make import make_objective
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.train.initialize import student_from_layers
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEPS, WARMUP, PEAK, CLIP, VOCABULARY = 20, 4, 1e-3, 5.0, 103
LAYERS = (0, 2)
HEAD = SequenceClassificationHead(labels=("no", "maybe", "yes"))
TRAIN = TrainConfig(
    phases=(Phase(steps=STEPS, seq_length=24, batch_size=8, max_predictions_per_seq=5),),
    optimizer=AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.0),
    schedule=WarmupLinear(peak_learning_rate=PEAK, warmup_steps=WARMUP),
    max_grad_norm=CLIP,
    tuning=TuningConfig(frozen=(TEACHER_PARAMS,)),
)


def save_teacher(folder: Path, name: str) -> Any:
    """Writes a teacher of three layers with random parameters, and returns it."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=70,
        max_position_embeddings=32,
        attn_implementation="eager",
        id2label=dict(enumerate(HEAD.labels)),
    )
    # Large enough that its predictions are far from uniform.
    model = randomize_parameters(getattr(transformers, f"Bert{name}")(config), std=0.15)
    model.save_pretrained(folder)
    return model


def torch_student(teacher: Any) -> Any:
    """Returns a copy of the teacher with the layers LAYERS only."""
    student = type(teacher)(teacher.config)
    student.load_state_dict(teacher.state_dict())
    layers = student.bert.encoder.layer
    student.bert.encoder.layer = torch.nn.ModuleList([layers[index] for index in LAYERS])
    return student.eval()  # no dropout


def torch_inputs(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {name: torch.from_numpy(batch[name]).long() for name in names}


def soft_loss(student_logits: Any, teacher_logits: Any, temperature: float) -> Any:
    """Computes the loss of soft targets of logits [N, C], as a mean over N."""
    divergence = torch.nn.KLDivLoss(reduction="batchmean")
    inputs = torch.log_softmax(student_logits / temperature, dim=-1)
    return divergence(inputs, torch.softmax(teacher_logits / temperature, dim=-1)) * temperature**2


def torch_pretraining_loss(student: Any, teacher: Any, batch: dict[str, np.ndarray]) -> Any:
    inputs = torch_inputs(batch)
    outputs = student(**inputs, output_hidden_states=True)
    with torch.no_grad():
        targets = teacher(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    labels = np.full(batch["input_ids"].shape, -100, np.int64)
    for row, used in enumerate(batch["masked_lm_weights"] > 0):
        labels[row, batch["masked_lm_positions"][row, used]] = batch["masked_lm_ids"][row, used]
    hard = torch.nn.CrossEntropyLoss(ignore_index=-100)(
        outputs.logits.flatten(0, 1), torch.from_numpy(labels).flatten()
    )
    hidden, teacher_hidden = outputs.hidden_states[-1][real], targets.hidden_states[-1][real]
    cosine = torch.nn.CosineEmbeddingLoss()(hidden, teacher_hidden, torch.ones(len(hidden)))
    return 5.0 * soft_loss(outputs.logits[real], targets.logits[real], 2.0) + 2.0 * hard + cosine


def torch_task_loss(student: Any, teacher: Any, batch: dict[str, np.ndarray]) -> Any:
    inputs = torch_inputs(batch)
    logits = student(**inputs).logits
    with torch.no_grad():
        targets = teacher(**inputs).logits
    labels = torch.from_numpy(batch["labels"]).long()
    hard = torch.nn.CrossEntropyLoss()(logits, labels)
    return 0.3 * hard + 0.7 * soft_loss(logits, targets, 3.0)


def train_torch(student: Any, loss_of: Any, batches: list[Any]) -> list[float]:
    optimizer = torch.optim.AdamW(
        student.parameters(), betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0
    )
    losses = []
    for update, batch in enumerate(batches, start=1):
        up, down = update / WARMUP, (STEPS + 1 - update) / (STEPS - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * (up if update <= WARMUP else down)
        optimizer.zero_grad()
        loss = loss_of(student, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_jax(objective: Objective, params: Any, batches: list[Any]) -> list[float]:
    optimizer, schedule = make_optimizer(TRAIN), learning_rate_schedule(TRAIN.schedule, STEPS)
    params = jax.tree.map(jnp.asarray, params)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule, tuning=TRAIN.tuning))
    losses = []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


def without_dropout(model: LoadedModel) -> Any:
    return dataclasses.replace(
        model.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


@pytest.mark.slow  # tests/objectives/distillation_test.py compares them with loops
def test_pretraining_losses_equal_those_of_pytorch(tmp_path):
    torch_teacher = save_teacher(tmp_path, "ForMaskedLM")
    teacher_model = load_encoder(tmp_path)
    teacher = Teacher(path=str(tmp_path), model=teacher_model.config, layers=LAYERS)
    student = student_from_layers(teacher_model, teacher, {})
    objective = make_objective(
        Pretraining(
            model=without_dropout(student),
            mask_token_id=4,
            mlm_weight=2.0,
            nsp_weight=0.0,
            distillation=PretrainingDistillation(teacher=teacher),
        )
    )
    # The pooler and the next-sentence head are not in the folder, and are not trained.
    initial = jax.jit(objective.init)(jax.random.key(0))
    params = {**initial, **student.params, "teacher": teacher_model.params}
    batches = [
        pretraining_batch(
            batch_size=8, seq_length=24, max_predictions_per_seq=5, vocab_size=VOCABULARY, seed=seed
        )
        for seed in range(STEPS)
    ]
    losses = train_jax(objective, params, batches)
    expected = train_torch(
        torch_student(torch_teacher),
        lambda student, batch: torch_pretraining_loss(student, torch_teacher, batch),
        batches,
    )
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert losses[-1] < losses[0] - 1


def test_fine_tuning_losses_equal_those_of_pytorch(tmp_path):
    torch_teacher = save_teacher(tmp_path, "ForSequenceClassification")
    teacher_model = load_encoder(tmp_path)
    teacher = Teacher(path=str(tmp_path), model=teacher_model.config, layers=LAYERS)
    student = student_from_layers(teacher_model, teacher, {})
    objective = make_objective(
        FineTuning(
            model=without_dropout(student),
            head=HEAD,
            classifier_dropout=0.0,
            distillation=TaskDistillation(
                teacher=teacher, temperature=3.0, soft_weight=0.7, hard_weight=0.3
            ),
        )
    )
    batches = [
        fine_tuning_batch(HEAD, batch_size=8, seq_length=24, vocab_size=VOCABULARY, seed=seed)
        for seed in range(STEPS)
    ]
    params = {**student.params, "teacher": teacher_model.params}
    losses = train_jax(objective, params, batches)
    expected = train_torch(
        torch_student(torch_teacher),
        lambda student, batch: torch_task_loss(student, torch_teacher, batch),
        batches,
    )
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert min(losses) > 0.1
