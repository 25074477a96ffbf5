"""Writes the encoder of a family as ONNX operations.

The families with BERT's post-norm layers differ in their embeddings, in which layers share weights,
and in what is added to the scores. ModernBERT has pre-norm layers with rotary positions and local
attention. `check_family` refuses the other families.
"""

import numpy as np

from bert_jax.errors import UserError
from bert_jax.export.onnx.layers import (
    MASKED_SCORE,
    GraphBuilder,
    Rotation,
    activate,
    dense,
    distances,
    layer_norm,
    length_of,
    mask_bias,
    positions,
    self_attention,
)
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import (
    AlibiPositions,
    LearnedPositions,
    NoPositions,
    PaddingOffsetPositions,
)
from bert_jax.models.layers.relative_bias import relative_position_buckets
from bert_jax.models.layers.rotary import inverse_frequencies
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.roberta.config import RobertaConfig

SUPPORTED = (
    BertConfig,
    RobertaConfig,
    ElectraConfig,
    DistilBertConfig,
    AlbertConfig,
    MPNetConfig,
    ModernBertConfig,
)
"""The families that can be written as ONNX."""


def check_family(config: EncoderConfig) -> None:
    """Raises a UserError for a family that cannot be written as ONNX."""
    if isinstance(config.positions, AlibiPositions):
        raise UserError(
            f"{config.family} with AlibiPositions cannot be exported to ONNX; use --bundle, which "
            "runs every model with jax"
        )
    if not isinstance(config, SUPPORTED):
        names = ", ".join(family.family for family in SUPPORTED)
        raise UserError(
            f"{config.family} models cannot be exported to ONNX, only {names}; use --bundle, which "
            "runs every family with jax"
        )


def encoder_states(graph: GraphBuilder, config: EncoderConfig, inputs: dict[str, str]) -> str:
    """Writes an encoder; returns its last hidden state, [B, L, D].

    Args:
      inputs: the values of "input_ids", "attention_mask" and, if the family has token types,
        "token_type_ids", int64 [B, L].
    """
    x = _embeddings(graph, config, inputs)
    bias = mask_bias(graph, inputs["attention_mask"])
    if isinstance(config, ModernBertConfig):
        return _pre_norm_layers(graph, config, x, bias, length_of(graph, inputs["input_ids"]))
    if isinstance(config, MPNetConfig):
        relative = _relative_bias(graph, config, length_of(graph, inputs["input_ids"]))
        bias = graph.add("Add", bias, relative)
    for path in _layer_paths(config):
        x = _post_norm_block(graph, config, x, f"encoder/{path}", bias)
    return x


def _embeddings(graph: GraphBuilder, config: EncoderConfig, inputs: dict[str, str]) -> str:
    root, ids = "encoder/embeddings", inputs["input_ids"]
    x = graph.add("Gather", graph.weight(f"{root}/word_embeddings/embedding"), ids)
    if config.type_vocab_size:
        table = graph.weight(f"{root}/token_type_embeddings/embedding")
        # One token type, as in RoBERTa: its row of the table is added to all tokens.
        types = inputs.get("token_type_ids")
        x = graph.add("Add", x, table if types is None else graph.add("Gather", table, types))
    table = f"{root}/position_embeddings/embedding"
    match config.positions:
        case LearnedPositions():
            first = graph.add(
                "Slice",
                graph.weight(table),
                graph.integers(0),
                length_of(graph, ids),
                graph.integers(0),
            )
            x = graph.add("Add", x, first)
        case PaddingOffsetPositions(pad_token_id=pad):
            # Positions are counted over the tokens that are not padding, from `pad` + 1.
            is_padding = graph.add("Equal", ids, graph.constant(pad, np.int64))
            # 7 is int64 and 1 is float32 in ONNX's `TensorProto.DataType`.
            is_real = graph.add("Cast", graph.add("Not", is_padding), to=7)
            count = graph.add("CumSum", is_real, graph.constant(1, np.int64))
            rows = graph.add("Mul", count, is_real)
            rows = graph.add("Add", rows, graph.constant(pad, np.int64))
            x = graph.add("Add", x, graph.add("Gather", graph.weight(table), rows))
        case NoPositions():
            pass
    x = layer_norm(graph, x, f"{root}/norm", config.layer_norm_eps)
    projection = "encoder/embedding_projection"
    return dense(graph, x, projection) if graph.has_weight(f"{projection}/kernel") else x


def _layer_paths(config: EncoderConfig) -> list[str]:
    """Returns the paths of the layers in the order of their application."""
    if isinstance(config, AlbertConfig):
        return [
            f"groups/{group}/layers/{layer}"
            for group, applications in enumerate(config.group_applications())
            # The same weights are named again for each application; ONNX stores an initializer
            # once, however many operations read it.
            for _ in range(applications)
            for layer in range(config.inner_group_num)
        ]
    return [f"layers/{layer}" for layer in range(config.num_hidden_layers)]


def _post_norm_block(
    graph: GraphBuilder, config: EncoderConfig, x: str, path: str, bias: str
) -> str:
    attended = self_attention(graph, x, f"{path}/attention", config, bias)
    x = graph.add("Add", attended, x)
    x = layer_norm(graph, x, f"{path}/attention_norm", config.layer_norm_eps)
    hidden = dense(graph, x, f"{path}/feed_forward/intermediate")
    hidden = activate(graph, hidden, config.hidden_act)
    output = dense(graph, hidden, f"{path}/feed_forward/output")
    output = graph.add("Add", output, x)
    return layer_norm(graph, output, f"{path}/feed_forward_norm", config.layer_norm_eps)


def _relative_bias(graph: GraphBuilder, config: MPNetConfig, length: str) -> str:
    """Returns the bias of relative positions, float32 [1, H, L, L]."""
    farthest = config.max_length - 1
    # The buckets of all distances are a constant of the graph, so the graph needs no logarithm.
    buckets = relative_position_buckets(np.arange(-farthest, farthest + 1))
    index = graph.add("Add", distances(graph, length), graph.constant(farthest, np.int64))
    bucket = graph.add("Gather", graph.constant(buckets, np.int64), index)
    table = graph.weight("encoder/relative_attention_bias/bias")
    by_head = graph.add("Transpose", graph.add("Gather", table, bucket), perm=(2, 0, 1))
    return graph.add("Unsqueeze", by_head, graph.integers(0))


def _pre_norm_layers(
    graph: GraphBuilder, config: ModernBertConfig, x: str, bias: str, length: str
) -> str:
    eps = config.layer_norm_eps
    too_far = graph.add(
        "Greater",
        graph.add("Abs", distances(graph, length)),
        # Local attention is written as a mask over all pairs: blocks need static shapes, and the
        # length of an ONNX graph is dynamic.
        graph.constant(config.radius, np.int64),
    )
    outside = graph.add("Mul", graph.add("Cast", too_far, to=1), graph.scalar(MASKED_SCORE))
    biases = {"full_attention": bias, "sliding_attention": graph.add("Add", bias, outside)}
    rotations = {
        "full_attention": _rotation(graph, config, config.global_rope_theta, length),
        "sliding_attention": _rotation(graph, config, config.local_rope_theta, length),
    }
    for layer, kind in enumerate(config.layer_types):
        path = f"encoder/layers/{layer}"
        normed = x
        # ModernBERT's first layer has no norm before attention, because the embeddings are
        # already normalized.
        if graph.has_weight(f"{path}/attention_norm/scale"):
            normed = layer_norm(graph, x, f"{path}/attention_norm", eps)
        attended = self_attention(
            graph, normed, f"{path}/attention", config, biases[kind], rotations[kind]
        )
        x = graph.add("Add", x, attended)
        normed = layer_norm(graph, x, f"{path}/feed_forward_norm", eps)
        hidden = dense(graph, normed, f"{path}/feed_forward/intermediate")
        gate = dense(graph, normed, f"{path}/feed_forward/gate")
        gated = graph.add("Mul", activate(graph, hidden, config.hidden_act), gate)
        x = graph.add("Add", x, dense(graph, gated, f"{path}/feed_forward/output"))
    return layer_norm(graph, x, "encoder/final_norm", eps)


def _rotation(graph: GraphBuilder, config: ModernBertConfig, theta: float, length: str) -> Rotation:
    frequencies = inverse_frequencies(config.head_width, theta)
    position = graph.add("Cast", positions(graph, length), to=1)
    angles = graph.add(
        "Mul",
        graph.add("Unsqueeze", position, graph.integers(0, 2, 3)),
        graph.constant(frequencies, np.float32),
    )
    return Rotation(graph.add("Cos", angles), graph.add("Sin", angles))
