"""Mixes the training data of several tasks: sampling rates, joined features, order of sequences."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.batch import FIELDS
from bert_jax.config.labeled_data import (
    CappedMixing,
    EqualMixing,
    Mixing,
    ProportionalMixing,
    TemperatureMixing,
)
from bert_jax.data.finetuning.features import Features
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.errors import ConfigError, UserError

_PASS_EPOCH_OFFSET = 1 << 33
"""Multiplied by the task's index from 1 and added to the index of a pass over its sequences. Each
pass thus has its own random order, unlike the orders of epochs and batches (`loader.py`)."""


def mixing_rates(num_examples: Mapping[str, int], mixing: Mixing) -> dict[str, float]:
    """Computes the sampling rate of each task (Raffel et al. 2020, 3.5.2); rates add up to 1.

    Args:
      num_examples: task -> number of its examples.

    Raises:
      UserError: there is no task, or one has no examples.
    """
    if not num_examples or min(num_examples.values()) < 1:
        raise UserError(
            f"cannot mix the tasks {dict(num_examples)} (number of examples); expected one task or "
            "more, and one example or more in each"
        )
    rates = {name: _unnormalized_rate(count, mixing) for name, count in num_examples.items()}
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}


def _unnormalized_rate(count: int, mixing: Mixing) -> float:
    match mixing:
        case EqualMixing():
            return 1.0
        case ProportionalMixing():
            return float(count)
        case TemperatureMixing(temperature=temperature):
            return count ** (1.0 / temperature)
        case CappedMixing(max_examples=max_examples):
            # T5's limit of examples: without it a large task would leave the small ones hardly any
            # examples.
            return float(min(count, max_examples))


def concatenate_features(features_by_task: Mapping[str, Features]) -> Features:
    """Concatenates the training sequences of several tasks that have no choices.

    A sequence has the targets of all tasks, zero for other tasks, and the index of its
    task in `task_ids`. A target with a number for each label is padded with zeros to the largest
    number of labels.
    """
    names = dict.fromkeys(
        name for task_features in features_by_task.values() for name in task_features.targets
    )
    joined = Features(example_index=np.arange(sum(map(len, features_by_task.values()))))
    targets: dict[str, list[Any]] = {name: [] for name in (*names, "task_ids")}
    for task_index, task_features in enumerate(features_by_task.values()):
        joined.input_ids += task_features.input_ids
        joined.token_type_ids += task_features.token_type_ids
        for name in names:
            # An empty array is padded with zeros to the whole sequence.
            blank = 0 if FIELDS[name].dims == "B" else np.zeros(0)
            targets[name] += task_features.targets.get(name, [blank] * len(task_features))
        targets["task_ids"] += [task_index] * len(task_features)
    for name in names:
        if FIELDS[name].dims == "BC":
            width = max(len(value) for value in targets[name])
            targets[name] = [np.pad(value, (0, width - len(value))) for value in targets[name]]
    joined.targets = targets
    return joined


# Deterministic: each task contributes a fixed number of examples per epoch, and none repeats before
# all of its task have been used. All examples have the same weight, so that the weight of a task is
# its sampling rate.
class MixtureSampler:
    """Draws, in every epoch, a fixed number of sequences of each task, in proportion to its rate.

    This is an `EpochSampler` over joined features. The sequences of a task are passed over again
    and again, each time in a new random order, and an epoch continues the pass in which the last
    one ended: no sequence is repeated before all others of its task were drawn. An epoch has as
    many sequences as all tasks together. The order is a function of (seed, epoch).

    Args:
      num_sequences: task -> number of its sequences, in the order of the joined features.

    Attributes:
      sequences_per_epoch: task -> number of its sequences in each epoch.

    Raises:
      ConfigError: a task is so rare that an epoch has no sequence of it.
    """

    def __init__(self, num_sequences: Mapping[str, int], mixing: Mixing, seed: int):
        self._num_sequences, self._seed = dict(num_sequences), seed
        self.sequences_per_epoch = apportion(mixing_rates(num_sequences, mixing), len(self))
        for name, quota in self.sequences_per_epoch.items():
            if quota == 0:
                raise ConfigError(
                    f"data.mixing is {mixing}, which never draws from the task {name!r} (it has "
                    f"{num_sequences[name]:,} of {len(self):,}); choose rates that draw from every "
                    "task, for example ProportionalMixing()"
                )

    def __len__(self) -> int:
        return sum(self._num_sequences.values())

    def __call__(self, epoch: int) -> np.ndarray:
        """Returns the indices of an epoch, see `EpochSampler`."""
        sampled_indices, first_index = [], 0
        for task_index, (name, count) in enumerate(self._num_sequences.items(), 1):
            quota = self.sequences_per_epoch[name]
            draws = np.arange(epoch * quota, (epoch + 1) * quota)
            pass_indices = draws // count
            for pass_index in np.unique(pass_indices):
                key = epoch_key(self._seed, int(pass_index) + task_index * _PASS_EPOCH_OFFSET)
                in_pass = draws[pass_indices == pass_index] % count
                sampled_indices.append(first_index + permute(in_pass, count, key))
            first_index += count
        indices = np.concatenate(sampled_indices)
        # Shuffled once more over all tasks, since the parts were joined task by task.
        return indices[permute(np.arange(len(indices)), len(indices), epoch_key(self._seed, epoch))]


def apportion(rates: Mapping[str, float], total: int) -> dict[str, int]:
    """Splits `total` into integers in the proportion of `rates`, by largest remainders."""
    exact = np.array(list(rates.values())) * total
    quotas = np.floor(exact + 1e-9).astype(int)  # what should be 3 may be 2.9999999
    # The largest remainders first; of equal ones the earlier task gets the example.
    quotas[np.argsort(quotas - exact, kind="stable")[: total - quotas.sum()]] += 1
    return dict(zip(rates, quotas.tolist(), strict=True))
