"""Rows of several tasks as rows of one, and the order in which a mixture draws them."""

from collections.abc import Mapping

import numpy as np

from bert_jax.batch import FIELDS
from bert_jax.data.labelled.config import Mixing
from bert_jax.data.labelled.mixing import mixing_rates
from bert_jax.data.labelled.rows import Features
from bert_jax.data.random import epoch_key, permute
from bert_jax.errors import ConfigError

_PASSES = 1 << 33
"""Times a task's number from 1, added to the number of a pass over its rows: each has orders of its
own, apart from those of epochs and of batches (`loader.py`)."""


def join(features: Mapping[str, Features]) -> Features:
    """The rows of several tasks, one task after another, for training.

    A row has the targets of all tasks, zero where its own has none, and in `task_ids` the number
    of its task. No task has choices.
    """
    names = dict.fromkeys(name for each in features.values() for name in each.targets)
    joined = Features(example=np.arange(sum(map(len, features.values()))))
    joined.targets = {name: [] for name in (*names, "task_ids")}
    for number, each in enumerate(features.values()):
        joined.input_ids += each.input_ids
        joined.token_type_ids += each.token_type_ids
        for name in names:
            # An array without elements is padded with zeros to the whole row.
            nothing = np.zeros(0) if FIELDS[name].dims == "BL" else 0
            joined.targets[name] += each.targets.get(name, [nothing] * len(each))
        joined.targets["task_ids"] += [number] * len(each)
    return joined


class MixedRows:
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

    def __init__(self, rows: Mapping[str, int], mixing: Mixing, seed: int):
        self._rows, self._seed = dict(rows), seed
        self.drawn = _apportion(mixing_rates(rows, mixing), len(self))
        for name, quota in self.drawn.items():
            if quota == 0:
                raise ConfigError(
                    f"data.mixing {mixing} draws no row of {name!r}, which has {rows[name]:,} of "
                    f"{len(self):,}; expected rates that leave every task some, as Proportional()"
                )

    def __len__(self) -> int:
        return sum(self._rows.values())

    def __call__(self, epoch: int) -> np.ndarray:
        """See `Order`."""
        drawn, first = [], 0
        for number, (name, count) in enumerate(self._rows.items(), 1):
            quota = self.drawn[name]
            turns = np.arange(epoch * quota, (epoch + 1) * quota)
            for one in np.unique(turns // count):
                key = epoch_key(self._seed, int(one) + number * _PASSES)
                drawn.append(first + permute(turns[turns // count == one] % count, count, key))
            first += count
        rows = np.concatenate(drawn)
        return rows[permute(np.arange(len(rows)), len(rows), epoch_key(self._seed, epoch))]


def _apportion(rates: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers in the proportion of `rates` that add up to `total`: largest remainders."""
    exact = np.array(list(rates.values())) * total
    quotas = np.floor(exact + 1e-9).astype(int)  # a share of 3 may be 2.9999999
    quotas[np.argsort(quotas - exact, kind="stable")[: total - quotas.sum()]] += 1
    return dict(zip(rates, quotas.tolist(), strict=True))
