"""Reads TensorBoard's event files without a library: TFRecords of protobuf messages."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Returns {tag: {step: value}} of all event files in a folder, in the order of their names."""
    scalars: dict[str, dict[int, float]] = {}
    for file in sorted(folder.iterdir()):
        for record in _records(file.read_bytes()):
            event = dict(_fields(record))  # 2: step, 5: summary, whose fields 1 are values
            for _, value in _fields(event.get(5, b"")):
                fields = dict(_fields(value))  # 1: tag, 2: simple_value
                if isinstance(fields.get(2), float):
                    scalars.setdefault(fields[1].decode(), {})[event.get(2, 0)] = fields[2]
    return scalars


def _records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a TFRecord file: length, its checksum, data, their checksum."""
    start = 0
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        yield data[start + 12 : start + 12 + length]
        start += 12 + length + 4


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yields (number, value) of the fields of a protobuf message."""
    start = 0
    while start < len(data):
        key, start = _varint(data, start)
        match key & 7:
            case 0:
                value, start = _varint(data, start)
            case 1:
                (value,) = struct.unpack_from("<d", data, start)
                start += 8
            case 2:
                length, start = _varint(data, start)
                value = data[start : start + length]
                start += length
            case _:  # 5
                (value,) = struct.unpack_from("<f", data, start)
                start += 4
        yield key >> 3, value


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[start]
        value |= (byte & 127) << shift
        start, shift = start + 1, shift + 7
        if byte < 128:
            return value, start
