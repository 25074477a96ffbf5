"""The contract between data and model: every field of a batch, its dims, dtype and meaning.

Dims are letters of the project's legend: B batch, L length, P predictions per row, C classes,
A choices, D width. A batch is a plain dict from field name to array, with exactly the fields of its
objective. Names are those of BERT's release and Hugging Face; 1 marks a real token in
`attention_mask`. `token_type_ids` are BERT's A/B; `packing_ids` say which packed example a token
belongs to (what seqio calls segment ids), 0 for padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.errors import UserError


@dataclass(frozen=True)
class Field:
    """Dims as a string of letters, such as "BL", the dtype, and what the values mean."""

    dims: str
    dtype: str
    description: str


FIELDS: dict[str, Field] = {
    "input_ids": Field("BL", "int32", "token ids, masked where a masked LM sees them masked"),
    "token_type_ids": Field("BL", "int32", "0 in [CLS] A [SEP], 1 in B [SEP]"),
    "attention_mask": Field("BL", "int32", "1 = real token, 0 = padding"),
    "position_ids": Field("BL", "int32", "position of a token within its own example"),
    "packing_ids": Field("BL", "int32", "which packed example, from 1; 0 = padding"),
    "masked_lm_positions": Field("BP", "int32", "selected positions, ascending; 0 where unused"),
    "masked_lm_ids": Field("BP", "int32", "original ids there; 0 where unused"),
    "masked_lm_weights": Field(
        "BP", "float32", "1 = selected (masked, random or kept), 0 = unused"
    ),
    "next_sentence_labels": Field("B", "int32", "0 = B follows A, 1 = B is from elsewhere"),
    "labels": Field("B", "int32", "number of the class, or of the right choice"),
    "label_values": Field("B", "float32", "the number that a regression predicts"),
    "token_labels": Field("BL", "int32", "number of the token's tag; 0 where its weight is 0"),
    "token_label_weights": Field("BL", "float32", "1 = first piece of a word, 0 = any other"),
    "start_positions": Field("B", "int32", "first token of the answer; 0 ([CLS]) = no answer here"),
    "end_positions": Field("B", "int32", "last token of the answer; 0 ([CLS]) = no answer here"),
    "example_weights": Field("B", "float32", "1 = an example, 0 = a row that fills the batch up"),
    "task_ids": Field("B", "int32", "number of the task that the row belongs to, in a mixture"),
    "choice_input_ids": Field("BAL", "int32", "token ids of context and choice, for each choice"),
    "choice_token_type_ids": Field("BAL", "int32", "0 in the context, 1 in the choice"),
    "choice_attention_mask": Field("BAL", "int32", "1 = real token, 0 = padding"),
    "encoder_features": Field("BLD", "float32", "of a frozen encoder, computed beforehand"),
    "cls_encoder_features": Field("BD", "float32", "of a frozen encoder, at the first token"),
    "choice_cls_encoder_features": Field("BAD", "float32", "likewise, for each choice"),
}

BATCH_AXES = ("data", "fsdp")
"""The axes of a device mesh over which the rows of every field are split."""

ENCODER_FIELDS = ("input_ids", "token_type_ids", "attention_mask")
PACKED_FIELDS = ("position_ids", "packing_ids")
MASKED_LM_FIELDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
NEXT_SENTENCE_FIELDS = ("next_sentence_labels",)
CHOICE_FIELDS = ("choice_input_ids", "choice_token_type_ids", "choice_attention_mask")
TOKEN_LABEL_FIELDS = ("token_labels", "token_label_weights")
SPAN_FIELDS = ("start_positions", "end_positions")

BatchSpec = dict[str, tuple[tuple[int, ...], str]]


def batch_spec(fields: tuple[str, ...], sizes: Mapping[str, int]) -> BatchSpec:
    """Shape and dtype of each of `fields`; `sizes` gives the letters, as {"B": 32, "L": 128}."""
    return {
        name: (tuple(sizes[dim] for dim in FIELDS[name].dims), FIELDS[name].dtype)
        for name in fields
    }


def sequence_length(batch: Mapping[str, Any]) -> int:
    """L of a batch: the places for tokens in each of its texts."""
    name = "input_ids" if "input_ids" in batch else "choice_input_ids"
    return batch[name].shape[-1]


def check_batch(batch: Mapping[str, np.ndarray], expected: BatchSpec) -> None:
    """Raises a UserError that names the first field which is missing, foreign or misshapen."""
    for name in expected.keys() - batch.keys():
        raise UserError(f"batch lacks the field {name!r}; expected {sorted(expected)}")
    for name, array in batch.items():
        if name not in expected:
            raise UserError(f"batch holds {name!r}, which this program does not read")
        shape, dtype = expected[name]
        if tuple(array.shape) != shape or str(array.dtype) != dtype:
            raise UserError(
                f"batch field {name!r} is {array.dtype}{list(array.shape)}, "
                f"expected {dtype}{list(shape)}"
            )
