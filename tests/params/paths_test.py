"""Covers bert_jax/params/paths.py: path patterns and tables."""

import pytest

from bert_jax.params import paths


def test_unflatten_is_the_inverse_of_flatten():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    flat = {"a/b": 1, "a/c/d": 2, "e": 3}
    assert paths.flatten(tree) == flat
    assert paths.unflatten(flat) == tree


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/b/c", False),
        ("**/bias", "bias", True),
        ("**/bias", "a/b/bias", True),
        ("**/bias", "a/unbias", False),
        ("a/**", "a/b/c", True),
        ("a/**/d", "a/d", True),
        ("a/**/d", "a/b/c/d", True),
        ("a.b/c", "aXb/c", False),
    ],
)
def test_patterns(pattern, path, matches):
    table = paths.PathTable("t", [(pattern, 1)])
    if matches:
        assert table[path] == 1
    else:
        with pytest.raises(KeyError, match="no row matches"):
            table[path]


def test_path_that_two_rows_match_is_an_error():
    table = paths.PathTable("t", [("a/*", 1), ("*/b", 2)])
    assert table["a/c"] == 1
    with pytest.raises(KeyError, match="all match"):
        table["a/b"]
