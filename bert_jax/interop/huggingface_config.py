"""Hugging Face's `config.json` and our `BertConfig`, both ways. No jax here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop import huggingface_heads as heads
from bert_jax.models.config import (
    Activation,
    BertConfig,
    Gelu,
    GeluTanh,
    LearnedPositions,
    TaskHead,
)

ACTIVATIONS: dict[str, Activation] = {
    "gelu": Gelu(),
    "gelu_new": GeluTanh(),
    "gelu_pytorch_tanh": GeluTanh(),
}
"""Their names of what we can compute; of several for one, the first is written."""

PRETRAINING_ARCHITECTURES = {
    "BertModel": ("pooler",),
    "BertForMaskedLM": ("masked_lm",),
    "BertForNextSentencePrediction": ("pooler", "next_sentence"),
    "BertForPreTraining": ("pooler", "masked_lm", "next_sentence"),
}
"""Their architectures without a task's head, with the parts each has beside the encoder."""

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
_OPTIONAL = (
    "type_vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
    "initializer_range",
    "tie_word_embeddings",
)
# What BERT does not have: these fields must be absent or hold this value.
_REQUIRED_VALUES: dict[str, Any] = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "embedding_size": None,
}


def read_config(file: Path) -> BertConfig:
    """The model that a `config.json` (or Google's `bert_config.json`) describes.

    Raises:
      UserError: the file is absent, damaged, or of a model other than BERT; names the field.
    """
    data = _read_object(file)
    known = (*PRETRAINING_ARCHITECTURES, *heads.HEAD_ARCHITECTURES)
    for architecture in data.get("architectures") or ():
        if architecture not in known:
            raise UserError(
                f"{file}: the architecture is {architecture!r}; expected one of {', '.join(known)}"
            )
    for field, value in _REQUIRED_VALUES.items():
        if data.get(field, value) != value:
            raise UserError(
                f"{file}: {field} is {data[field]!r}; only {value!r} is supported, as in BERT"
            )
    values: dict[str, Any] = {}
    for field in (*_REQUIRED, *(field for field in _OPTIONAL if field in data)):
        values[field] = _read_number(file, data, field)
    act = data.get("hidden_act", "gelu")
    if act not in ACTIVATIONS:
        raise UserError(
            f"{file}: hidden_act is {act!r}; supported are {', '.join(map(repr, ACTIVATIONS))}"
        )
    length = _read_number(file, data, "max_position_embeddings")
    return BertConfig(
        positions=LearnedPositions(max_position_embeddings=length),
        hidden_act=ACTIVATIONS[act],
        **values,
    )


def read_head(file: Path) -> TaskHead | None:
    """The task's head that a `config.json` describes; None for a model without one.

    Raises:
      UserError: the file is absent or damaged, or its head is none of ours; names the field.
    """
    return heads.head_from_config(_read_object(file), str(file))


def to_hf_config(config: BertConfig, *, architecture: str, pad_token_id: int) -> dict[str, Any]:
    """The content of the `config.json` that describes `config` to Hugging Face."""
    act = next(name for name, kind in ACTIVATIONS.items() if kind == config.hidden_act)
    return {
        "architectures": [architecture],
        "model_type": "bert",
        "dtype": "float32",
        "hidden_act": act,
        "max_position_embeddings": config.positions.max_position_embeddings,
        "pad_token_id": pad_token_id,
        **{field: getattr(config, field) for field in (*_REQUIRED, *_OPTIONAL)},
    }


def _read_object(file: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; expected the description of a model") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{file} is not JSON ({error}); fetch or write it again") from None
    if not isinstance(data, dict):
        raise UserError(f"{file}: expected a JSON object, found a {type(data).__name__}")
    return data


def _read_number(file: Path, data: Mapping[str, Any], field: str) -> Any:
    value = data.get(field)
    if not isinstance(value, (int, float)):
        found = f"found {value!r}" if field in data else "it is absent"
        raise UserError(f"{file}: expected a number in the field {field!r}; {found}")
    return value
