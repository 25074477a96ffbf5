"""Adds a frozen teacher to the pretraining and fine-tuning objectives (knowledge distillation).

The parameters are the student's, as without a teacher, and `"teacher"`: the parameters of
the teacher. These are sharded by the same tables, frozen by `train.tuning.frozen`, and saved in
checkpoints, so that a resumed run has exactly the same teacher whatever happened to its folder.
Evaluation by tasks, prediction and export use the student only.

With `SoftLabels` there is no teacher: its outputs are a field of the batch.

The losses are computed in float32, and none is reduced over examples or tokens: the caller adds
them up as `WeightedMean`s. Gradients reach the student only.

Sources: Hinton et al. 2015, section 2; Sanh et al. 2019 (DistilBERT).
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from bert_jax.batch import MASKED_LM_FIELDS
from bert_jax.config.distillation import SoftLabels, TaskDistillation
from bert_jax.config.objectives import FineTuning, Pretraining
from bert_jax.errors import ConfigError, UserError
from bert_jax.losses import WeightedMean, padding_fraction, weighted_mean
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.model import EncoderWithHeads, build_network, encoder_inputs
from bert_jax.objectives.base import Batch, BatchSizes, LossOutput, masked_lm_flops
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.objectives.pretraining import Metrics, PretrainingObjective
from bert_jax.params.functional import Params
from bert_jax.params.paths import TEACHER
from bert_jax.tasks.losses import HeadOutputs


# The teacher is a part of the parameters: sharding tables hold for both, and the step has no
# further argument, which would need a place of its own in sharding, checkpoints and planning. Soft
# targets computed in advance would be 30,000 numbers for each token. Checkpoints are larger (for
# DistilBERT by half), but a resumed run is bit-exact even if the teacher is gone. DistilBERT's code
# prefers rare words and counts masks over the batch; here a batch is a function of one integer, and
# masks are counted in each sequence.
class PretrainingDistillationObjective(PretrainingObjective):
    """Implements the `Objective` of a `Pretraining` config with a `distillation`.

    Attributes:
      teacher: the teacher's encoder with its masked-LM head.
    """

    def __init__(self, config: Pretraining):
        super().__init__(config)
        assert config.distillation is not None
        self.distillation = config.distillation
        self.teacher = build_network(
            self.distillation.teacher.model, ("masked_lm",), compute=config.compute
        )

    def abstract(self) -> Params:
        """Returns the parameters of student and teacher as shapes and dtypes."""
        return {**super().abstract(), TEACHER: self.teacher.abstract()}

    def init(self, key: jax.Array) -> Params:
        """Returns random parameters, float32; the teacher's are replaced before training."""
        return {**super().init(key), TEACHER: self.teacher.init(key)}

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of all losses."""
        fields = super().batch_fields()
        if self.distillation.soft_targets == "masked_tokens":
            fields = (*fields, *MASKED_LM_FIELDS)
        return tuple(dict.fromkeys(fields))

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the divisors of the hard losses, and the numbers of tokens that are compared."""
        return super().loss_denominators(batch) | {
            "soft": jnp.maximum(jnp.sum(self._soft_weights(batch)), 1.0),
            "cosine": jnp.maximum(jnp.sum(_token_weights(batch)), 1.0),
        }

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the hard losses plus soft_weight * KL divergence + cosine_weight * cosine."""
        config = self.distillation
        student = self.network.merge(params)
        hidden = student.encode(batch, dropout_key).last_hidden_state
        loss, metrics = self.hard_losses(student, hidden, batch, loss_denominators)
        teacher = self.teacher.merge(jax.lax.stop_gradient(params[TEACHER]))
        # Without a dropout key: the teacher is deterministic, as in DistilBERT's training.
        teacher_hidden = teacher.encode(batch).last_hidden_state
        soft_metrics: Metrics = {}
        if config.soft_weight:
            losses = soft_target_loss(
                self._compared_logits(student, hidden, batch),
                self._compared_logits(teacher, teacher_hidden, batch),
                config.temperature,
            )
            soft = weighted_mean(losses, self._soft_weights(batch))
            loss += config.soft_weight * soft.total / loss_denominators["soft"]
            soft_metrics["soft_loss"] = soft
        if config.cosine_weight:
            cosine = weighted_mean(cosine_loss(hidden, teacher_hidden), _token_weights(batch))
            loss += config.cosine_weight * cosine.total / loss_denominators["cosine"]
            soft_metrics["cosine_loss"] = cosine
        return LossOutput(loss, metrics | soft_metrics)

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the hard losses, and of the student's compared logits."""
        soft = self._num_compared(sizes) * masked_lm_flops(self.config.model)
        return super().head_flops(sizes) + soft

    def teacher_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the teacher, with its compared logits."""
        model = self.distillation.teacher.model
        encoder = sizes.sequences * sizes.length * model.encoder_flops(sizes.length)
        return encoder + self._num_compared(sizes) * masked_lm_flops(model)

    def _num_compared(self, sizes: BatchSizes) -> int:
        """Returns at how many positions the logits of student and teacher are compared."""
        if not self.distillation.soft_weight:
            return 0
        all_tokens = self.distillation.soft_targets == "all_tokens"
        return sizes.sequences * (sizes.length if all_tokens else sizes.predictions)

    def check_teacher(self, path: str, head: TaskHead | None, missing: tuple[str, ...]) -> None:
        """Raises a UserError if a teacher has no masked-LM head."""
        if "masked_lm" in missing:
            raise UserError(
                f"the teacher {path} has no masked-LM head, whose predictions the student "
                "learns in pretraining; give a pretrained model with its head"
            )

    def _compared_logits(
        self, model: EncoderWithHeads, hidden_BLD: jax.Array, batch: Batch
    ) -> jax.Array:
        """Computes the logits that are compared: [B, L, V] or [B, P, V]."""
        match self.distillation.soft_targets:
            case "all_tokens":
                return model.masked_lm_logits(hidden_BLD)
            case "masked_tokens":
                selected = gather_positions(hidden_BLD, batch["masked_lm_positions"])
                return model.masked_lm_logits(selected)

    def _soft_weights(self, batch: Batch) -> jax.Array:
        """Returns the weights of `_compared_logits`, float32 [B, L] or [B, P]."""
        match self.distillation.soft_targets:
            case "all_tokens":
                return _token_weights(batch)
            case "masked_tokens":
                return batch["masked_lm_weights"]


class TaskDistillationObjective(FineTuningObjective):
    """Implements the `Objective` of a `FineTuning` config with a `distillation`, and prediction.

    Attributes:
      teacher: the teacher's encoder with the head of the task.
    """

    def __init__(self, config: FineTuning, adapter: Adapter | None = None):
        super().__init__(config, adapter)
        assert isinstance(config.distillation, TaskDistillation)
        self.distillation = config.distillation
        self.teacher = build_network(
            self.distillation.teacher.model, (), config.head, config.compute
        )

    def abstract(self) -> Params:
        """Returns the parameters of student and teacher as shapes and dtypes."""
        return {**super().abstract(), TEACHER: self.teacher.abstract()}

    def init(self, key: jax.Array) -> Params:
        """Returns random parameters, float32; the teacher's are replaced before training."""
        return {**super().init(key), TEACHER: self.teacher.init(key)}

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the sums of the label weights, which for soft targets have no class weights."""
        total = jnp.sum(self.spec.label_weights(batch, ()))
        return super().loss_denominators(batch) | {"soft": jnp.where(total > 0, total, 1.0)}

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes hard_weight * loss of the labels + soft_weight * loss of soft targets."""
        config = self.distillation
        outputs = self.head_outputs(self.network.merge(params), batch, dropout_key)
        hard, metrics = self.label_loss(outputs, batch)
        teacher = self.teacher.merge(jax.lax.stop_gradient(params[TEACHER]))
        teacher_outputs = self.head_outputs(teacher, batch, None)
        losses = task_soft_target_loss(outputs, teacher_outputs, config.temperature)
        soft = weighted_mean(losses, self.spec.label_weights(batch, ()))
        loss = (
            config.hard_weight * hard.total / loss_denominators["loss"]
            + config.soft_weight * soft.total / loss_denominators["soft"]
        )
        # Without this, the metric "loss" of the labels would replace the total in the logs.
        metrics["hard_loss"] = metrics.pop("loss")
        mask = encoder_inputs(batch)["attention_mask"]
        soft_metrics: dict[str, WeightedMean] = {
            "soft_loss": soft,
            "padding_fraction": padding_fraction({"attention_mask": mask}),
        }
        return LossOutput(loss, metrics | soft_metrics)

    def teacher_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the teacher's encoder."""
        flops = self.distillation.teacher.model.encoder_flops(sizes.length)
        return sizes.sequences * sizes.length * flops

    def check_teacher(self, path: str, head: TaskHead | None, missing: tuple[str, ...]) -> None:
        """Raises a ConfigError if a teacher has another task head than the student."""
        # Labels, too: logits are compared by their index, so another order would be learned
        # without an error.
        if head != self.config.head:
            raise ConfigError(
                f"the teacher {path} has the task head {head}, but objective.head is "
                f"{self.config.head}; expected a teacher that was fine-tuned on the same task, "
                "with the same labels in the same order"
            )


# The model that gave the soft labels may have had other inputs, so it cannot be a teacher, which
# reads the batch of the student.
class SoftLabelObjective(FineTuningObjective):
    """Implements the `Objective` of a `FineTuning` config with `SoftLabels`, and prediction."""

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the fields of `super`, and the soft labels."""
        return (*super().batch_fields(), "label_logits")

    def label_loss(
        self, outputs: HeadOutputs, batch: Batch
    ) -> tuple[WeightedMean, dict[str, WeightedMean]]:
        """Computes the loss of soft labels; "accuracy" compares with the most likely class."""
        assert isinstance(self.config.distillation, SoftLabels)
        temperature = self.config.distillation.temperature
        losses = soft_target_loss(outputs["logits"], batch["label_logits"], temperature)
        loss = weighted_mean(losses, self.spec.label_weights(batch, self.config.class_weights))
        return loss, super().label_loss(outputs, batch)[1] | {"loss": loss}


def _token_weights(batch: Batch) -> jax.Array:
    """Returns float32 [B, L]: 1 for tokens, 0 for padding."""
    return batch["attention_mask"].astype(jnp.float32)


_EPSILON = 1e-12  # PyTorch's CosineEmbeddingLoss adds it to both squared norms


# In float32; the forward pass of the teacher is in the compute dtype.
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
    # Gradients of the soft targets scale with 1 / T^2, so the factor keeps their weight when the
    # temperature changes (Hinton et al. 2015, section 2).
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
    the loss of the labels. The loss of regression values is the squared difference, and of several
    labels the mean over the labels.

    Returns:
      float32: [B, L] for token classification, [B] for other heads.
    """
    losses = [_output_loss(name, student[name], teacher[name], temperature) for name in student]
    return jnp.mean(jnp.stack(losses), axis=0)


def _output_loss(
    name: str, student: jax.Array, teacher: jax.Array, temperature: float
) -> jax.Array:
    if name == "values":
        return jnp.square(student - jax.lax.stop_gradient(teacher))
    if name == "binary_logits":
        # A label is a choice between two classes, whose logits are 0 and that of the label.
        student, teacher = (
            jnp.stack([jnp.zeros_like(logits), logits], axis=-1) for logits in (student, teacher)
        )
        return jnp.mean(soft_target_loss(student, teacher, temperature), axis=-1)
    return soft_target_loss(student, teacher, temperature)
