"""Describes a family of encoder-decoders in Hugging Face's format: config.json and tensor names.

Each family has a `Seq2SeqFormat` in its `huggingface.py`; `bert_jax/interop/seq2seq.py` reads and
writes folders with it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.huggingface import ReadField
from bert_jax.params.name_table import NameMapping, NameTable

FORCED_TOKENS = ("forced_bos_token_id", "forced_eos_token_id")
"""Fields of config.json that may be null, which means that no token is forced."""
NO_TOKEN = -1
"""What reading a field of `FORCED_TOKENS` returns for null."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqFormat:
    """Describes the Hugging Face format of one family.

    Attributes:
      model_type: the `model_type` in config.json.
      architectures: the classes that are read; an export has the first one.
      read_config: makes the config of a model with tied embeddings from a function that reads
        fields.
      config_fields: returns the fields of config.json.
      names: returns the table of tensor names of a config.
      shared: the tensor with the token embeddings.
      lm_head: the tensor of the logits. A file whose `lm_head` is absent or equal to `shared` has
        tied embeddings, whatever its config.json contains.
      copies: tensors that must equal `shared` if they exist.
      canonical: returns today's name of a tensor of an old file or of the bare model.
      zeros: biases of the logits [1, V] that must be zero if they exist; an export has them.
      fixed_fields: fields of config.json that must be absent or have this value, or one of
        `SupportedValues`.
      refused_model_types: similar models that are not supported, with the reason.
    """

    model_type: str
    architectures: tuple[str, ...]
    read_config: Callable[[ReadField], EncoderDecoderConfig]
    config_fields: Callable[[Any], dict[str, Any]]
    names: Callable[[Any], NameTable]
    shared: str
    lm_head: str
    copies: tuple[str, ...]
    canonical: Callable[[str], str] = str
    zeros: tuple[str, ...] = ()
    fixed_fields: Mapping[str, Any] = field(default_factory=dict)
    refused_model_types: Mapping[str, str] = field(default_factory=dict)


def kernel(internal: str, external: str) -> NameMapping:
    """Maps the kernel of a linear layer without bias."""
    return NameMapping(f"{internal}/kernel", f"{external}.weight", transposed=True)


def scale(internal: str, external: str) -> NameMapping:
    """Maps the scale of an RMS norm."""
    return NameMapping(f"{internal}/scale", f"{external}.weight")


def read_forced_token(read: ReadField, name: str, default: int = NO_TOKEN) -> int | None:
    """Reads a field of `FORCED_TOKENS`; None if no token is forced."""
    token_id = read(name, default)
    return None if token_id == NO_TOKEN else token_id
