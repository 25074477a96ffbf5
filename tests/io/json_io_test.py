"""Covers bert_jax/io/json_io.py: damaged files are errors that name the file and what is wrong."""

import pytest

from bert_jax.errors import UserError
from bert_jax.io.json_io import format_json, read_json, read_json_object


def test_written_json_is_read_back_unchanged(tmp_path):
    value = {"text": "Zürich\u2028", "list": [1, 2.5, None, True]}
    (tmp_path / "a.json").write_text("\ufeff" + format_json(value), encoding="utf-8")
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b', r"a\.json: not valid JSON at line 2, column 2"),
        (b'{"a": 1, "b": 2, "a": 3}', r"a\.json: the key 'a' occurs twice"),
        (b'"\xff"', r"a\.json: not valid JSON \('utf-8' codec"),
        (b"[" * 100_000, r"a\.json: not valid JSON \(.*recursion"),
        (b"1" * 5000, r"a\.json: not valid JSON \(.*4300 digits"),
        (b"[1]", r"a\.json: expected a JSON object, found a list"),
    ],
    ids=["cut off", "duplicate key", "not UTF-8", "deep", "long number", "list"],
)
def test_damaged_json_is_a_user_error(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_json_object(tmp_path / "a.json")


def test_missing_json_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"absent\.json does not exist"):
        read_json(tmp_path / "absent.json")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_json(tmp_path)
