"""Gives static vectors, ELMo and encoders one interface: the vectors of the words of texts."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from bert_jax.apps.treebanks.word_features import (
    Sentences,
    WordFeatures,
    encode_words,
    tokenize_sentences,
)
from bert_jax.apps.word_vectors.elmo import is_elmo_folder, load_elmo
from bert_jax.apps.word_vectors.sentences import split_words
from bert_jax.apps.word_vectors.vectors import WordVectors, read_word_vectors
from bert_jax.errors import UserError
from bert_jax.pretrained.load import LoadedModel, load_encoder, require_tokenizer

_WORD_OR_MARK = re.compile(r"(?:\w|[\u0300-\u036f])+|[^\w\s]")


class WordEncoder(Protocol):
    """Computes the vectors of the words of texts, in one layer or several."""

    @property
    def layer_names(self) -> Sequence[str]:
        """The names of the N layers."""
        ...

    def embed(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the vectors of the words of each text, float32 [words, N, D].

        The words are those of `split_words`; a word without a vector has zeros.
        """
        ...


class EncoderWords:
    """Computes the hidden states of all layers of an encoder, each word the mean of its tokens."""

    def __init__(self, model: LoadedModel):
        self._model = model
        self.layer_names = tuple(
            f"layer {layer}" for layer in range(model.config.num_applied_layers + 1)
        )

    def embed(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the hidden states of words, float32 [words, N, D]; layer 0 is the embeddings.

        The encoder reads punctuation and case, too. Words after its maximum length have zeros.

        Raises:
          UserError: the model has no tokenizer, or an adapter.
        """
        sentences = self._fitting([_WORD_OR_MARK.findall(text) for text in texts])
        filled = [sentence for sentence in sentences if sentence]
        shape = len(self.layer_names), self._model.config.hidden_size
        states = np.zeros((0, *shape), np.float32)
        if filled:
            states = np.swapaxes(encode_words(self._model, filled, cache=None).values, 0, 1)
        found, start = list[np.ndarray](), 0
        for text, sentence in zip(texts, sentences, strict=True):
            # A mark is no word, and a run of letters with underscores is several.
            numbers = [len(split_words(word)) for word in sentence]
            rows = np.repeat(states[start : start + len(sentence)], numbers, axis=0)
            start += len(sentence)
            vectors = np.zeros((len(split_words(text)), *shape), np.float32)
            vectors[: len(rows)] = rows
            found.append(vectors)
        return found

    def _fitting(self, sentences: list[list[str]]) -> list[list[str]]:
        """Returns the sentences without the words after the maximum length of the model."""
        tokenizer, fitting = require_tokenizer(self._model), list[list[str]]()
        num_special = len(tokenizer.build_inputs_with_special_tokens([]))
        limit = self._model.config.max_length - num_special
        for words in sentences:
            numbers = tokenize_sentences([words], tokenizer)[1][0] if words else np.zeros(0)
            fitting.append(words[: int(np.searchsorted(np.cumsum(numbers), limit, "right"))])
        return fitting


def load_word_encoder(path: str) -> WordEncoder:
    """Loads a file of word vectors, a folder of ELMo, or any encoder.

    Raises:
      UserError: there is no such file or model, or it is damaged.
    """
    if Path(path).is_file():
        return read_word_vectors(path)
    if is_elmo_folder(Path(path)):
        return load_elmo(Path(path))
    return EncoderWords(load_encoder(path))


def look_up_words(vectors: WordVectors, sentences: Sentences) -> WordFeatures:
    """Returns the vectors of the words of sentences as features with one layer.

    A word without a vector has the vector of its lower case, else zeros.

    Raises:
      UserError: no word of the sentences has a vector.
    """
    words = [word for sentence in sentences for word in sentence]
    values = np.zeros((len(words), vectors.array.shape[1]), np.float32)
    found = False
    for row, word in enumerate(words):
        name = word if word in vectors else word.lower()
        if name in vectors:
            values[row], found = vectors[name], True
    if not found:
        raise UserError(f"none of the {len(set(words)):,} different words has a vector")
    return WordFeatures(("vectors",), values[None])
