"""Rows of several tasks as rows of one, and the order in which a mixture draws them."""

from collections.abc import Mapping

import numpy as np

from bert_jax.batch import FIELDS
from bert_jax.data.finetuning.config import Mixing
from bert_jax.data.finetuning.mixing_rates import mixing_rates
from bert_jax.data.finetuning.rows import Features
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.errors import ConfigError

_PASS_EPOCH_OFFSET = 1 << 33
"""Times a task's number from 1, added to the number of a pass over its rows: each has orders of its
own, apart from those of epochs and of batches (`loader.py`)."""


def concatenate_features(features_by_task: Mapping[str, Features]) -> Features:
    """The rows of several tasks, one task after another, for training.

    A row has the targets of all tasks, zero where its own has none, and in `task_ids` the number
    of its task. No task has choices.
    """
    names = dict.fromkeys(
        name for task_features in features_by_task.values() for name in task_features.targets
    )
    joined = Features(example_index=np.arange(sum(map(len, features_by_task.values()))))
    joined.targets = {name: [] for name in (*names, "task_ids")}
    for task_index, task_features in enumerate(features_by_task.values()):
        joined.input_ids += task_features.input_ids
        joined.token_type_ids += task_features.token_type_ids
        for name in names:
            # An array without elements is padded with zeros to the whole row.
            blank = np.zeros(0) if FIELDS[name].dims == "BL" else 0
            joined.targets[name] += task_features.targets.get(name, [blank] * len(task_features))
        joined.targets["task_ids"] += [task_index] * len(task_features)
    return joined


class MixtureSampler:
    """As many rows of each task in every epoch as its rate asks for: an `Order` over joined rows.

    A task's rows are passed over again and again, each pass in an order of its own, and an epoch
    goes on in the pass where the one before it stopped: no row comes a second time before all of
    its task have come once. An epoch has as many rows as the tasks have together. All of it is a
    function of (seed, epoch).

    Args:
      rows: task -> the number of its rows, which lie one task after another.

    Attributes:
      drawn: task -> the number of its rows in each epoch.

    Raises:
      ConfigError: a task is so rare that it has no row in an epoch.
    """

    def __init__(self, num_sequences: Mapping[str, int], mixing: Mixing, seed: int):
        self._num_sequences, self._seed = dict(num_sequences), seed
        self.sequences_per_epoch = _apportion(mixing_rates(num_sequences, mixing), len(self))
        for name, quota in self.sequences_per_epoch.items():
            if quota == 0:
                raise ConfigError(
                    f"data.mixing {mixing} draws no row of {name!r}, which has "
                    f"{num_sequences[name]:,} of {len(self):,}; expected rates that leave every "
                    "task some, as ProportionalMixing()"
                )

    def __len__(self) -> int:
        return sum(self._num_sequences.values())

    def __call__(self, epoch: int) -> np.ndarray:
        """See `Order`."""
        sampled_indices, first_index = [], 0
        for task_index, (name, count) in enumerate(self._num_sequences.items(), 1):
            quota = self.sequences_per_epoch[name]
            draw_positions = np.arange(epoch * quota, (epoch + 1) * quota)
            for pass_index in np.unique(draw_positions // count):
                key = epoch_key(self._seed, int(pass_index) + task_index * _PASS_EPOCH_OFFSET)
                sampled_indices.append(
                    first_index
                    + permute(
                        draw_positions[draw_positions // count == pass_index] % count, count, key
                    )
                )
            first_index += count
        indices = np.concatenate(sampled_indices)
        return indices[permute(np.arange(len(indices)), len(indices), epoch_key(self._seed, epoch))]


def _apportion(rates: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers in the proportion of `rates` that add up to `total`: largest remainders."""
    exact = np.array(list(rates.values())) * total
    quotas = np.floor(exact + 1e-9).astype(int)  # a share of 3 may be 2.9999999
    quotas[np.argsort(quotas - exact, kind="stable")[: total - quotas.sum()]] += 1
    return dict(zip(rates, quotas.tolist(), strict=True))
