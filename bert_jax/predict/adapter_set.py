"""Runs one base with several adapters: each example of a batch is computed with its own adapter.

adapters = {name: read_adapter(f"runs/{name}") for name in ("mrpc", "rte")}
adapter_set = AdapterSet(load_model("base"), adapters)
adapter_set(batch, ["mrpc", "rte", "mrpc"])  # one name for each example of the batch
adapter_set.replace("rte", read_adapter("runs/rte-2"))  # compiles nothing
"""

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.batch import encoder_inputs
from bert_jax.config.objectives import FineTuning
from bert_jax.errors import UserError, did_you_mean
from bert_jax.models.adapters.config import Adapter, LoRA, PromptTuning
from bert_jax.models.adapters.modules import group_adapter
from bert_jax.models.heads.config import TaskHead, label_tokens_of, num_outputs, window_encoder_of
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER
from bert_jax.pretrained.base_model import TrainedAdapter
from bert_jax.pretrained.load import AnyModel, require_encoder
from bert_jax.tasks.losses import HeadOutputs


class AdapterSet:
    """Holds a base on the device, and adapters with their heads, stacked along a first axis.

    The adapters of a set have the same method and heads of the same kind and size. LoRA adapters
    may have different ranks and targets: smaller matrices are padded with zeros.
    """

    def __init__(self, base: AnyModel, adapters: Mapping[str, TrainedAdapter]):
        """Copies the base and the adapters to the device.

        Raises:
          UserError: an adapter was trained on another base, or the adapters do not fit each other.
        """
        if not adapters:
            raise UserError("a set of adapters needs at least one adapter")
        base = require_encoder(base, "have adapters")
        self._names, self._base = list(adapters), base
        self._fingerprint = paths.fingerprint(base.params["encoder"])
        first = next(iter(adapters.values()))
        self._head, self._method = first.head, _common_method(list(adapters.values()))
        for name, adapter in adapters.items():
            self._check(name, adapter)
        objective = FineTuning(model=base.config, head=self._head)
        self._objective = FineTuningObjective(objective, self._method)
        self._expected = group_adapter(self._objective.abstract()[ADAPTER])
        trees = [self._trees(name, adapter) for name, adapter in adapters.items()]
        self._encoder = jax.device_put(base.params["encoder"])
        self._stacked: Any = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
        single_head = FineTuningObjective(objective)
        self.compute = jax.jit(functools.partial(_compute_outputs, self._objective, single_head))

    def __call__(
        self, batch: Mapping[str, np.ndarray], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Computes the outputs of the head for each example, by the names of `predict`.

        Args:
          batch: the fields that the objective of the head reads; see `bert_jax.batch`.
          names: the adapter of each example.

        Raises:
          UserError: there is no adapter of that name.
          ConfigError: an adapted layer also maps vectors that all examples share, as the query and
            key of DeBERTa do.
        """
        rows = np.array([self.index(name) for name in names], np.int32)
        return jax.device_get(self.compute(self._encoder, self._stacked, dict(batch), rows))

    def replace(self, name: str, adapter: TrainedAdapter) -> None:
        """Replaces the adapter called `name`; all shapes stay, so that nothing is compiled.

        Raises:
          UserError: the new adapter was trained on another base or does not fit into the set.
        """
        index = self.index(name)
        self._check(name, adapter)
        self._stacked = jax.tree.map(
            lambda stacked, leaf: stacked.at[index].set(leaf),
            self._stacked,
            self._trees(name, adapter),
        )

    @property
    def parameters(self) -> tuple[Any, Any]:
        """Returns the base and the stacked adapters, the first two arguments of `compute`."""
        return self._encoder, self._stacked

    @property
    def bytes_per_adapter(self) -> int:
        """Returns the bytes of one adapter and its head on the device."""
        total = sum(leaf.nbytes for leaf in jax.tree.leaves(self._stacked))
        return total // len(self._names)

    def index(self, name: str) -> int:
        """Returns the index of an adapter in the set; UserError if there is none of this name."""
        if name not in self._names:
            hint = did_you_mean(name, self._names) or f"expected one of {', '.join(self._names)}"
            raise UserError(f"there is no adapter {name!r} in the set; {hint}".rstrip())
        return self._names.index(name)

    def _check(self, name: str, adapter: TrainedAdapter) -> None:
        if adapter.base.fingerprint != self._fingerprint:
            raise UserError(
                f"the adapter {name!r} ({adapter.path}) was trained on the base "
                f"{adapter.base.path} with the fingerprint {adapter.base.fingerprint[:12]}, but "
                f"{self._base.path} has {self._fingerprint[:12]}; load the base of the adapter"
            )
        if _head_shape(adapter.head) != _head_shape(self._head):
            raise UserError(
                f"the adapter {name!r} ({adapter.path}) has the head {adapter.head}, but the first "
                f"one of the set has {self._head}; expected heads of the same kind and size"
            )
        if window_encoder_of(adapter.head) is not None:
            raise UserError(
                f"the adapter {name!r} ({adapter.path}) has a hierarchical head, which a set of "
                "adapters does not support; use bert-jax predict"
            )
        if label_tokens_of(adapter.head) is not None:
            raise UserError(
                f"the adapter {name!r} ({adapter.path}) was trained to predict label words at a "
                "mask token, which a set of adapters does not support; use bert-jax predict"
            )
        if "encoder" in adapter.head_params:
            raise UserError(
                f"the adapter {name!r} ({adapter.path}) is {type(adapter.method).__name__}, which "
                "also trains LayerNorms of the base; a set of adapters shares one base; use "
                "bert-jax predict, or train adapters that leave the base as it is, such as "
                "--method pfeiffer"
            )
        if _comparable(adapter.method) != _comparable(self._method):
            raise UserError(
                f"the adapter {name!r} ({adapter.path}) is {adapter.method}, but those of the set "
                f"are {self._method}; expected the same method"
            )

    def _trees(self, name: str, adapter: TrainedAdapter) -> dict[str, Any]:
        """Returns the parameters of an adapter with the shapes of the set, and of its head."""
        found, padded = group_adapter(adapter.params), {}
        scale = adapter.method.scale if isinstance(adapter.method, LoRA) else 1.0
        if surplus := sorted(found.keys() - self._expected.keys()):
            raise UserError(
                f"the adapter {name!r} ({adapter.path}) adapts {surplus[0]}, which no adapter did "
                "when the set was made; make a new set with it"
            )
        for path, leaves in self._expected.items():
            for leaf_name, expected in leaves.items():
                leaf = found.get(path, {}).get(leaf_name)
                if leaf is None and leaf_name == "magnitude":
                    raise UserError(
                        f"the adapter {name!r} ({adapter.path}) does not adapt {path}; expected "
                        "DoRA adapters with the same targets"
                    )
                leaf = np.zeros((0,) * len(expected.shape), np.float32) if leaf is None else leaf
                if any(a > b for a, b in zip(leaf.shape, expected.shape, strict=True)):
                    raise UserError(
                        f"the adapter {name!r} ({adapter.path}) has {leaf_name} of shape "
                        f"{list(leaf.shape)} at {path}, but the set was made for at most "
                        f"{list(expected.shape)}; make a new set with it"
                    )
                missing = zip(expected.shape, leaf.shape, strict=True)
                leaf = np.pad(np.asarray(leaf), [(0, a - b) for a, b in missing])
                # The set has the scale 1, so that adapters of different scales fit.
                scaled = leaf_name in ("lora_b", "lora_embedding_b")
                padded[f"{path}/{leaf_name}"] = leaf * np.float32(scale) if scaled else leaf
        return {"adapter": paths.unflatten(padded), "head": adapter.head_params}


def _common_method(adapters: Sequence[TrainedAdapter]) -> Adapter:
    """Returns the method of the set: for LoRA, the largest rank, all targets and the scale 1."""
    method = adapters[0].method
    if not isinstance(method, LoRA):
        return method
    lora = [adapter.method for adapter in adapters if isinstance(adapter.method, LoRA)]
    rank = max(each.rank for each in lora)
    return dataclasses.replace(
        method,
        rank=rank,
        alpha=float(rank),
        scaling="alpha_over_rank",
        dropout=0.0,
        targets=tuple(dict.fromkeys(target for each in lora for target in each.targets)),
    )


def set_key(adapter: TrainedAdapter) -> Hashable:
    """Returns what must be equal for two adapters of a set: kind and size of head, and method."""
    return _head_shape(adapter.head), _comparable(adapter.method)


def _comparable(method: Adapter) -> Any:
    """Returns what must be equal for two adapters of a set."""
    if isinstance(method, LoRA):
        return type(method)
    if isinstance(method, PromptTuning):  # the text from which training started does not matter
        return dataclasses.replace(method, initial_ids=())
    return method


def _head_shape(head: TaskHead) -> tuple[type[Any], int]:
    return type(head), num_outputs(head)


def _compute_outputs(
    objective: FineTuningObjective,
    plain: FineTuningObjective,
    encoder: Any,
    stacked: Any,
    batch: dict[str, Any],
    rows: jax.Array,
) -> HeadOutputs:
    """Computes the outputs of the head of each example; `rows` has the index of its adapter."""
    # A question with A choices is A sequences.
    num_sequences = encoder_inputs(batch)["input_ids"].shape[0]
    rows = jnp.repeat(rows, num_sequences // rows.shape[0])
    adapters, heads = (
        jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0), stacked[name])
        for name in ("adapter", "head")
    )
    any_head = jax.tree.map(lambda leaf: leaf[0], stacked["head"])
    network = objective.network.merge({"encoder": encoder, ADAPTER: adapters, **any_head})
    hidden, mask = objective.hidden_states(network, batch, None), objective.token_mask(batch)

    def logits_of_one(head: Any, hidden_LD: jax.Array, mask_L: jax.Array) -> jax.Array:
        module = plain.network.merge({"encoder": encoder, **head})
        return module.task_logits(hidden_LD[None], mask_L[None])[0]

    return objective.spec.make_outputs(jax.vmap(logits_of_one)(heads, hidden, mask), batch)
