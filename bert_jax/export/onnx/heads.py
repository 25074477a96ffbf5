"""Writes the heads of a model, and with them the whole model, as an ONNX graph."""

import numpy as np
import onnx

from bert_jax.export.onnx.encoder import encoder_states
from bert_jax.export.onnx.graph import GraphBuilder
from bert_jax.export.onnx.layers import activate, dense, layer_norm
from bert_jax.export.onnx.sentence import first_token, mean_of_tokens, sentence_embedding
from bert_jax.export.outputs import SPAN_OUTPUTS, HiddenStates, MaskedLMLogits, ShippedNetwork
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    FirstTokenPooling,
    LatePooling,
    LinearClassifier,
    MeanPooling,
    PoolerClassifier,
    PredictionHeadClassifier,
    TaskHead,
    classifier_layers,
    head_param_name,
    reads_one_vector,
)
from bert_jax.models.heads.pretraining_config import OwnTransform
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.params import paths

Values = dict[str, str]


def build_graph(network: ShippedNetwork) -> onnx.ModelProto:
    """Writes a network of a family that `check_family` accepts as an ONNX graph.

    Its inputs and outputs are those of `export/outputs.py`.
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
    if isinstance(config.masked_lm_transform, OwnTransform):
        hidden = dense(graph, hidden, "masked_lm/transform")
        hidden = activate(graph, hidden, config.masked_lm_activation)
        hidden = layer_norm(graph, hidden, "masked_lm/norm", config.layer_norm_eps)
    else:
        hidden = _prediction_head(graph, config, hidden)
    table = "masked_lm/decoder"
    if config.tie_word_embeddings:
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
        case FirstTokenPooling():
            return first_token(graph, hidden)
        case MeanPooling() | LatePooling():
            return mean_of_tokens(graph, hidden, attention_mask)
