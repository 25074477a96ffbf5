"""Embeds texts with a static embedding model: the mean of one stored vector for each token.

A folder has the format of the model2vec library:

    model.safetensors    "embeddings" [V, E]; with a quantized vocabulary also "mapping" [tokens],
                         the row of each token, and "weights" [tokens], its weight
    tokenizer.json       without special tokens in its template
    config.json          "model_type": "model2vec", "normalize", "max_length"

Results are as in `model2vec.StaticModel.encode`. Nothing here needs an accelerator.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from bert_jax.errors import UserError, require_list_of_texts
from bert_jax.io.json_io import read_json_object
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.text.tokenizer import check_unicode

MODEL_TYPE = "model2vec"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"

_DEFAULT_MAX_LENGTH = 512  # model2vec's for a config without a length


def is_static_folder(folder: Path) -> bool:
    """Returns whether a folder has a static embedding model, by the type in its config.json."""
    file = folder / CONFIG
    return file.is_file() and read_json_object(file).get("model_type") == MODEL_TYPE


class StaticEmbedder:
    """Embeds texts: `StaticEmbedder("static")(["A text."])` is float32 [1, E].

    Attributes:
      embeddings: float [V, E], the vectors of the tokens, with their weights.
      dimensions: E.
      normalize: whether vectors are divided by their Euclidean norm.
    """

    def __init__(self, folder: str | Path):
        """Reads a folder.

        Raises:
          UserError: a file is missing or damaged, or the files do not belong together.
        """
        folder = resolve_model_folder(folder)
        config = read_json_object(folder / CONFIG)
        if config.get("model_type") != MODEL_TYPE:
            raise UserError(
                f"{folder / CONFIG}: model_type is {config.get('model_type')!r}, expected "
                f"{MODEL_TYPE!r}; `bert-jax distill-static` makes such a folder from an encoder"
            )
        self.normalize = bool(config.get("normalize", False))
        self._max_length = _read_max_length(folder, config)
        self._tokenizer = _read_tokenizer(folder)
        vocabulary = self._tokenizer.get_vocab()
        self.embeddings = _read_embeddings(folder, len(vocabulary))
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        # A Unigram model has the id of its unknown token, which only the file shows.
        self._unknown_id = (
            json.loads(self._tokenizer.to_str())["model"].get("unk_id")
            if unknown is None
            else vocabulary.get(unknown)
        )
        # model2vec cuts the characters of a text before its tokens.
        self._median_token_length = int(np.median([len(token) for token in vocabulary]))

    @property
    def dimensions(self) -> int:
        """Returns E, the number of components of a vector."""
        return self.embeddings.shape[1]

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of texts, float32 [texts, E].

        Unknown tokens are left out of the mean. A text without tokens has a vector of zeros.
        """
        return self.embed(texts)[0]

    def embed(self, texts: Sequence[str]) -> tuple[np.ndarray, list[bool]]:
        """Returns the vectors of texts, float32 [texts, E], and whether each was truncated."""
        require_list_of_texts(texts)
        check_unicode(texts)
        lengths = [len(text) for text in texts]
        if self._max_length is not None:
            longest = self._max_length * self._median_token_length
            texts = [text[:longest] for text in texts]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, encoding in enumerate(encodings):
            ids = [token_id for token_id in encoding.ids if token_id != self._unknown_id]
            if ids:
                vectors[row] = self.embeddings[ids].mean(axis=0, dtype=np.float32)
        if self.normalize:
            # Added and not a maximum, with the constant of model2vec, so that vectors have the
            # same bits.
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-32
        truncated = [
            len(text) < length or bool(encoding.overflowing)
            for text, length, encoding in zip(texts, lengths, encodings, strict=True)
        ]
        return vectors, truncated


def _read_max_length(folder: Path, config: Mapping[str, Any]) -> int | None:
    """Returns how many tokens of a text are read; None for all of them."""
    length = config.get("max_length", _DEFAULT_MAX_LENGTH)
    if length is not None and (type(length) is not int or length < 1):
        raise UserError(
            f"{folder / CONFIG}: max_length is {length!r}, expected a positive integer or null"
        )
    return length


def _read_tokenizer(folder: Path) -> Tokenizer:
    file = folder / TOKENIZER
    if not file.is_file():
        raise UserError(f"{file} is missing; a static embedding model needs its tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise UserError(f"{file} cannot be read: {error}; copy the folder again") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if (length := _read_max_length(folder, read_json_object(folder / CONFIG))) is not None:
        tokenizer.enable_truncation(length)
    return tokenizer


def _read_embeddings(folder: Path, num_tokens: int) -> np.ndarray:
    """Returns the vector of each token, with its weight."""
    file = folder / WEIGHTS
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read: {error}; copy the folder again") from None
    # sentence-transformers saves the tensor under a name of its own.
    name = next((each for each in ("embeddings", "embedding.weight") if each in tensors), None)
    if name is None:
        raise UserError(f"{file} has the tensors {sorted(tensors)}, expected 'embeddings'")
    embeddings, mapping = tensors[name], tensors.get("mapping")
    if mapping is not None:
        embeddings = embeddings[mapping]
    if "weights" in tensors:
        embeddings = embeddings * tensors["weights"][:, None]
    if embeddings.ndim != 2 or len(embeddings) != num_tokens:
        raise UserError(
            f"{file} has vectors of shape {list(embeddings.shape)}, but {folder / TOKENIZER} has "
            f"{num_tokens:,} tokens; the files do not belong together"
        )
    if not np.isfinite(embeddings).all():
        raise UserError(f"{file} has values that are not finite; make the folder again")
    return embeddings
