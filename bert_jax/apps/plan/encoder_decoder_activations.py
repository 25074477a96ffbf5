"""Estimates by formula how much activation memory a training step of an encoder-decoder needs.

The bytes that XLA saves of each array are those of encoders (`plan/activations.py`); here they are
counted by attention and sublayer. Let I = H x K be the width of all heads, Q the positions of the
queries and S those of the keys, each times the sequences of a device, and t the size of the tensor
axis. In the compute dtype of s bytes on v5e, XLA saves

    queries and context of an attention       2 s Q I/t
    keys and values of an attention           2 s S I/t
    the input of each sublayer's norm         s Q D         2 sublayers, 3 in a decoder
    feed-forward before the non-linearity     s Q F/t       twice if it is gated
    attention scores                          as in encoders, for each attention

Encoder self-attention has Q = S = source positions, decoder self-attention target positions for
both. Cross-attention has queries of the target, and keys and values of the source in every layer.

Memory can peak at two moments. When the backward pass of the decoder begins, both stacks are saved,
and the logits or the gradient of the last scores exist. When that of the encoder begins, the
decoder's activations are freed, but the gradients of its parameters have been created. With few
sequences on a device and short targets, as in T5, the second moment is the larger one.

`tests/plan/activations_test.py` compares the formula with XLA on CPU. Scanned layers have not
been compared with a compiler.
"""

from dataclasses import dataclass

from bert_jax.apps.plan.activations import SCANNED_SAVED_BYTES, SavedBytes, itemsize
from bert_jax.apps.plan.device_microbatch import DeviceMicrobatch
from bert_jax.config.objectives import Seq2Seq

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class _StackBytes:
    """Holds the bytes of the layers of one stack on a device.

    Attributes:
      saved: what all layers save until the backward pass of the stack.
      working: what exists in addition while the backward pass of the last layer runs.
    """

    saved: int
    working: int


def encoder_decoder_activation_bytes(
    objective: Seq2Seq,
    microbatch: DeviceMicrobatch,
    saved: SavedBytes,
    decoder_gradient_bytes: int,
) -> int:
    """Returns the bytes of activations on one device at the larger of the two peaks.

    Frozen parameters are not taken into account: the backward pass is that of all layers.

    Args:
      objective: the objective of the run.
      microbatch: the device's part of a microbatch, with the length of the targets.
      saved: what the compiler saves of a layer that is not scanned.
      decoder_gradient_bytes: the gradients of the decoder's layers on one device.
    """
    model, tensor = objective.model, microbatch.tensor_parallel_size
    sources, targets = microbatch.seq_length, microbatch.target_length
    encoder = _stack_bytes(objective, microbatch, saved, sources, (sources,))
    decoder = _stack_bytes(objective, microbatch, saved, targets, (targets, sources))
    num_logits = microbatch.num_sequences * targets * model.vocab_size
    table_bytes = _FLOAT32 * model.vocab_size * model.hidden_size // tensor
    logits_bytes = saved.logits * num_logits // tensor
    # The table of the logits has its gradient first, another table of embeddings after the decoder.
    decoder_begins = (
        encoder.saved + decoder.saved + table_bytes + max(logits_bytes, decoder.working)
    )
    encoder_begins = (
        encoder.saved
        + encoder.working
        + model.num_embedding_tables * table_bytes
        + decoder_gradient_bytes
    )
    return max(decoder_begins, encoder_begins)


def encoder_decoder_gathered_bytes(objective: Seq2Seq, tensor_parallel_size: int) -> int:
    """Returns the bytes of FSDP-gathered parameters, which XLA keeps for the backward pass."""
    model = objective.model
    tables = model.num_embedding_tables * model.vocab_size * model.hidden_size
    kernels = model.encoder_kernel_params + model.decoder_kernel_params
    return itemsize(objective) * (kernels + tables) // tensor_parallel_size


def _stack_bytes(
    objective: Seq2Seq,
    microbatch: DeviceMicrobatch,
    saved: SavedBytes,
    length: int,
    key_lengths: tuple[int, ...],
) -> _StackBytes:
    """Returns the bytes of a stack whose layers attend to keys of each of `key_lengths`."""
    model, compute = objective.model, objective.compute
    tensor, size = microbatch.tensor_parallel_size, itemsize(objective)
    is_decoder = len(key_lengths) > 1
    num_layers = model.num_decoder_layers if is_decoder else model.num_encoder_layers
    kernel_params = model.decoder_kernel_params if is_decoder else model.encoder_kernel_params
    scores = [
        microbatch.num_sequences * model.num_attention_heads * length * keys // tensor
        for keys in key_lengths
    ]
    scanned = compute.layer_loop == "scanned"
    working = _FLOAT32 * max(scores)
    if scanned:  # a scan stacks kernels in the compute dtype and their gradients in float32
        working += (size + _FLOAT32) * kernel_params // tensor
    if compute.remat != "none":
        layer_input = size * microbatch.num_sequences * length * model.hidden_size
        layer = _layer_bytes(objective, microbatch, saved, length, key_lengths)
        layer += saved.scores[0] * sum(scores) + size * saved.scores[1] * sum(scores)
        return _StackBytes(saved=num_layers * layer_input, working=working + layer)
    saved_of_layer = SCANNED_SAVED_BYTES if scanned else saved
    saves_weights = not scanned and size < _FLOAT32
    bytes_per_score = saved_of_layer.scores[0] + size * saved_of_layer.scores[1]
    bytes_per_score += saved.bf16_attention_weights if saves_weights else 0
    layer = _layer_bytes(objective, microbatch, saved_of_layer, length, key_lengths)
    return _StackBytes(saved=num_layers * (layer + bytes_per_score * sum(scores)), working=working)


def _layer_bytes(
    objective: Seq2Seq,
    microbatch: DeviceMicrobatch,
    saved: SavedBytes,
    length: int,
    key_lengths: tuple[int, ...],
) -> int:
    """Returns the bytes that one layer saves for the backward pass, without attention scores.

    `SavedBytes` has the sum of the two norms of an encoder layer, and of four arrays of attention.
    """
    model, size = objective.model, itemsize(objective)
    replicated, sharded, ffn = (
        fixed + size * copies for fixed, copies in (saved.replicated, saved.sharded, saved.ffn)
    )
    num_sublayers = len(key_lengths) + 1
    attention_rows = sum(length + keys for keys in key_lengths)
    inner_width = (model.num_feed_forward_kernels - 1) * model.intermediate_size
    sharded_bytes = (
        sharded * model.attention_width * attention_rows // 2 + ffn * inner_width * length
    ) // microbatch.tensor_parallel_size
    replicated_bytes = replicated * model.hidden_size * length * num_sublayers // 2
    return microbatch.num_sequences * (replicated_bytes + sharded_bytes)
