"""Distills an encoder into a static embedding model: one vector for each token of its vocabulary.

The method and the format are the model2vec library's. Each token is encoded alone, between
the special tokens; the mean of the hidden states is its vector. The vectors of all tokens are
reduced by principal component analysis, and weighted like words by SIF (Arora et al. 2017), where
Zipf's law estimates the frequency of a token from its rank. So the vocabulary should be sorted by
frequency, as vocabularies of BERT and of `bert-jax tokenizer train` roughly are.

`model2vec.StaticModel` and `SentenceTransformer` open the folder, and `predict/static_embedder.py`.
"""

import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import atomic_path, check_new_folder, write_json
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.model import build_network
from bert_jax.predict.static_embedder import (
    CONFIG,
    MODEL_TYPE,
    TOKENIZER,
    WEIGHTS,
    StaticEmbedder,
)
from bert_jax.pretrained.load import LoadedModel, require_no_adapter, require_tokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.version import __version__

SIF_COEFFICIENT = 1e-4
"""a in the weight a / (a + p) of a token with probability p; model2vec's default."""

_UNUSED = re.compile(r"\[unused\d+\]")
_BATCH_SIZE = 512


@dataclass(frozen=True, kw_only=True)
class StaticModelFacts:
    """Holds what a distillation reports.

    Attributes:
      num_tokens, dimensions: the shape of the embeddings.
      explained_variance: the fraction of the variance that the principal components have.
      seconds: how long it took.
    """

    num_tokens: int
    dimensions: int
    explained_variance: float
    seconds: float


def distill_static(model: LoadedModel, output: Path, dimensions: int) -> StaticModelFacts:
    """Writes a static embedding model to the new folder `output`.

    Raises:
      ConfigError: there are more dimensions than the encoder has.
      UserError: `output` is not empty or cannot be written, the model has no tokenizer.json, or the
        folder is not the same when read back (nothing is left at `output` then).
    """
    start = time.perf_counter()
    check_new_folder(output)
    require_no_adapter(model, "be distilled into a static model")
    tokenizer, width = require_tokenizer(model), model.config.hidden_size
    if not 1 <= dimensions <= width:
        raise ConfigError(
            f"--dimensions is {dimensions}; expected a number from 1 to {width}, the hidden size "
            f"of {model.path}"
        )
    with atomic_path(output) as folder:
        folder.mkdir(parents=True)
        rules, remaining_ids = static_tokenizer(_tokenizer_rules(tokenizer, folder, model.path))
        if len(remaining_ids) <= dimensions:
            raise ConfigError(
                f"--dimensions is {dimensions}, but {model.path} has only {len(remaining_ids)} "
                "tokens to distill; expected fewer dimensions than tokens"
            )
        vectors = token_vectors(model.config, model.params["encoder"], tokenizer, remaining_ids)
        reduced, explained = principal_components(vectors, dimensions)
        embeddings = (reduced * sif_weights(len(reduced))[:, None]).astype(np.float32)
        _write(folder, embeddings, rules)
        facts = StaticModelFacts(
            num_tokens=len(embeddings),
            dimensions=dimensions,
            explained_variance=explained,
            seconds=time.perf_counter() - start,
        )
        (folder / "README.md").write_text(_card(model, output.name, facts), "utf-8")
        if not np.array_equal(StaticEmbedder(folder).embeddings, embeddings):
            raise UserError(f"{output} was not written: its vectors differ when read back")
    return facts


def static_tokenizer(rules: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Removes the tokens that no text has from the rules of a tokenizer.json.

    These are the special tokens, except padding and unknown words, and the unused
    tokens of BERT's vocabulary. The ids of the remaining tokens are counted from 0.

    Returns:
      The rules without them, and the old id of each remaining token.
    """
    model, added = rules["model"], rules["added_tokens"]
    padding = (rules.get("padding") or {}).get("pad_token")
    unknown = _unknown_token(model)
    padding = padding or next((t["content"] for t in added if "pad" in t["content"].lower()), None)
    dropped = {t["content"] for t in added if t["special"]} - {padding, unknown}
    vocabulary = _ids_of(model) | {t["content"]: t["id"] for t in added}
    remaining = sorted(
        (index, token)
        for token, index in vocabulary.items()
        if token not in dropped and not _UNUSED.fullmatch(token)
    )
    new_ids = {token: new_id for new_id, (_, token) in enumerate(remaining)}
    model = {**model, "vocab": _remaining_vocabulary(model["vocab"], new_ids)}
    if model.get("unk_id") is not None:
        model["unk_id"] = new_ids[unknown]
    remaining_added = [{**t, "id": new_ids[t["content"]]} for t in added if t["content"] in new_ids]
    new_rules = {**rules, "model": model, "added_tokens": remaining_added}
    new_rules |= {"post_processor": None, "truncation": None, "padding": None}
    return new_rules, [index for index, _ in remaining]


def _ids_of(model: Mapping[str, Any]) -> dict[str, int]:
    """Returns the id of each token; the vocabulary of a Unigram model is a list with scores."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return {str(token): index for token, index in vocabulary.items()}
    return {token: index for index, (token, _) in enumerate(vocabulary)}


def _unknown_token(model: Mapping[str, Any]) -> str | None:
    if model.get("unk_id") is not None:
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")


def _remaining_vocabulary(vocabulary: Any, new_ids: Mapping[str, int]) -> Any:
    if isinstance(vocabulary, dict):
        return {token: new_ids[token] for token in vocabulary if token in new_ids}
    return [[token, score] for token, score in vocabulary if token in new_ids]


def token_vectors(
    config: EncoderConfig, encoder_params: Mapping[str, Any], tokenizer: Tokenizer, ids: list[int]
) -> np.ndarray:
    """Encodes each token alone, and returns the mean hidden state, float32 [tokens, D]."""
    sequences = np.array(
        [tokenizer.build_inputs_with_special_tokens([token]) for token in ids], np.int32
    )
    network = build_network(config)

    @jax.jit
    def mean_states(params: Mapping[str, Any], input_ids: jax.Array) -> jax.Array:
        # A token of the text is real whatever its id, also the id of padding.
        batch = {
            "input_ids": input_ids,
            "token_type_ids": jax.numpy.zeros_like(input_ids),
            "attention_mask": jax.numpy.ones_like(input_ids),
        }
        states = network.merge({"encoder": params}).encode(batch).last_hidden_state
        return jax.numpy.mean(states, axis=1)

    params = jax.device_put(encoder_params)
    missing = -len(sequences) % _BATCH_SIZE  # one shape, so one compilation
    padded = np.concatenate([sequences, np.repeat(sequences[:1], missing, axis=0)])
    vectors = [
        np.asarray(mean_states(params, padded[start : start + _BATCH_SIZE]))
        for start in range(0, len(padded), _BATCH_SIZE)
    ]
    return np.concatenate(vectors)[: len(sequences)]


def principal_components(vectors: np.ndarray, dimensions: int) -> tuple[np.ndarray, float]:
    """Returns the first principal components of centered vectors, and the variance they have.

    The sign of a component is such that its largest absolute value is positive.

    Returns:
      float64 [N, dimensions], and the explained fraction of the variance.
    """
    centered = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    covariance = centered.T @ centered / (len(vectors) - 1)
    variances, axes = np.linalg.eigh(covariance)  # ascending
    variances, axes = np.clip(variances[::-1], 0.0, None), axes[:, ::-1]
    scores = centered @ axes[:, :dimensions]
    largest = np.abs(scores).argmax(axis=0)
    signs = np.sign(scores[largest, np.arange(dimensions)])
    return scores * signs, float(variances[:dimensions].sum() / variances.sum())


def sif_weights(num_tokens: int) -> np.ndarray:
    """Returns the weights of tokens by rank, a / (a + p), where p is proportional to 1 / rank.

    Ranks begin at 2, as in model2vec.
    """
    inverse_ranks = 1.0 / np.arange(2, num_tokens + 2)
    return SIF_COEFFICIENT / (SIF_COEFFICIENT + inverse_ranks / inverse_ranks.sum())


def _tokenizer_rules(tokenizer: Tokenizer, folder: Path, path: str) -> dict[str, Any]:
    """Returns the content of a tokenizer's tokenizer.json."""
    source = folder / "tokenizer"
    tokenizer.save(source)
    file = source / TOKENIZER
    if not file.is_file():
        raise UserError(
            f"{path} has a tokenizer of the SentencePiece library, which cannot be written as a "
            "tokenizer.json, so it cannot be distilled into a static model"
        )
    rules = json.loads(file.read_text("utf-8"))
    shutil.rmtree(source)
    return rules


def _write(folder: Path, embeddings: np.ndarray, rules: Mapping[str, Any]) -> None:
    save_file({"embeddings": np.ascontiguousarray(embeddings)}, folder / WEIGHTS)
    (folder / TOKENIZER).write_text(json.dumps(rules, ensure_ascii=False), "utf-8")
    config = {
        "model_type": MODEL_TYPE,
        "architectures": ["StaticModel"],
        "apply_pca": embeddings.shape[1],
        "sif_coefficient": SIF_COEFFICIENT,
        "hidden_dim": embeddings.shape[1],
        "seq_length": 1_000_000,
        "normalize": True,
        "pooling": "mean",
        "embedding_dtype": "float32",
    }
    write_json(folder / CONFIG, config)
    # safetensors gives permissions to the owner only, whatever the umask.
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)
    prefix = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": ".", "type": f"{prefix}.StaticEmbedding"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{prefix}.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n", "utf-8")


def _card(model: LoadedModel, name: str, facts: StaticModelFacts) -> str:
    return f"""---
library_name: model2vec
tags:
- static-embeddings
- sentence-transformers
- bert_jax
---

# {name}

A static embedding model of {facts.num_tokens:,} tokens with {facts.dimensions} dimensions,
distilled from the {model.config.family} encoder `{Path(model.path).name}`. The vector of a text is
the mean of the vectors of its tokens, normalized. The components have
{facts.explained_variance:.1%} of the variance of the encoder's vectors.

```python
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer

StaticModel.from_pretrained("{name}").encode(["A text."])
SentenceTransformer("{name}").encode(["A text."])
```

model2vec leaves unknown tokens out of the mean, and sentence-transformers does not.

Written by bert_jax {__version__}.
"""
