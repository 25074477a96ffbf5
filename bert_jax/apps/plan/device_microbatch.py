"""Describes the part of a microbatch that one device computes, for the formulas of memory."""

import dataclasses
from dataclasses import dataclass

from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import MaskedPermutedLM
from bert_jax.models.adapters.config import PrefixTuning, PromptTuning


@dataclass(frozen=True, kw_only=True)
class DeviceMicrobatch:
    """Describes the part of a microbatch that one device computes.

    A device holds `num_sequences` sequences and 1 / `tensor_parallel_size` of each layer.
    """

    num_sequences: int
    seq_length: int
    max_predictions_per_seq: int
    target_length: int = 0  # of a decoder
    num_prefix_keys: int = 0  # of prefix tuning, in front of the keys of the text
    tensor_parallel_size: int = 1

    @property
    def num_tokens(self) -> int:
        """Returns T, the number of input positions."""
        return self.num_sequences * self.seq_length


def encoder_microbatch(experiment: Experiment, microbatch: DeviceMicrobatch) -> DeviceMicrobatch:
    """Returns a microbatch with the positions that the encoder adds to those of the batch."""
    seq_length, method = microbatch.seq_length, experiment.train.tuning.method
    if isinstance(experiment.objective, MaskedPermutedLM):
        # The masks of the content stream and the query stream are part of the same sequence.
        seq_length += 2 * microbatch.max_predictions_per_seq
    if isinstance(method, PromptTuning):
        seq_length += method.length
    return dataclasses.replace(
        microbatch,
        seq_length=seq_length,
        num_prefix_keys=method.length if isinstance(method, PrefixTuning) else 0,
    )
