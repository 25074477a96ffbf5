"""Defines the fields of a batch, on which data and model agree: dims, dtype and meaning of each.

Each dim is a letter: B batch, L length, P predictions per sequence, T length of the decoder,
C classes or scored texts, D width, E width of a guide's vectors, A choices, windows of a text, or
texts to embed, R rows with several of these texts. A batch is a dict from field name to array with
exactly the fields of its objective. Names are as in BERT's release and Hugging Face. `packing_ids`
are what seqio calls segment ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.errors import UserError


@dataclass(frozen=True)
class Field:
    """Holds the dims of a field as letters, such as "BL", its dtype and what the values mean."""

    dims: str
    dtype: str
    description: str


FIELDS: dict[str, Field] = {
    "input_ids": Field("BL", "int32", "token ids, after masking"),
    "token_type_ids": Field("BL", "int32", "0 in [CLS] A [SEP], 1 in B [SEP]"),
    "attention_mask": Field("BL", "int32", "1 = real token, 0 = padding"),
    "position_ids": Field("BL", "int32", "position of a token in its packed example, from 0"),
    "packing_ids": Field(
        "BL", "int32", "packed example that a token belongs to, from 1; 0 = padding"
    ),
    "decoder_input_ids": Field(
        "BT", "int32", "targets shifted right, after the decoder's start token"
    ),
    "decoder_target_ids": Field("BT", "int32", "ids to predict; 0 where the weight is 0"),
    "decoder_target_weights": Field("BT", "float32", "1 = predicted, 0 = padding"),
    "decoder_position_ids": Field("BT", "int32", "as position_ids, of the targets"),
    "decoder_packing_ids": Field("BT", "int32", "as packing_ids, which the source has, too"),
    "masked_lm_positions": Field("BP", "int32", "selected positions, ascending; 0 where unused"),
    "masked_lm_ids": Field("BP", "int32", "original ids at these positions; 0 where unused"),
    "masked_lm_weights": Field(
        "BP", "float32", "1 = selected (masked, replaced or unchanged), 0 = unused"
    ),
    "masking_rates": Field(
        "BP", "float32", "probability with which the position was masked; 0 where unused"
    ),
    "is_causal": Field("B", "int32", "1 = read left to right, every next token is predicted"),
    "num_maskable_tokens": Field(
        "B", "int32", "tokens of the sequence that are neither special nor padding"
    ),
    "sampling_seeds": Field(
        "BP",
        "int32",
        "random 32 bits, which sample the replacement (ELECTRA) or order the tokens (MPNet)",
    ),
    "next_sentence_labels": Field("B", "int32", "0 = B follows A, 1 = B is a random segment"),
    "sentence_order_labels": Field("B", "int32", "0 = A comes before B in the text, 1 = after B"),
    "span_left_positions": Field(
        "BP", "int32", "position before the span of the masked position with the same index"
    ),
    "span_right_positions": Field("BP", "int32", "position after that span"),
    "span_target_offsets": Field("BP", "int32", "offset of the masked position in its span"),
    "span_target_weights": Field(
        "BP", "float32", "1 = also predicted from the boundary of its span, 0 = not"
    ),
    # Each kind of label has a field of its own: one field cannot have three shapes and dtypes, and
    # a batch of several tasks has them all.
    "labels": Field("B", "int32", "index of the class, or of the correct choice"),
    "label_indicators": Field("BC", "int32", "1 = the text has the label, 0 = it has not"),
    "label_logits": Field(
        "BC", "float32", "soft labels: logits of the classes, or a teacher's scores of texts"
    ),
    "label_values": Field("B", "float32", "target of a regression or of a ranking"),
    "query_ids": Field("B", "int32", "index of the query, which is equal for its texts"),
    "token_labels": Field("BL", "int32", "index of the token's label; 0 where its weight is 0"),
    "token_label_weights": Field("BL", "float32", "1 = first token of a word, 0 = any other"),
    "start_positions": Field("B", "int32", "first token of the answer; 0 ([CLS]) = no answer"),
    "end_positions": Field("B", "int32", "last token of the answer; 0 ([CLS]) = no answer"),
    "example_weights": Field("B", "float32", "1 = an example, 0 = padding of the batch"),
    "task_ids": Field("B", "int32", "index of the example's task, in a multi-task batch"),
    "choice_input_ids": Field(
        "BAL", "int32", "token ids of context and choice, for each choice; or of each window"
    ),
    "choice_token_type_ids": Field("BAL", "int32", "0 in the context, 1 in the choice"),
    "choice_attention_mask": Field("BAL", "int32", "1 = real token, 0 = padding"),
    "packed_tokens": Field(
        "RL",
        "int32",
        "token that is here: its text x L + its position, texts counted in their part of the batch "
        "(microbatch or chunk); -1 = padding",
    ),
    "window_mask": Field("BA", "int32", "1 = a window of the text, 0 = padding"),
    "encoder_features": Field("BLD", "float32", "cached output of a frozen encoder"),
    "cls_encoder_features": Field("BD", "float32", "the same, of the first token only"),
    "choice_cls_encoder_features": Field("BAD", "float32", "the same, for each choice"),
    "regularizer_scale": Field(
        "B", "float32", "part of a regularization's weight at this step, equal for all examples"
    ),
    "teacher_vectors": Field("BD", "float32", "vector of the text by a teacher"),
    "guide_vectors": Field("BAE", "float32", "vectors of the texts by a guide"),
}

BATCH_AXES = ("data", "fsdp")
"""The axes of the device mesh over which the first dimension of every field is split."""

ENCODER_FIELDS = ("input_ids", "token_type_ids", "attention_mask")
PACKED_FIELDS = ("position_ids", "packing_ids")
PACKED_TOKENS = "packed_tokens"
ENCODER_DECODER_FIELDS = ("input_ids", "attention_mask", "decoder_input_ids")
DECODER_TARGET_FIELDS = ("decoder_target_ids", "decoder_target_weights")
PACKED_DECODER_FIELDS = (*PACKED_FIELDS, "decoder_position_ids", "decoder_packing_ids")
MASKED_LM_FIELDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
SAMPLING_FIELDS = ("sampling_seeds",)
CAUSAL_FIELDS = ("is_causal",)
DIFFUSION_FIELDS = ("masking_rates", "num_maskable_tokens")
NEXT_SENTENCE_FIELDS = ("next_sentence_labels",)
SENTENCE_ORDER_FIELDS = ("sentence_order_labels",)
SPAN_BOUNDARY_FIELDS = (
    "span_left_positions",
    "span_right_positions",
    "span_target_offsets",
    "span_target_weights",
)
CHOICE_FIELDS = ("choice_input_ids", "choice_token_type_ids", "choice_attention_mask")
WINDOW_FIELDS = (*CHOICE_FIELDS, "window_mask")
TOKEN_LABEL_FIELDS = ("token_labels", "token_label_weights")
SPAN_FIELDS = ("start_positions", "end_positions")

MAX_SPAN_TARGETS = 15
"""Number of tokens of a span that the span boundary objective predicts (SpanBERT's release)."""

BatchSpec = dict[str, tuple[tuple[int, ...], str]]


def batch_spec(fields: tuple[str, ...], sizes: Mapping[str, int]) -> BatchSpec:
    """Returns {field: (shape, dtype)}; `sizes` is the size of each dimension, such as {"B": 32}."""
    return {
        name: (tuple(sizes[dim] for dim in FIELDS[name].dims), FIELDS[name].dtype)
        for name in fields
    }


def sequence_length(batch: Mapping[str, Any]) -> int:
    """Returns the sequence length L of a batch, padding included."""
    name = "input_ids" if "input_ids" in batch else "choice_input_ids"
    return batch[name].shape[-1]


def check_batch(batch: Mapping[str, np.ndarray], expected: BatchSpec) -> None:
    """Raises a UserError that names the first missing, unexpected or wrongly shaped field."""
    for name in expected.keys() - batch.keys():
        raise UserError(f"batch lacks the field {name!r}; expected {sorted(expected)}")
    for name, array in batch.items():
        if name not in expected:
            raise UserError(f"batch has the field {name!r}; expected only {sorted(expected)}")
        shape, dtype = expected[name]
        if tuple(array.shape) != shape or str(array.dtype) != dtype:
            raise UserError(
                f"batch field {name!r} is {array.dtype}{list(array.shape)}, "
                f"expected {dtype}{list(shape)}"
            )


def encoder_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `Encoder.__call__` for a batch, each [B, L] or [B x A, L]."""
    if CHOICE_FIELDS[0] in batch:  # the encoder reads each choice as a separate sequence
        return {
            name.removeprefix("choice_"): batch[name].reshape(-1, batch[name].shape[-1])
            for name in CHOICE_FIELDS
        }
    packed = {name: batch[name] for name in PACKED_FIELDS if name in batch}
    return {name: batch[name] for name in ENCODER_FIELDS} | packed


def encoder_decoder_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `EncoderDecoder.__call__` for a batch, each [B, L] or [B, T]."""
    packed = {name: batch[name] for name in PACKED_DECODER_FIELDS if name in batch}
    return {name: batch[name] for name in ENCODER_DECODER_FIELDS} | packed
