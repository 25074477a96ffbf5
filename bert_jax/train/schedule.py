"""Learning rate as a function of the number of updates done."""

import optax

from bert_jax.train.config import WarmupLinear


def learning_rate(schedule: WarmupLinear, total_steps: int) -> optax.Schedule:
    """The rate as a function of the number of updates done, which is 0 for the first.

    The first update is made at peak / warmup_steps, update number warmup_steps at the peak, and the
    rate reaches 0 just after the last one.
    """
    warmup = schedule.warmup_steps
    up = optax.linear_schedule(schedule.peak / max(warmup, 1), schedule.peak, max(warmup - 1, 1))
    down = optax.linear_schedule(schedule.peak, 0.0, total_steps - warmup)
    return optax.join_schedules([up, down], [warmup]) if warmup else down
