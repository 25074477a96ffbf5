"""Covers bert_jax/data/sentence_embeddings/packed_rows.py."""

import numpy as np
import pytest

from bert_jax.data.sentence_embeddings.packed_rows import fill_rows, packed_tokens, rows_per_part


def test_rows_have_every_text_once_and_few_are_needed():
    rng = np.random.default_rng(0)
    for size in (1, 7, 64, 300):
        lengths = rng.integers(2, 33, size).tolist()
        rows = fill_rows(lengths, 32)
        assert sorted(text for row in rows for text in row) == list(range(size))
        tokens = [sum(lengths[text] for text in row) for row in rows]
        assert max(tokens) <= 32
        # Best fit decreasing needs at most 11/9 of the fewest rows, and 6/9 more (Johnson 1973).
        assert len(rows) <= 11 / 9 * -(-sum(lengths) // 32) + 1


def test_longest_texts_come_first_into_the_fullest_row():
    assert fill_rows([3, 8, 5, 4, 6], 10) == [[1], [4, 3], [2, 0]]


@pytest.mark.parametrize(("process_count", "num_parts"), [(1, 1), (1, 4), (2, 1), (2, 2)])
def test_each_token_of_a_part_has_one_place(process_count, num_parts):
    size, num_texts, length = 16, 3, 12
    lengths = np.random.default_rng(1).integers(2, length + 1, (size, num_texts))
    count = rows_per_part(lengths, length, process_count, num_parts)
    shape = (count + 1) * process_count * num_parts, length  # one more row than is needed
    found = packed_tokens(lengths, shape, process_count, num_parts)
    assert (found.shape, found.dtype) == (shape, np.int32)
    for part in range(num_parts):
        # As the device splits a batch into parts, and numbers the texts of each.
        rows, texts = found[part::num_parts], lengths[part::num_parts].ravel()
        expected = [text * length + np.arange(size) for text, size in enumerate(texts)]
        assert sorted(rows[rows >= 0].tolist()) == np.concatenate(expected).tolist()
        for process, own in enumerate(np.split(rows, process_count)):
            owners = own[own >= 0] // length // num_texts
            assert set(owners * process_count * num_parts // size) == {process}
        for row in rows:
            tokens = row[row >= 0]
            assert (row[len(tokens) :] == -1).all()
            starts = np.flatnonzero(np.diff(tokens // length, prepend=-1))
            assert (tokens[starts] % length == 0).all()  # a text is in one piece
            assert (np.delete(np.diff(tokens, prepend=0), starts) == 1).all()


def test_too_few_rows_are_an_error():
    with pytest.raises(ValueError, match="the texts need 2 rows, but there are 1"):
        packed_tokens(np.array([[8, 9]]), (1, 10), 1, 1)
