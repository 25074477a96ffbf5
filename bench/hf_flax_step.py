"""Compiles Hugging Face's last Flax BERT for a TPU slice; a subprocess of `bench/tpu_compile.py`.

It runs in an environment with transformers 4.x, because version 5 removed Flax models. The step is
that of `run_mlm_flax.py`: logits at all positions, one-hot labels, AdamW, a bfloat16 model with
float32 parameters, gradients summed over all devices; in addition, next-sentence prediction.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers import BertConfig, FlaxBertForPreTraining  # type: ignore[attr-defined]

from bert_jax.apps.plan.compile import compile_report, topology
from bert_jax.parallel.tpu_slices import find_slice


def main() -> None:
    """Reads the request from standard input and writes the report to its `output` file."""
    request = json.load(sys.stdin)
    batch_size, seq_length = request["batch_size"], request["seq_length"]
    model = FlaxBertForPreTraining(
        BertConfig(**request["config"]), _do_init=False, dtype=jnp.bfloat16
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))
    devices = np.asarray(topology(find_slice(request["slice"])).devices).reshape(-1)
    mesh = Mesh(devices, ("data",))
    replicated, data_sharded = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("data")),
    )

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        out = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
            params=params,
            dropout_rng=key,
            train=True,
        )
        labels = batch["labels"]
        label_mask = (labels >= 0).astype(jnp.float32)
        one_hot = jax.nn.one_hot(labels, out.prediction_logits.shape[-1])
        mlm_loss = optax.softmax_cross_entropy(out.prediction_logits.astype(jnp.float32), one_hot)
        nsp_loss = optax.softmax_cross_entropy_with_integer_labels(
            out.seq_relationship_logits.astype(jnp.float32), batch["next_sentence_label"]
        )
        return (mlm_loss * label_mask).sum() / label_mask.sum() + nsp_loss.mean()

    def step(params: Any, state: Any, batch: Any, seed: jax.Array) -> tuple[Any, Any]:
        grads = jax.grad(loss)(params, batch, jax.random.key(seed))
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def with_sharding(tree: Any, leaf_sharding: NamedSharding) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf_sharding), tree
        )

    params = jax.eval_shape(lambda key: model.init_weights(key, (1, seq_length)), jax.random.key(0))
    state = jax.eval_shape(optimizer.init, params)
    ids = jax.ShapeDtypeStruct((batch_size, seq_length), jnp.int32)
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    batch = {name: ids for name in names}
    batch["next_sentence_label"] = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    lowered = jax.jit(step, donate_argnums=(0, 1), out_shardings=(replicated, replicated)).lower(
        with_sharding(params, replicated),
        with_sharding(state, replicated),
        with_sharding(batch, data_sharded),
        np.int32(0),
    )
    Path(request["output"]).write_text(json.dumps(compile_report(lowered)), encoding="utf-8")


if __name__ == "__main__":
    main()
