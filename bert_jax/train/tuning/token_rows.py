"""Trains only those rows of the token embeddings whose tokens are in the training texts.

Other rows have no gradient, and multilingual vocabularies have many: 250,000 rows are 81 % of the
parameters of multilingual-e5-small. The optimizer sees the table without them, so they have no
moments and cost no time. They keep their initial values, as they do without weight decay.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.config.experiment import Experiment
from bert_jax.config.train import AdamW, Muon
from bert_jax.config.tuning import EWC
from bert_jax.models.layers.linear import PartlyTrainedTable
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.train.tuning.freezing import is_frozen

TABLE = "encoder/embeddings/word_embeddings/embedding"

# The number of rows is a shape of the train step, which is compiled again for another one. With few
# possible numbers, runs on similar data find the compiled step in the cache.
_MULTIPLE = 4096


def choose_token_rows(
    experiment: Experiment, params: Params, find_token_ids: Callable[[], np.ndarray | None]
) -> np.ndarray | None:
    """Returns the rows to train, or None to train the whole table or nothing of it.

    The whole table is trained if more than half of its rows would be trained, or if the ids are
    unknown; if there is a masked-LM head, whose logits give all rows gradients; with EWC; and with
    optimizers that scale an update by a statistic of the whole parameter (LAMB, Adafactor,
    StableAdamW).

    Args:
      params: all parameters of the objective, which may be abstract.
      find_token_ids: returns all ids that batches have, or None if they are unknown. It is called
        only if the rest allows a choice, because it may tokenize all texts.

    Returns:
      int32 [rows], ascending: the ids, and the lowest unused ones up to a multiple of 4,096.
    """
    train, flat = experiment.train, paths.flatten(params)
    if (
        TABLE not in flat
        or any("masked_lm" in path.split("/") for path in flat)
        or is_frozen(train.tuning, TABLE)
        or isinstance(train.tuning.weight_anchor, EWC)  # its Fisher values are of whole tables
        or not isinstance(train.optimizer, AdamW | Muon)
        or (token_ids := find_token_ids()) is None
    ):
        return None
    is_used = np.zeros(flat[TABLE].shape[0], bool)
    is_used[token_ids] = True
    used, unused = np.flatnonzero(is_used), np.flatnonzero(~is_used)
    num_rows = -(-len(used) // _MULTIPLE) * _MULTIPLE
    if 2 * num_rows > len(is_used):
        return None
    return np.sort(np.concatenate([used, unused[: num_rows - len(used)]])).astype(np.int32)


def take_rows(params: Any, rows: jax.Array | None) -> Any:
    """Returns parameters with `rows` of the token embeddings, [rows, D], instead of the table."""
    return params if rows is None else _with_table(params, paths.flatten(params)[TABLE][rows])


def insert_rows(trained: Any, params: Any, rows: jax.Array | None) -> Any:
    """Returns the result of `take_rows` with the whole table: of `params`, but for `rows`."""
    if rows is None:
        return trained
    values, table = paths.flatten(trained)[TABLE], paths.flatten(params)[TABLE]
    table = table.at[rows].set(values, indices_are_sorted=True, unique_indices=True)
    return _with_table(trained, table)


def mask_rows(trained: Any, rows: jax.Array | None) -> Any:
    """Returns the result of `take_rows` with `optax.MaskedNode()` instead of the rows."""
    return trained if rows is None else _with_table(trained, optax.MaskedNode())


def with_row_gradients(params: Any, trained: Any, rows: jax.Array | None) -> Any:
    """Returns parameters whose table has gradients for the rows of `trained` only.

    Args:
      params: has the same rows in its table, perhaps rounded to the dtype in which devices send
        gradients to each other.
    """
    if rows is None:
        return params
    table, values = paths.flatten(params)[TABLE], paths.flatten(trained)[TABLE]
    frozen, values = jax.lax.stop_gradient(table), values.astype(table.dtype)
    return _with_table(params, PartlyTrainedTable(frozen, rows, values))


def _with_table(params: Any, table: Any) -> Any:
    return paths.unflatten({**paths.flatten(params), TABLE: table})
