"""BERT pretraining as one would first write it in JAX: the yardstick of what `bert_jax` adds.

No custom derivatives and no care for layouts: einsum and `@`, `jax.random.bernoulli` for dropout,
autodiff through everything, `optax.adamw`. Network, loss and masked positions are `bert_jax`'s.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.models.config import BertConfig

Params = dict[str, Any]


def init(config: BertConfig, key: jax.Array) -> Params:
    """Random parameters, float32."""
    keys = iter(jax.random.split(key, 1000))
    width, inner = config.hidden_size, config.intermediate_size

    def table(*shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    def linear(rows: int, columns: int) -> Params:
        return {"kernel": table(rows, columns), "bias": jnp.zeros(columns)}

    def norm() -> Params:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def layer() -> Params:
        parts = {name: linear(width, width) for name in ("query", "key", "value", "out")}
        up, down = linear(width, inner), linear(inner, width)
        return {**parts, "norm_1": norm(), "up": up, "down": down, "norm_2": norm()}

    return {
        "tokens": table(config.vocab_size, width),
        "positions": table(config.positions.max_length, width),
        "types": table(config.type_vocab_size, width),
        "norm": norm(),
        "layers": [layer() for _ in range(config.num_hidden_layers)],
        "pooler": linear(width, width),
        "transform": linear(width, width),
        "transform_norm": norm(),
        "output_bias": jnp.zeros(config.vocab_size),
        "next_sentence": linear(width, 2),
    }


def make_step(config: BertConfig, dtype: Any) -> tuple[Callable[..., Any], Any]:
    """(train step, optimizer): step(params, opt_state, batch, key) -> (params, opt_state, loss)."""
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            1e-4,
            eps=1e-6,
            weight_decay=0.01,
            mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        ),
    )

    def step(params: Params, state: Any, batch: Any, key: jax.Array) -> Any:
        value, grads = jax.value_and_grad(_loss)(params, config, batch, key, dtype)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnums=(0, 1)), optimizer


def _loss(params: Params, config: BertConfig, batch: Any, key: jax.Array, dtype: Any) -> jax.Array:
    keys = iter(jax.random.split(key, 1000))

    def linear(x: jax.Array, part: Params) -> jax.Array:
        return x.astype(dtype) @ part["kernel"].astype(dtype) + part["bias"].astype(dtype)

    def norm(x: jax.Array, part: Params) -> jax.Array:
        x = x.astype(jnp.float32)
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-12) * part["scale"] + part["bias"]

    def drop(x: jax.Array, rate: float) -> jax.Array:
        keep = jax.random.bernoulli(next(keys), 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)

    ids = batch["input_ids"]
    rows, length = ids.shape
    heads = config.num_attention_heads
    x = (
        params["tokens"][ids]
        + params["positions"][:length]
        + params["types"][batch["token_type_ids"]]
    )
    x = drop(norm(x, params["norm"]), config.hidden_dropout)
    bias = jnp.where(batch["attention_mask"][:, None, None, :] > 0, 0.0, -1e9)
    for layer in params["layers"]:
        q, k, v = (
            linear(x, layer[name]).reshape(rows, length, heads, -1)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        weights = jax.nn.softmax(scores / jnp.sqrt(q.shape[-1]).astype(jnp.float32) + bias)
        weights = drop(weights, config.attention_dropout).astype(dtype)
        context = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(rows, length, -1)
        attended = drop(linear(context, layer["out"]), config.hidden_dropout)
        x = norm(x + attended.astype(jnp.float32), layer["norm_1"])
        inner = jax.nn.gelu(linear(x, layer["up"]), approximate=False)
        fed = drop(linear(inner, layer["down"]), config.hidden_dropout)
        x = norm(x + fed.astype(jnp.float32), layer["norm_2"])

    picked = jnp.take_along_axis(x, batch["masked_lm_positions"][..., None], axis=1)
    picked = jax.nn.gelu(linear(picked, params["transform"]), approximate=False)
    picked = norm(picked, params["transform_norm"])
    logits = picked.astype(dtype) @ params["tokens"].T.astype(dtype)
    logits = logits.astype(jnp.float32) + params["output_bias"]
    each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["masked_lm_ids"])
    weight = batch["masked_lm_weights"]
    masked = jnp.sum(each * weight) / jnp.sum(weight)
    pooled = jnp.tanh(linear(x[:, 0], params["pooler"]))
    next_sentence = optax.softmax_cross_entropy_with_integer_labels(
        linear(pooled, params["next_sentence"]).astype(jnp.float32), batch["next_sentence_labels"]
    )
    return masked + next_sentence.mean()
