"""Writes pooling and what follows it in a sentence encoder as ONNX operations."""

import numpy as np

from bert_jax.export.onnx.graph import GraphBuilder
from bert_jax.export.onnx.layers import activate, dense, length_of, positions
from bert_jax.models.sentence_encoder.config import (
    SENTENCE_HEAD,
    Dense,
    Normalize,
    PoolingMode,
    SentenceEncoderConfig,
)

_LOWEST = float(np.finfo(np.float32).min)


def sentence_embedding(
    graph: GraphBuilder, config: SentenceEncoderConfig, hidden: str, attention_mask: str
) -> str:
    """Writes a sentence encoder's vectors, [B, L, D] -> [B, E], cut to `truncate_dim`."""
    pooled = [_pool(graph, hidden, attention_mask, mode) for mode in config.pooling]
    vectors = pooled[0] if len(pooled) == 1 else graph.add("Concat", *pooled, axis=-1)
    index = 0
    for module in config.modules:
        match module:
            case Dense(activation=activation):
                vectors = dense(graph, vectors, f"{SENTENCE_HEAD}/dense/{index}")
                index += 1
                if activation is not None:
                    vectors = activate(graph, vectors, activation)
            case Normalize():
                norm = graph.add("ReduceL2", vectors, graph.integers(-1), keepdims=1)
                vectors = graph.add("Div", vectors, graph.add("Max", norm, graph.scalar(1e-12)))
    if config.truncate_dim is None:
        return vectors
    start, axis = graph.integers(0), graph.integers(1)
    return graph.add("Slice", vectors, start, graph.integers(config.truncate_dim), axis)


def first_token(graph: GraphBuilder, hidden: str) -> str:
    """Returns the states of the first tokens, [B, L, D] -> [B, D]."""
    return graph.add("Gather", hidden, graph.constant(0, np.int64), axis=1)


def mean_of_tokens(graph: GraphBuilder, hidden: str, attention_mask: str) -> str:
    """Returns the mean over real tokens, [B, L, D] -> [B, D]; 0 for a row of padding."""
    return _weighted_mean(graph, hidden, _mask(graph, attention_mask))


def _pool(graph: GraphBuilder, hidden: str, attention_mask: str, mode: PoolingMode) -> str:
    mask = _mask(graph, attention_mask)
    match mode:
        case "cls":
            return first_token(graph, hidden)
        case "mean":
            return _weighted_mean(graph, hidden, mask)
        case "mean_sqrt_len_tokens":
            root = graph.add("Sqrt", _clip_to_one(graph, _sum(graph, mask)))
            return graph.add("Div", _sum(graph, graph.add("Mul", hidden, mask)), root)
        case "weightedmean":
            return _weighted_mean(graph, hidden, graph.add("Mul", mask, _from_one(graph, hidden)))
        case "max":
            # Where and not Add: a large negative number plus a state loses the state's digits.
            real = graph.add("Cast", mask, to=9)
            masked = graph.add("Where", real, hidden, graph.scalar(_LOWEST))
            return graph.add("ReduceMax", masked, graph.integers(1), keepdims=0)
        case "lasttoken":
            # The last real token has the largest position; all others are weighted with 0.
            ranks = graph.add("Mul", mask, _from_one(graph, hidden))
            last = graph.add("ReduceMax", ranks, graph.integers(1), keepdims=1)
            is_last = graph.add("Cast", graph.add("Equal", ranks, last), to=1)
            return _weighted_mean(graph, hidden, graph.add("Mul", mask, is_last))


def _mask(graph: GraphBuilder, attention_mask: str) -> str:
    """Returns the attention mask as float32 [B, L, 1]."""
    return graph.add("Cast", graph.add("Unsqueeze", attention_mask, graph.integers(2)), to=1)


def _from_one(graph: GraphBuilder, hidden: str) -> str:
    """Returns the positions of tokens from 1, float32 [L, 1]."""
    position = graph.add("Unsqueeze", positions(graph, length_of(graph, hidden)), graph.integers(1))
    return graph.add("Add", graph.add("Cast", position, to=1), graph.scalar(1.0))


def _weighted_mean(graph: GraphBuilder, hidden: str, weights: str) -> str:
    total = _sum(graph, graph.add("Mul", hidden, weights))
    return graph.add("Div", total, _clip_to_one(graph, _sum(graph, weights)))


def _sum(graph: GraphBuilder, x: str) -> str:
    """Sums over the tokens, [B, L, D] -> [B, D]."""
    return graph.add("ReduceSum", x, graph.integers(1), keepdims=0)


def _clip_to_one(graph: GraphBuilder, x: str) -> str:
    return graph.add("Max", x, graph.scalar(1.0))
