"""Parses a SentencePiece `.model` file, a Protocol Buffers message, without a protobuf library.

It reads only the fields that a tokenizer.json needs. The message is `ModelProto` of
sentencepiece_model.proto in google/sentencepiece; the wire format is described at
protobuf.dev/programming-guides/encoding. Generated protobuf code would restrict the version of
protobuf, and TensorFlow and Apache Beam rarely accept the same one.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import UserError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """Holds the contents of a `.model` file.

    Attributes:
      pieces: (piece, log probability) of each id.
      model_type: "unigram", "bpe", "word" or "char".
      unk_id: id of the unknown piece.
      byte_fallback: whether unknown characters are encoded as bytes.
      precompiled_charsmap: compiled normalization table; empty for none.
      add_dummy_prefix: whether a space is added before the text.
      remove_extra_whitespaces: whether runs of spaces become one space and outer spaces none.
    """

    pieces: list[tuple[str, float]]
    model_type: str
    unk_id: int
    byte_fallback: bool
    precompiled_charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_unigram_model(path: Path, family: str) -> SentencePieceModel:
    """Reads the `.model` file of a family, such as "T5", whose models are of the type "unigram".

    Raises:
      UserError: the file is damaged or of another type.
    """
    try:
        model = parse_model(path.read_bytes())
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"tokenizer {path}: not a SentencePiece model ({error})") from None
    if model.model_type != "unigram":
        raise UserError(
            f"tokenizer {path}: a SentencePiece model of the type {model.model_type!r}; {family}'s "
            "is 'unigram'. Remove tokenizer_class from tokenizer_config.json if this is no "
            f"{family}"
        )
    return model


def parse_model(data: bytes) -> SentencePieceModel:
    """Parses the bytes of a `.model` file; ValueError if they are not one."""
    pieces: list[tuple[str, float]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field_number, value in _read_fields(data):
        if field_number == 1 and isinstance(value, bytes):
            piece = dict(_read_fields(value))
            score = piece.get(2, b"\0\0\0\0")
            pieces.append(
                (_require_bytes(piece[1]).decode(), struct.unpack("<f", _require_bytes(score))[0])
            )
        elif field_number == 2 and isinstance(value, bytes):
            trainer = dict(_read_fields(value))
        elif field_number == 3 and isinstance(value, bytes):
            normalizer = dict(_read_fields(value))
    return SentencePieceModel(
        pieces=pieces,
        model_type=_MODEL_TYPES[int(trainer.get(3, 1))],
        unk_id=int(trainer.get(40, 0)),
        byte_fallback=bool(trainer.get(35, 0)),
        precompiled_charsmap=_require_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
    )


def _require_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes were expected")
    return value


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (field number, value) in file order; fixed-width values remain bytes."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        field_number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _read_varint(data, position)
            yield field_number, value
            continue
        if wire_type == _BYTES:
            length, position = _read_varint(data, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if position + length > len(data):
            raise ValueError("the data ends inside a field")
        yield field_number, data[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data):
            raise ValueError("the data ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
