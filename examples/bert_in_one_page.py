"""Pretrains BERT in plain JAX: config, model, masking, loss and optimizer step on one page.

    python examples/bert_in_one_page.py FILE.txt

A model of a million parameters learns the words of the text, in about a minute on a laptop.
Parameters have the names that they have in `bert_jax`, and `tests/docs/bert_in_one_page_test.py`
checks that loss and gradients are those of the package. `bench/pretrain_step.py` measures how much
faster the package is.

B is the batch size, L the length of a sequence, D the hidden size, P the number of predictions.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = dict[str, Any]
Batch = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Configures the model; the default values are as in BERT-base."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    dropout: float = 0.1
    dtype: str = "float32"  # of the matrix products; parameters and norms stay in float32


# ---- Model ---------------------------------------------------------------------------------------


def init(config: Config, key: jax.Array) -> Params:
    """Returns random parameters: kernels truncated normal, biases 0, norms the identity."""
    keys = iter(jax.random.split(key, 6 * config.num_hidden_layers + 6))
    D, F = config.hidden_size, config.intermediate_size

    def normal(*shape: int) -> jax.Array:
        return 0.02 * jax.random.truncated_normal(next(keys), -2, 2, shape)

    def dense(inputs: int, outputs: int) -> Params:
        return {"kernel": normal(inputs, outputs), "bias": jnp.zeros(outputs)}

    def norm() -> Params:
        return {"scale": jnp.ones(D), "bias": jnp.zeros(D)}

    def layer() -> Params:
        return {
            "attention": {name: dense(D, D) for name in ("query", "key", "value", "output")},
            "attention_norm": norm(),
            "feed_forward": {"intermediate": dense(D, F), "output": dense(F, D)},
            "feed_forward_norm": norm(),
        }

    embeddings = {
        "word_embeddings": {"embedding": normal(config.vocab_size, D)},
        "position_embeddings": {"embedding": normal(config.max_position_embeddings, D)},
        "token_type_embeddings": {"embedding": normal(2, D)},
        "norm": norm(),
    }
    layers = {str(index): layer() for index in range(config.num_hidden_layers)}
    return {
        "encoder": {"embeddings": embeddings, "layers": layers},
        "pooler": {"dense": dense(D, D)},
        # The output table of masked LM is the table of the word embeddings; only a bias is added.
        "masked_lm": {
            "transform": dense(D, D),
            "norm": norm(),
            "bias": jnp.zeros(config.vocab_size),
        },
        "next_sentence": dense(D, 2),
    }


def dense(x: jax.Array, params: Params, config: Config) -> jax.Array:
    """Applies a linear layer in the dtype of the matrix products."""
    dtype = config.dtype
    return x.astype(dtype) @ params["kernel"].astype(dtype) + params["bias"].astype(dtype)


def layer_norm(x: jax.Array, params: Params) -> jax.Array:
    """Normalizes the last axis, in float32: a variance in bfloat16 would have 3 digits."""
    x = x.astype(jnp.float32)
    centered = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + 1e-12) * params["scale"] + params["bias"]


def gelu(x: jax.Array) -> jax.Array:
    """Computes x times the normal distribution function of x, exactly (not by tanh)."""
    return jax.nn.gelu(x, approximate=False)


def encode(params: Params, config: Config, batch: Batch, key: jax.Array | None) -> jax.Array:
    """Returns the last hidden states, float32 [B, L, D]; without a key there is no dropout."""
    keys = iter([]) if key is None else iter(jax.random.split(key, 3 * len(params["layers"]) + 1))

    def dropout(x: jax.Array) -> jax.Array:
        if key is None:
            return x
        is_kept = jax.random.bernoulli(next(keys), 1 - config.dropout, x.shape)
        return jnp.where(is_kept, x / (1 - config.dropout), 0).astype(x.dtype)

    B, L = batch["input_ids"].shape
    tables = params["embeddings"]
    x = (
        tables["word_embeddings"]["embedding"][batch["input_ids"]]
        + tables["position_embeddings"]["embedding"][:L]
        + tables["token_type_embeddings"]["embedding"][batch["token_type_ids"]]
    )
    x = dropout(layer_norm(x, tables["norm"]))
    # Added to the scores, so that no token attends to padding; the same for all heads and queries.
    padding_bias = jnp.where(batch["attention_mask"][:, None, None, :] > 0, 0.0, -1e9)

    for index in range(config.num_hidden_layers):
        layer = params["layers"][str(index)]
        query, key_, value = (
            dense(x, layer["attention"][name], config).reshape(B, L, config.num_attention_heads, -1)
            for name in ("query", "key", "value")
        )
        # h is the head, q a query and k a key. The softmax is in float32, like the norms.
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key_).astype(jnp.float32)
        scores = scores / np.sqrt(query.shape[-1], dtype=np.float32) + padding_bias
        weights = dropout(jax.nn.softmax(scores)).astype(config.dtype)
        context = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(B, L, -1)
        output = dropout(dense(context, layer["attention"]["output"], config))
        # The norm follows the sum, as in the first transformers ("post-norm").
        x = layer_norm(x + output.astype(jnp.float32), layer["attention_norm"])

        inner = gelu(dense(x, layer["feed_forward"]["intermediate"], config))
        output = dropout(dense(inner, layer["feed_forward"]["output"], config))
        x = layer_norm(x + output.astype(jnp.float32), layer["feed_forward_norm"])
    return x


# ---- Loss ----------------------------------------------------------------------------------------


def compute_loss(
    params: Params, config: Config, batch: Batch, key: jax.Array | None = None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns the sum of both losses, and both: masked LM and next-sentence prediction."""
    x = encode(params["encoder"], config, batch, key)

    # Masked LM: only the selected positions [B, P] are predicted, 15 % of all, because a vocabulary
    # of 30,000 tokens makes the last product as expensive as several layers.
    head = params["masked_lm"]
    selected = jnp.take_along_axis(x, batch["masked_lm_positions"][..., None], axis=1)
    selected = layer_norm(gelu(dense(selected, head["transform"], config)), head["norm"])
    table = params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    logits = selected.astype(config.dtype) @ table.T.astype(config.dtype)
    logits = logits.astype(jnp.float32) + head["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["masked_lm_ids"])
    # Rows have different numbers of predictions: the mean is over those of the whole batch.
    weights = batch["masked_lm_weights"]
    masked_lm_loss = jnp.sum(losses * weights) / jnp.sum(weights)

    # Next-sentence prediction: two classes from the hidden state of the first token, [CLS].
    pooled = jnp.tanh(dense(x[:, 0], params["pooler"]["dense"], config))
    logits = dense(pooled, params["next_sentence"], config).astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["next_sentence_labels"])
    next_sentence_loss = losses.mean()
    return masked_lm_loss + next_sentence_loss, (masked_lm_loss, next_sentence_loss)


# ---- Optimizer step ------------------------------------------------------------------------------


def make_optimizer(learning_rate: Any = 1e-4) -> optax.GradientTransformation:
    """Returns AdamW as for BERT: clipped gradients, no decay of biases and norms."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            learning_rate,
            eps=1e-6,
            weight_decay=0.01,
            mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        ),
    )


def make_step(config: Config, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Returns step(params, state, batch, key) -> (params, state, loss, both losses)."""

    def step(params: Params, state: Any, batch: Batch, key: jax.Array) -> Any:
        loss_and_gradients = jax.value_and_grad(compute_loss, has_aux=True)
        (loss, losses), gradients = loss_and_gradients(params, config, batch, key)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss, losses

    # Donated arrays are reused for the results, so that a step does not need twice the memory.
    return jax.jit(step, donate_argnums=(0, 1))


# ---- Data ----------------------------------------------------------------------------------------

PAD, UNK, CLS, SEP, MASK = range(5)
NUM_SPECIAL_TOKENS = 5


def read_documents(text: str, max_words: int = 4000) -> tuple[list[list[list[int]]], int]:
    """Returns documents, which are lists of sentences of token ids, and the vocabulary size.

    Documents end at empty lines and tokens are words: a simple stand-in for WordPiece.
    """
    documents = [
        [re.findall(r"\w+|[^\w\s]", sentence) for sentence in re.split(r"(?<=[.!?])\s+", document)]
        for document in re.split(r"\n\s*\n", text.lower())
    ]
    documents = [document for document in documents if len(document) > 1]
    if not documents:
        raise SystemExit("found no paragraph of two sentences; expected a longer text")
    counts = Counter(word for document in documents for sentence in document for word in sentence)
    words = [word for word, _ in counts.most_common(max_words)]
    ids = {word: index for index, word in enumerate(words, NUM_SPECIAL_TOKENS)}
    to_ids = [[[ids.get(w, UNK) for w in sentence] for sentence in doc] for doc in documents]
    return to_ids, len(words) + NUM_SPECIAL_TOKENS


def mask_tokens(ids: np.ndarray, vocab_size: int, P: int, rng: np.random.Generator) -> Batch:
    """Selects 15 % of the tokens: 80 % become [MASK], 10 % a random token, 10 % stay as they are.

    Some stay, because [MASK] does not occur in fine-tuning: the model has to look at every token.
    """
    candidates = rng.permutation(np.flatnonzero((ids == UNK) | (ids >= NUM_SPECIAL_TOKENS)))
    count = min(P, max(1, round(0.15 * len(candidates))))
    positions, labels = np.zeros(P, np.int32), np.zeros(P, np.int32)
    positions[:count] = np.sort(candidates[:count])
    labels[:count] = ids[positions[:count]]
    masked = ids.copy()
    for position in positions[:count]:
        draw = rng.random()
        if draw < 0.8:
            masked[position] = MASK
        elif draw < 0.9:
            masked[position] = rng.integers(NUM_SPECIAL_TOKENS, vocab_size)
    return {
        "input_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": (np.arange(P) < count).astype(np.float32),  # 0: an unused entry
    }


def make_example(documents: Any, vocab_size: int, L: int, P: int, rng: Any) -> Batch:
    """Makes [CLS] A [SEP] B [SEP]; in half of the examples, B is a random sentence."""
    document = documents[rng.integers(len(documents))]
    index = rng.integers(len(document) - 1)
    a, b, label = document[index], document[index + 1], 0
    if rng.random() < 0.5:
        document = documents[rng.integers(len(documents))]
        b, label = document[rng.integers(len(document))], 1
    a = a[: (L - 3) // 2]
    b = b[: L - 3 - len(a)]
    tokens = [CLS, *a, SEP, *b, SEP]
    ids, token_type_ids = np.full(L, PAD, np.int32), np.zeros(L, np.int32)
    ids[: len(tokens)] = tokens
    token_type_ids[len(a) + 2 : len(tokens)] = 1
    return {
        "token_type_ids": token_type_ids,
        "attention_mask": (np.arange(L) < len(tokens)).astype(np.int32),
        "next_sentence_labels": np.int32(label),
        **mask_tokens(ids, vocab_size, P, rng),
    }


def train(
    text: str, steps: int = 300, B: int = 32, L: int = 64, print_every: int = 20
) -> list[np.ndarray]:
    """Pretrains a small model, prints the mean losses, and returns both losses of every step."""
    documents, vocab_size = read_documents(text)
    config = Config(
        vocab_size=vocab_size,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=L,
    )
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, max(1, steps // 10), steps)
    optimizer = make_optimizer(schedule)
    step = make_step(config, optimizer)
    params = init(config, jax.random.key(0))
    state, rng, history = optimizer.init(params), np.random.default_rng(0), []
    for index in range(steps):
        examples = [make_example(documents, vocab_size, L, L // 6, rng) for _ in range(B)]
        batch = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
        key = jax.random.fold_in(jax.random.key(1), index)
        params, state, _, losses = step(params, state, batch, key)
        history.append(np.array(losses))
        if (index + 1) % print_every == 0:
            masked_lm, next_sentence = np.mean(history[-print_every:], axis=0)
            print(
                f"{index + 1} steps: masked LM {masked_lm:.3f}, next sentence {next_sentence:.3f}"
            )
    return history


if __name__ == "__main__":
    train(Path(sys.argv[1]).read_text(encoding="utf-8"))
