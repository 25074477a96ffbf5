"""Computes the model FLOPs of a training step by formula, for model FLOPs utilization (MFU)."""

from collections.abc import Mapping

from bert_jax.config.objectives import ObjectiveConfig, objective_of_phase
from bert_jax.config.train import Phase
from bert_jax.config.tuning import FullTuning, TuningConfig
from bert_jax.models.adapters.config import PrefixTuning, PromptTuning
from bert_jax.objectives.base import BatchSizes, Objective
from bert_jax.objectives.make import make_objective
from bert_jax.train.tuning.freezing import num_layers_with_gradients


def step_flops(
    objective: ObjectiveConfig | Objective,
    phase: Phase,
    dims: Mapping[str, int] | None = None,
    *,
    tuning: TuningConfig = TuningConfig(),  # noqa: B008 (frozen)
    lowest_trainable_layer: int = 0,
) -> float:
    """Computes the model FLOPs of one update.

    The backward pass counts as twice the forward pass; recomputation (remat) is not counted.
    A teacher's forward pass is counted. Task heads (under 0.1 %) are not: 0 for `"cached"`.

    Args:
      objective: the objective of the phase, or the run's config, from which it is made.
      phase: has the sizes of the dimensions that are missing in `dims`.
      dims: global sizes of dimensions, such as {"B": 32, "L": 128}; see `bert_jax.batch`. Without
        "A", an example has one text.
      tuning: whether a step runs the encoder, and what it trains of it. Without `FullTuning` the
        encoder's kernels have no gradients, which halves their products in the backward pass. The
        products of adapters are not counted: up to 4 %, or 13 % with the second product of DoRA.
      lowest_trainable_layer: depth below which there is no backward pass (`tuning.freezing`).
    """
    if tuning.features == "cached":
        return 0.0
    if not isinstance(objective, Objective):
        objective = make_objective(objective_of_phase(objective, phase))
    sizes, method = BatchSizes.from_dims({**phase.sizes, **(dims or {})}), tuning.method
    flops = 3.0 * objective.head_flops(sizes) + objective.teacher_flops(sizes)
    # A prompt passes through the layers like the text, a prefix does not.
    if isinstance(method, PromptTuning):
        sizes = sizes._replace(length=sizes.length + method.length)
    encoder_flops = objective.encoder_flops(sizes)
    if not encoder_flops:
        return flops
    model, num_positions = objective.config.model, objective.encoded_positions(sizes)
    if isinstance(method, PrefixTuning):
        # Each position has 2 D for the score and 2 D for the context of each key of the prefix.
        flops_per_position = method.length * 4 * model.hidden_size * model.num_applied_layers
        encoder_flops += num_positions * flops_per_position
    num_layers = num_layers_with_gradients(model, lowest_trainable_layer)
    # Forward 1, gradients of inputs and of kernels 1 each; layers below the lowest trained one
    # have no backward pass.
    flops += (1 + 2 * num_layers / model.num_applied_layers) * encoder_flops
    if not isinstance(method, FullTuning):
        # Frozen kernels have no gradient: of the backward pass only the half for the inputs is
        # left.
        flops -= num_positions * 2 * num_layers * model.kernel_params_per_layer
    return flops
