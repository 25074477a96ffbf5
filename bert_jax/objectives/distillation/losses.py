"""Computes the losses of knowledge distillation from the outputs of a student and its teacher.

All are computed in float32, and none is reduced over examples or tokens: the caller adds them up as
`WeightedMean`s. Gradients reach the student only.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

_EPSILON = 1e-12  # PyTorch's CosineEmbeddingLoss adds it to both squared norms


def soft_target_loss(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """Computes T^2 KL(softmax(teacher / T), softmax(student / T)), with T the temperature.

    Args:
      student: logits [..., C].
      teacher: logits [..., C]; they get no gradient.

    Returns:
      float32 [...], in nats.
    """
    teacher = jax.lax.stop_gradient(teacher)
    student_log_probs = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    teacher_log_probs = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    differences = teacher_log_probs - student_log_probs
    return temperature**2 * jnp.sum(jnp.exp(teacher_log_probs) * differences, axis=-1)


def cosine_loss(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes 1 - cos(student, teacher) of hidden states [..., D]; float32 [...]."""
    student = student.astype(jnp.float32)
    teacher = jax.lax.stop_gradient(teacher).astype(jnp.float32)
    student_norm = jnp.sum(jnp.square(student), axis=-1) + _EPSILON
    teacher_norm = jnp.sum(jnp.square(teacher), axis=-1) + _EPSILON
    product = jnp.sum(student * teacher, axis=-1)
    return 1.0 - product / jnp.sqrt(student_norm * teacher_norm)


def task_soft_target_loss(
    student: Mapping[str, jax.Array], teacher: Mapping[str, jax.Array], temperature: float
) -> jax.Array:
    """Computes the soft loss of a task head from the `HeadOutputs` of student and teacher.

    The loss of logits is `soft_target_loss`; start and end of an answer span count half each, as in
    the loss of the labels. The loss of regression values is the squared difference.

    Returns:
      float32: [B, L] for token classification, [B] for other heads.
    """
    losses = [
        jnp.square(student[name] - jax.lax.stop_gradient(teacher[name]))
        if name == "values"
        else soft_target_loss(student[name], teacher[name], temperature)
        for name in student
    ]
    return jnp.mean(jnp.stack(losses), axis=0)
