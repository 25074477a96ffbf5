"""Computes features of words in sentences: the hidden states of all layers of a frozen encoder.

Word vectors (`look_up_words`) and networks with random parameters give features of the same form,
so that every analysis of words can compare them.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, make_folder
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.model import build_network
from bert_jax.params import paths
from bert_jax.predict.batches import padded_batches
from bert_jax.pretrained.load import LoadedModel, require_no_adapter, require_tokenizer
from bert_jax.tasks.token_classification import tokenize_words
from bert_jax.text.tokenizer import Tokenizer

Pooling = Literal["first", "mean"]
"""The vector of a word: of its first token, or the mean of its tokens."""
Sentences = Sequence[Sequence[str]]


class WordFeatures(NamedTuple):
    """Holds the features of all W words of some sentences, in order.

    Attributes:
      layers: the name of each of the K layers, such as "0" (the embeddings), "1", ...
      values: float32 [K, W, D]; may be a memory map.
    """

    layers: tuple[str, ...]
    values: np.ndarray


def encode_words(
    model: LoadedModel, sentences: Sentences, *, pooling: Pooling = "mean", cache: Path | None
) -> WordFeatures:
    """Computes the hidden states of all layers, pooled to words.

    Each word is tokenized alone, as for the classification of tokens; special tokens are around
    the sentence.

    Args:
      cache: a folder; features of the same model and sentences are read from it if it has them,
        and written to it otherwise. None: they stay in memory.

    Raises:
      UserError: the model has no tokenizer or an adapter, or a sentence is too long for it (see
        `fitting_sentences`).
    """
    require_no_adapter(model, "compute features of words")
    names = tuple(str(layer) for layer in range(model.config.num_applied_layers + 1))
    if cache is None:
        return WordFeatures(names, _encode(model, sentences, pooling, None))
    file = cache / f"words-{_fingerprint(model, sentences, pooling)}.npy"
    if not file.is_file():
        make_folder(cache)
        with atomic_path(file) as partial_path:
            _encode(model, sentences, pooling, partial_path)
    return WordFeatures(names, np.load(file, mmap_mode="r"))


def fitting_sentences(model: LoadedModel, sentences: Sentences) -> list[int]:
    """Returns the indices of the sentences that are not longer than the model reads."""
    sequences, _ = tokenize_sentences(sentences, require_tokenizer(model))
    return [i for i, ids in enumerate(sequences) if len(ids) <= model.config.max_length]


def with_random_parameters(model: LoadedModel, seed: int = 0) -> LoadedModel:
    """Returns the model with newly initialized parameters: the same network, not trained."""
    params = build_network(model.config, ()).init(jax.random.key(seed))
    return dataclasses.replace(model, params=jax.device_get(params))


def tokenize_sentences(
    sentences: Sentences, tokenizer: Tokenizer
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Returns the ids of each sentence with special tokens, and its words' numbers of tokens."""
    tokens = tokenize_words((word for sentence in sentences for word in sentence), tokenizer)
    sequences: list[list[int]] = []
    counts: list[np.ndarray] = []
    for sentence in sentences:
        ids = [tokens[word] for word in sentence]
        counts.append(np.array([len(each) for each in ids]))
        joined = np.concatenate(ids).tolist()
        sequences.append(tokenizer.build_inputs_with_special_tokens(joined).tolist())
    return sequences, counts


def _encode(
    model: LoadedModel, sentences: Sentences, pooling: Pooling, file: Path | None
) -> np.ndarray:
    """Computes float32 [K, W, D], written to `file` while it is computed."""
    tokenizer, max_length = require_tokenizer(model), model.config.max_length
    sequences, counts = tokenize_sentences(sentences, tokenizer)
    for sentence, ids in zip(sentences, sequences, strict=True):
        if len(ids) > max_length:
            raise UserError(
                f"the sentence {' '.join(sentence)[:60]!r} ... has {len(ids)} tokens with special "
                f"tokens, but {model.path} reads {max_length}; leave it out"
            )
    starts = np.cumsum([0, *map(len, sentences)])
    shape = (model.config.num_applied_layers + 1, int(starts[-1]), model.config.hidden_size)
    if file is None:
        values = np.empty(shape, np.float32)
    else:
        values = np.lib.format.open_memmap(file, "w+", np.float32, shape)
    num_prefix_tokens = tokenizer.build_inputs_with_special_tokens([-1]).tolist().index(-1)
    params = jax.device_put(model.params["encoder"])
    for indices, batch in padded_batches(sequences, pad_id=tokenizer.pad_id, max_length=max_length):
        hidden_KBLD = np.asarray(_hidden_states(model.config, params, batch))
        for row, index in enumerate(indices):
            first = num_prefix_tokens + np.cumsum([0, *counts[index][:-1]])
            end = num_prefix_tokens + counts[index].sum()
            if pooling == "first":
                pooled = hidden_KBLD[:, row, first]
            else:
                sums = np.add.reduceat(hidden_KBLD[:, row, :end], first, axis=1)
                pooled = sums / counts[index][:, None].astype(np.float32)
            values[:, starts[index] : starts[index + 1]] = pooled
    if isinstance(values, np.memmap):
        values.flush()
    return values


@functools.partial(jax.jit, static_argnums=0)
def _hidden_states(
    config: EncoderConfig, params: Mapping[str, Any], batch: Mapping[str, jax.Array]
) -> jax.Array:
    """Returns the hidden states of all layers, float32 [K, B, L, D]."""
    network = build_network(config, ()).merge({"encoder": params})
    return jnp.stack(network.encode(batch, output_hidden_states=True).hidden_states).astype(
        jnp.float32
    )


def _fingerprint(model: LoadedModel, sentences: Sentences, pooling: Pooling) -> str:
    """Hashes everything on which the features depend."""
    tokenizer = require_tokenizer(model)
    parts = (
        paths.fingerprint(model.params["encoder"]),
        repr(model.config),
        tokenizer.fingerprint,
        tokenizer.build_inputs_with_special_tokens([-1]).tolist(),
        pooling,
        [list(sentence) for sentence in sentences],
    )
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
