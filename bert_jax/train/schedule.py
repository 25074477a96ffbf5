"""Learning rate as a function of the number of updates done."""

import optax

from bert_jax.train.config import WarmupLinear


def learning_rate_schedule(schedule: WarmupLinear, total_steps: int) -> optax.Schedule:
    """The rate as a function of the number of updates done, which is 0 for the first.

    The first update is made at peak / warmup_steps, update number warmup_steps at the peak, and the
    rate reaches 0 just after the last one.
    """
    warmup_steps = schedule.warmup_steps
    warmup_schedule = optax.linear_schedule(
        schedule.peak_learning_rate / max(warmup_steps, 1),
        schedule.peak_learning_rate,
        max(warmup_steps - 1, 1),
    )
    decay_schedule = optax.linear_schedule(
        schedule.peak_learning_rate, 0.0, total_steps - warmup_steps
    )
    return (
        optax.join_schedules([warmup_schedule, decay_schedule], [warmup_steps])
        if warmup_steps
        else decay_schedule
    )
