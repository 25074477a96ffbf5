"""Takes training steps with this project and with PyTorch on the same weights and batches.

AdamW is PyTorch's; clipping, warmup and linear decay are written here from their definition.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step

torch = pytest.importorskip("torch")

STEPS, WARMUP, CLIP = 20, 5, 1.0


def train_config(
    peak: float,
    optimizer: Any = AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01),  # noqa: B008
    **sizes: int,
) -> TrainConfig:
    """Returns the config of 20 steps with warmup to `peak`, linear decay and clipping."""
    phase = Phase(steps=STEPS, seq_length=24, batch_size=4, max_predictions_per_seq=4)
    return TrainConfig(
        phases=(dataclasses.replace(phase, **sizes),),
        optimizer=optimizer,
        schedule=WarmupLinear(peak_learning_rate=peak, warmup_steps=WARMUP),
        max_grad_norm=CLIP,
    )


def train_jax(
    objective: Any, params: Any, batches: Sequence[Any], train: TrainConfig, *names: str
) -> np.ndarray:
    """Returns the metrics of these names before each update, float64 [steps, names]."""
    optimizer, schedule = make_optimizer(train), learning_rate_schedule(train.schedule, STEPS)
    params = jax.tree.map(jnp.asarray, params)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule))
    rows = []
    for batch in batches:
        state, metrics = step(state, {name: batch[name] for name in objective.batch_fields()})
        rows.append([float(metrics[name]) for name in names])
    return np.array(rows)


def learning_rate(peak: float, update: int) -> float:
    """Returns the learning rate of an update, counted from 1."""
    up, down = update / WARMUP, (STEPS + 1 - update) / (STEPS - WARMUP)
    return peak * (up if update <= WARMUP else down)


def train_torch(
    model: Any,
    batches: Sequence[Any],
    train: TrainConfig,
    compute_losses: Callable[[Any], tuple[Any, ...]],
) -> tuple[np.ndarray, np.ndarray]:
    """Trains a module with AdamW.

    Args:
      compute_losses: (batch) -> the loss to minimize, and further losses to record.

    Returns:
      The losses before each update, float64 [steps, losses], and the norms of the gradients before
      clipping, float64 [steps].
    """
    adam: Any = train.optimizer
    schedule: Any = train.schedule
    model.train()
    named = list(model.named_parameters())
    plain = [p for n, p in named if n.endswith("bias") or "norm" in n.lower()]
    decayed = [p for _, p in named if all(p is not q for q in plain)]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": adam.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        betas=(adam.b1, adam.b2),
        eps=adam.epsilon,
    )
    rows, norms = [], []
    for update, batch in enumerate(batches, start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule.peak_learning_rate, update)
        optimizer.zero_grad()
        losses = compute_losses(batch)
        losses[0].backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        rows.append([loss.item() for loss in losses])
    return np.array(rows), np.array(norms)


def long_fields(batch: Any, *names: str) -> dict[str, Any]:
    """Returns fields of a batch as tensors of PyTorch."""
    return {name: torch.from_numpy(batch[name]).long() for name in names}


def masked_lm_labels(batch: Any) -> Any:
    """Returns the labels of PyTorch's masked LM: -100 where nothing is predicted."""
    labels = np.full(batch["input_ids"].shape, -100, np.int64)
    rows, entries = np.nonzero(batch["masked_lm_weights"])
    labels[rows, batch["masked_lm_positions"][rows, entries]] = batch["masked_lm_ids"][
        rows, entries
    ]
    return torch.from_numpy(labels)


def texts_of_examples(batch: Any) -> list[dict[str, Any]]:
    """Returns the fields of the first text of each example, of the second one, ..., as tensors."""
    num_texts = batch["choice_input_ids"].shape[1]
    fields = ("input_ids", "token_type_ids", "attention_mask")
    return [
        {name: torch.from_numpy(batch[f"choice_{name}"][:, index]).long() for name in fields}
        for index in range(num_texts)
    ]
