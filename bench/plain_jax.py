"""Implements BERT pretraining in plain JAX, the baseline for what `bert_jax` optimizes.

There are no custom derivatives and no tuned layouts: einsum and `@`, `jax.random.bernoulli` for
dropout, autodiff everywhere, and `optax.adamw`. Network, loss, and masked positions are the same as
in `bert_jax`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.models.bert.config import BertConfig

Params = dict[str, Any]


def init(config: BertConfig, key: jax.Array) -> Params:
    """Initializes random float32 parameters."""
    keys = iter(jax.random.split(key, 1000))
    hidden_size, intermediate_size = config.hidden_size, config.intermediate_size

    def normal(*shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    def linear(rows: int, columns: int) -> Params:
        return {"kernel": normal(rows, columns), "bias": jnp.zeros(columns)}

    def norm() -> Params:
        return {"scale": jnp.ones(hidden_size), "bias": jnp.zeros(hidden_size)}

    def layer() -> Params:
        parts = {
            name: linear(hidden_size, hidden_size) for name in ("query", "key", "value", "out")
        }
        up, down = linear(hidden_size, intermediate_size), linear(intermediate_size, hidden_size)
        return {**parts, "norm_1": norm(), "up": up, "down": down, "norm_2": norm()}

    return {
        "tokens": normal(config.vocab_size, hidden_size),
        "positions": normal(config.positions.max_position_embeddings, hidden_size),
        "types": normal(config.type_vocab_size, hidden_size),
        "norm": norm(),
        "layers": [layer() for _ in range(config.num_hidden_layers)],
        "pooler": linear(hidden_size, hidden_size),
        "transform": linear(hidden_size, hidden_size),
        "transform_norm": norm(),
        "output_bias": jnp.zeros(config.vocab_size),
        "next_sentence": linear(hidden_size, 2),
    }


def make_step(config: BertConfig, dtype: Any) -> tuple[Callable[..., Any], Any]:
    """Returns (step, optimizer); step(params, state, batch, key) -> (params, state, loss)."""
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
        loss, grads = jax.value_and_grad(_loss)(params, config, batch, key, dtype)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return jax.jit(step, donate_argnums=(0, 1)), optimizer


def _loss(params: Params, config: BertConfig, batch: Any, key: jax.Array, dtype: Any) -> jax.Array:
    keys = iter(jax.random.split(key, 1000))

    def linear(x: jax.Array, part: Params) -> jax.Array:
        return x.astype(dtype) @ part["kernel"].astype(dtype) + part["bias"].astype(dtype)

    def norm(x: jax.Array, part: Params) -> jax.Array:
        x = x.astype(jnp.float32)
        centered = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centered).mean(-1, keepdims=True)
        return centered * jax.lax.rsqrt(variance + 1e-12) * part["scale"] + part["bias"]

    def dropout(x: jax.Array, rate: float) -> jax.Array:
        keep = jax.random.bernoulli(next(keys), 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)

    ids = batch["input_ids"]
    batch_size, length = ids.shape
    heads = config.num_attention_heads
    x = (
        params["tokens"][ids]
        + params["positions"][:length]
        + params["types"][batch["token_type_ids"]]
    )
    x = dropout(norm(x, params["norm"]), config.hidden_dropout_prob)
    bias = jnp.where(batch["attention_mask"][:, None, None, :] > 0, 0.0, -1e9)
    for layer in params["layers"]:
        q, k, v = (
            linear(x, layer[name]).reshape(batch_size, length, heads, -1)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        weights = jax.nn.softmax(scores / jnp.sqrt(q.shape[-1]).astype(jnp.float32) + bias)
        weights = dropout(weights, config.attention_probs_dropout_prob).astype(dtype)
        context = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch_size, length, -1)
        attn_out = dropout(linear(context, layer["out"]), config.hidden_dropout_prob)
        x = norm(x + attn_out.astype(jnp.float32), layer["norm_1"])
        inner = jax.nn.gelu(linear(x, layer["up"]), approximate=False)
        ffn_out = dropout(linear(inner, layer["down"]), config.hidden_dropout_prob)
        x = norm(x + ffn_out.astype(jnp.float32), layer["norm_2"])

    predicted = jnp.take_along_axis(x, batch["masked_lm_positions"][..., None], axis=1)
    predicted = jax.nn.gelu(linear(predicted, params["transform"]), approximate=False)
    predicted = norm(predicted, params["transform_norm"])
    logits = predicted.astype(dtype) @ params["tokens"].T.astype(dtype)
    logits = logits.astype(jnp.float32) + params["output_bias"]
    token_losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["masked_lm_ids"])
    prediction_weights = batch["masked_lm_weights"]
    mlm_loss = jnp.sum(token_losses * prediction_weights) / jnp.sum(prediction_weights)
    pooled = jnp.tanh(linear(x[:, 0], params["pooler"]))
    next_sentence = optax.softmax_cross_entropy_with_integer_labels(
        linear(pooled, params["next_sentence"]).astype(jnp.float32), batch["next_sentence_labels"]
    )
    return mlm_loss + next_sentence.mean()
