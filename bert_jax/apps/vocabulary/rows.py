"""Chooses how the embedding rows of new tokens are made of the rows of old ones.

A token of an added word is the mean of the tokens that the word had. With another tokenizer, tokens
that both vocabularies have keep their rows. The others are made by FOCUS (Dobler and de Melo 2023):
the mean of the rows of copied tokens, weighted by the sparsemax (Martins and Astudillo 2016) of the
cosines between static vectors, which are trained on text in tokens of the new tokenizer. A token
without such a vector is the mean of its old tokens.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_array
from tokenizers import decoders

from bert_jax.apps.word_vectors.vectors import WordVectors
from bert_jax.errors import UserError
from bert_jax.text.tokenizer import Tokenizer

Source = Literal["copied", "old_tokens", "nearest", "average"]
"""How a row is made: it is an old row; the mean of the rows of old tokens; FOCUS; or the mean of
all rows, for a token of which the old tokenizer knows nothing."""

_ROWS_AT_ONCE = 512
_UNDECODABLE = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class RowWeights:
    """Holds how each new row is made of old rows.

    Attributes:
      weights: float64 [new tokens, old tokens]; the sum of a row is 1, and 0 for "average".
      sources: for each new token, how its row is made.
      ordinary_ids: old tokens whose rows "average" is the mean of.
      num_old: the number of old tokens.
    """

    weights: csr_array
    sources: list[Source]
    ordinary_ids: np.ndarray
    num_old: int

    @property
    def counts(self) -> dict[str, int]:
        """Returns the number of rows of each kind."""
        counts: Counter[str] = Counter(self.sources)
        return dict(counts)

    def apply(self, table: np.ndarray, random: np.random.Generator | None = None) -> np.ndarray:
        """Returns the new rows of a table [old tokens, ...], float32.

        Args:
          table: one row, or one number, for each old token; rows that follow them are not used.
          random: None, or a generator, to draw all rows that are not old ones from a normal
            distribution with the mean and the deviation of the old rows: a baseline.
        """
        old = table[: self.num_old].astype(np.float64)
        rows = np.asarray(self.weights @ old)
        sources = np.array(self.sources)
        rows[sources == "average"] = old[self.ordinary_ids].mean(axis=0)
        if random is not None:
            is_new = sources != "copied"
            normal = random.standard_normal(rows[is_new].shape)
            rows[is_new] = old.mean(axis=0) + old.std(axis=0) * normal
        return rows.astype(np.float32)


def added_rows(old: Tokenizer, old_ids: Sequence[Sequence[int]]) -> RowWeights:
    """Returns the old rows, and after them the mean of the old tokens of each new token."""
    rows = [*([i] for i in range(old.vocab_size)), *(_known(old, ids) for ids in old_ids)]
    sources: list[Source] = []
    for token_id, ids in enumerate(rows):
        is_old = token_id < old.vocab_size
        sources.append("copied" if is_old else "old_tokens" if ids else "average")
    return _means(old, rows, sources)


def replaced_rows(old: Tokenizer, new: Tokenizer, vectors: WordVectors | None = None) -> RowWeights:
    """Returns how the rows for the tokens of another tokenizer are made.

    Args:
      vectors: static vectors of tokens of the new tokenizer, for FOCUS; None for the mean of the
        old tokens.

    Raises:
      UserError: none of the tokens with a vector is in both vocabularies.
    """
    old_keys = {_key(old, i): i for i in range(old.vocab_size)}
    rows: list[list[int]] = []
    sources: list[Source] = []
    roles = dict(
        zip(
            new.special_tokens.as_dict().values(),
            old.special_tokens.as_dict().values(),
            strict=True,
        )
    )
    for token_id in range(new.vocab_size):
        token, key = new.id_to_token(token_id), _key(new, token_id)
        same = old.token_to_id(roles[token]) if token in roles else old_keys.get(key)
        ids = [same] if same is not None else _known(old, _tokenize(old, old_keys, key))
        rows.append(ids)
        sources.append("copied" if same is not None else "old_tokens" if ids else "average")
    means = _means(old, rows, sources)
    return means if vectors is None else _focus(new, means, vectors)


def _known(old: Tokenizer, ids: Sequence[int]) -> list[int]:
    return [i for i in ids if i not in old.special_ids]


def _means(old: Tokenizer, rows: Sequence[Sequence[int]], sources: Sequence[Source]) -> RowWeights:
    ends = np.cumsum([0, *map(len, rows)])
    values = np.concatenate([np.full(len(ids), 1 / max(1, len(ids))) for ids in rows])
    columns = np.array([i for ids in rows for i in ids], np.int64)
    weights = csr_array((values, columns, ends), shape=(len(rows), old.vocab_size))
    ordinary = [i for i in range(old.vocab_size) if i not in old.special_ids]
    return RowWeights(
        weights=weights,
        sources=list(sources),
        ordinary_ids=np.array(ordinary),
        num_old=old.vocab_size,
    )


# What the same token is in two tokenizers: (whether it begins a word, its characters).
_Key = tuple[bool | None, str]


def _key(tokenizer: Tokenizer, token_id: int) -> _Key:
    """Returns a token without the marks of its algorithm.

    Tokens of byte-level BPE with a part of a character have (None, token), which only other
    tokenizers of this kind have.
    """
    token = tokenizer.id_to_token(token_id)
    if token_id in tokenizer.special_ids:
        return True, token
    begins_word = bool(tokenizer.word_starts[token_id])
    if tokenizer.kind == "wordpiece":
        return begins_word, token if begins_word else token.removeprefix("##")
    if tokenizer.kind == "bpe":
        text = decoders.ByteLevel().decode([token])
        return (None, token) if _UNDECODABLE in text else (begins_word, text.removeprefix(" "))
    return begins_word, token.removeprefix("▁")


def _tokenize(old: Tokenizer, old_keys: dict[_Key, int], key: _Key) -> list[int]:
    """Returns the ids of the old tokens that have the characters of a token."""
    begins_word, text = key
    if begins_word is None:
        return [old.token_to_id(byte) for byte in text if byte in old]
    if old.kind == "bpe":
        return old.encode(f" {text}" if begins_word else text)
    if begins_word:
        return old.encode(text)
    # A continuation cannot be encoded alone: this is WordPiece's longest match first.
    ids: list[int] = []
    start = 0
    while start < len(text):
        matches = (e for e in range(len(text), start, -1) if (False, text[start:e]) in old_keys)
        end = next(matches, None)
        if end is None:  # such as punctuation, which only begins words in WordPiece
            return old.encode(text)
        ids.append(old_keys[False, text[start:end]])
        start = end
    return ids


def _focus(new: Tokenizer, means: RowWeights, vectors: WordVectors) -> RowWeights:
    """Replaces the rows of tokens with a vector that are not old ones by FOCUS."""
    ids = [new.token_to_id(token) for token in vectors.words]
    is_common = np.array([means.sources[i] == "copied" for i in ids], bool)
    if not is_common.any():
        raise UserError(
            "no token with a static vector is in both vocabularies; expected more text, or a "
            "tokenizer of the same language"
        )
    common_ids = np.array(ids)[is_common]
    new_ids = np.array(ids)[~is_common]
    common_vectors, new_vectors = vectors.unit[is_common], vectors.unit[~is_common]
    weights, sources = means.weights.tolil(), list(means.sources)
    # Each copied row has one weight, that of its old token.
    old_ids = means.weights.indices[means.weights.indptr[common_ids]]
    for start in range(0, len(new_ids), _ROWS_AT_ONCE):
        cosines = new_vectors[start : start + _ROWS_AT_ONCE] @ common_vectors.T
        for token_id, row in zip(new_ids[start:], sparsemax(cosines), strict=False):
            order = np.argsort(old_ids[row > 0])
            weights.rows[token_id] = old_ids[row > 0][order].tolist()
            weights.data[token_id] = row[row > 0][order].tolist()
            sources[token_id] = "nearest"
    return dataclasses.replace(means, weights=weights.tocsr(), sources=sources)


def sparsemax(scores: np.ndarray) -> np.ndarray:
    """Returns the point of the simplex nearest to each row of scores, float64 [rows, columns].

    Like softmax, but small scores have the probability 0 (Martins and Astudillo 2016, algorithm 1).
    """
    scores = scores.astype(np.float64)
    descending = -np.sort(-scores, axis=1)
    totals = np.cumsum(descending, axis=1)
    ranks = np.arange(1, scores.shape[1] + 1)
    sizes = (1 + ranks * descending > totals).sum(axis=1)
    thresholds = (totals[np.arange(len(scores)), sizes - 1] - 1) / sizes
    return np.maximum(scores - thresholds[:, None], 0)
