"""Writes heads, pooling and what follows it in a sentence encoder as ONNX operations."""

import numpy as np
import onnx

from bert_jax.export.onnx.encoder import encoder_states
from bert_jax.export.onnx.layers import (
    GraphBuilder,
    activate,
    dense,
    layer_norm,
    length_of,
    positions,
)
from bert_jax.export.outputs import SPAN_OUTPUTS, HiddenStates, MaskedLMLogits, ShippedNetwork
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    LinearClassifier,
    PoolerClassifier,
    PredictionHeadClassifier,
    TaskHead,
    classifier_layers,
    head_param_name,
    reads_one_vector,
)
from bert_jax.models.sentence_encoder.config import (
    SENTENCE_HEAD,
    Dense,
    Normalize,
    PoolingMode,
    SentenceEncoderConfig,
)
from bert_jax.params import paths

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
                # 1e-12 is the epsilon of PyTorch's `normalize`, which sentence-transformers
                # calls.
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
    # At least 1, so that a row of padding gives zeros and not NaN.
    return graph.add("Div", total, _clip_to_one(graph, _sum(graph, weights)))


def _sum(graph: GraphBuilder, x: str) -> str:
    """Sums over the tokens, [B, L, D] -> [B, D]."""
    return graph.add("ReduceSum", x, graph.integers(1), keepdims=0)


def _clip_to_one(graph: GraphBuilder, x: str) -> str:
    return graph.add("Max", x, graph.scalar(1.0))


Values = dict[str, str]


def build_graph(network: ShippedNetwork) -> onnx.ModelProto:
    """Writes a network of a family that `check_family` accepts as an ONNX graph.

    Its inputs and outputs are as in `export/outputs.py`.
    """
    graph, config = GraphBuilder(paths.flatten(network.params)), network.config
    inputs: Values = {name: name for name in network.input_names}
    if network.has_choices:
        inputs = {name: _without_choices(graph, name) for name in inputs}
    hidden = encoder_states(graph, config, inputs)
    outputs = _outputs(graph, network, hidden, inputs["attention_mask"])
    for name, value in outputs.items():
        graph.rename(value, name)
    return graph.model(dict.fromkeys(inputs, network.input_dims), network.output_dims)


def _without_choices(graph: GraphBuilder, name: str) -> str:
    """Makes the choices of all examples one batch: [B, A, L] -> [B x A, L]."""
    length = graph.add("Shape", name, start=2, end=3)
    shape = graph.add("Concat", graph.integers(-1), length, axis=0)
    return graph.add("Reshape", name, shape)


def _outputs(
    graph: GraphBuilder, network: ShippedNetwork, hidden: str, attention_mask: str
) -> Values:
    config = network.config
    match network.output:
        case HiddenStates():
            return {"last_hidden_state": hidden}
        case MaskedLMLogits():
            return {"logits": _masked_lm_logits(graph, config, hidden)}
        case SentenceEncoderConfig() as sentence:
            vectors = sentence_embedding(graph, sentence, hidden, attention_mask)
            return {"last_hidden_state": hidden, "sentence_embedding": vectors}
        case head:
            logits = _task_logits(graph, config, head, hidden, attention_mask)
    if head.scope == "span":
        return {
            name: graph.add("Gather", logits, graph.constant(index, np.int64), axis=2)
            for index, name in enumerate(SPAN_OUTPUTS)
        }
    if head.scope == "choices":
        shape = graph.add("Shape", "input_ids", start=0, end=2)
        return {"logits": graph.add("Reshape", logits, shape)}
    return {"logits": logits}


def _masked_lm_logits(graph: GraphBuilder, config: EncoderConfig, hidden: str) -> str:
    if config.masked_lm_transform == "own":
        hidden = dense(graph, hidden, "masked_lm/transform")
        hidden = activate(graph, hidden, config.masked_lm_activation)
        hidden = layer_norm(graph, hidden, "masked_lm/norm", config.layer_norm_eps)
    else:
        hidden = _prediction_head(graph, config, hidden)
    table = "masked_lm/decoder"
    if config.tie_word_embeddings:
        # The same initializer as the lookup reads, so a tied table is in the file once.
        table = "encoder/embeddings/word_embeddings/embedding"
    kernel = graph.add("Transpose", graph.weight(table), perm=(1, 0))
    return graph.add("Add", graph.add("MatMul", hidden, kernel), graph.weight("masked_lm/bias"))


def _task_logits(
    graph: GraphBuilder, config: EncoderConfig, head: TaskHead, hidden: str, attention_mask: str
) -> str:
    path = head_param_name(head)
    match classifier_layers(head, config):
        case PoolerClassifier():
            pooled = graph.add("Tanh", dense(graph, first_token(graph, hidden), "pooler/dense"))
            return dense(graph, pooled, path)
        case DenseClassifier(activation=activation):
            first = dense(graph, first_token(graph, hidden), f"{path}/dense")
            return dense(graph, activate(graph, first, activation), f"{path}/out_proj")
        case PredictionHeadClassifier():
            if reads_one_vector(head):
                hidden = _sequence_vector(graph, config, hidden, attention_mask)
            return dense(graph, _prediction_head(graph, config, hidden), path)
        case LinearClassifier():
            return dense(graph, hidden, path)


def _prediction_head(graph: GraphBuilder, config: EncoderConfig, x: str) -> str:
    x = activate(graph, dense(graph, x, "prediction_head/dense"), config.masked_lm_activation)
    return layer_norm(graph, x, "prediction_head/norm", config.layer_norm_eps)


def _sequence_vector(
    graph: GraphBuilder, config: EncoderConfig, hidden: str, attention_mask: str
) -> str:
    match config.sequence_pooling:
        case "first_token":
            return first_token(graph, hidden)
        # EuroBERT's late pooling is a mean of logits over tokens. The layer is linear, so the
        # mean of its inputs gives the same with fewer products.
        case "mean" | "late":
            return mean_of_tokens(graph, hidden, attention_mask)
