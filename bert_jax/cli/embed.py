"""Runs `bert-jax embed`: prints the embeddings of texts, as JSON lines."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import (
    MODEL_WITHOUT_HEAD,
    ModelArguments,
    TextArguments,
    VectorArguments,
    text_groups,
)
from bert_jax.config.flags import first_given, flag
from bert_jax.errors import ConfigError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.models.sentence_encoder.config import TextRole

if TYPE_CHECKING:
    import numpy as np

    from bert_jax.pretrained.load import LoadedModel

HELP = "compute embeddings (vectors) of texts; to search by them: `search index`"

EPILOG = f"""examples:
  bert-jax embed exported "A text." "Another text."
  bert-jax embed all-MiniLM-L6-v2 --file texts.txt > vectors.jsonl
  bert-jax embed e5-small --prompt-name query "how do bees fly"
  bert-jax embed runs/tiny --pooling cls --layers=-4,-3,-2,-1 --file texts.txt > vectors.jsonl
  bert-jax embed splade --role query "how do bees fly"
  bert-jax embed bge-m3 --heads dense,sparse,multi-vector "how do bees fly"

{MODEL_WITHOUT_HEAD}
A folder of sentence-transformers, and a run of `bert-jax embed-train`, has a pooling, dense layers,
normalization and prompts of its own, which are used unless flags choose others. A static embedding
model, as bert-jax distill-static makes, accepts none of these flags.

Each embedding is one line: {{"text": ..., "truncated": false, "embedding": [...]}}. Line N of the
output belongs to line N of a file or of standard input; the embedding of an empty line is that of
[CLS] and [SEP] alone.

A sparse model (SPLADE) and a multi-vector model (ColBERT) read queries and documents differently
(--role). The embedding of a sparse model is {{"net": 1.9, "repair": 1.4, ...}}, the weights of
tokens of the vocabulary, largest first. A multi-vector model has a vector for each token of a text,
whose names are in "tokens"; some tokens, such as punctuation, may have none.

With --heads, a model in the layout of BGE-M3 computes several embeddings in one pass: "dense",
"sparse" with the weights of the tokens of the text, and "multi_vector" with "tokens".
"""

_HEADS: dict[str, EmbeddingKind] = {
    "dense": "dense",
    "sparse": "sparse",
    "multi-vector": "multi_vector",
}


def _parse_layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parse_heads(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


@dataclass(frozen=True, kw_only=True)
class Arguments(VectorArguments, TextArguments, ModelArguments):
    """Names the model and the texts, and how vectors are made."""

    prompt_name: str | None = flag(
        "NAME",
        "prompt of the model that is put before each text, such as query (default: the model's "
        "default prompt, if it has one)",
    )
    prompt: str | None = flag("TEXT", "prompt that is put before each text, such as 'query: '")
    layers: tuple[int, ...] | None = flag(
        "N,N",
        "layers whose pooled vectors are concatenated, without the dense layers and the "
        "normalization of the model: 0 is the embedding layer, 1 the first layer, -1 the last; a "
        "negative number needs the equals sign, as in --layers=-2,-1 (default: the last)",
        type=_parse_layers,
    )

    role: TextRole | None = flag(
        "",
        "what the texts are in a search, for sparse and multi-vector models (default: document)",
    )
    heads: tuple[str, ...] | None = flag(
        "KIND,KIND",
        "embeddings that a model in the layout of BGE-M3 computes in one pass: dense, sparse, "
        "multi-vector",
        type=_parse_heads,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_name is not None and self.prompt is not None:
            raise ConfigError("--prompt-name and --prompt are both given; expected one of them")
        for head in self.heads or ():
            if head not in _HEADS:
                raise ConfigError(f"--heads has {head!r}; expected {', '.join(_HEADS)}")
        flags = ("pooling", "layers", "normalize", "dimensions", "role")
        if self.heads and (name := first_given(self, *flags)):
            raise ConfigError(f"--heads does not use {name}; remove one of them")


def run(args: Arguments) -> None:
    """Prints one JSON line for each text, in order."""
    from bert_jax.predict.static_embedder import is_static_folder
    from bert_jax.pretrained.folder import resolve_model_folder

    if is_static_folder(resolve_model_folder(args.model)):
        _embed_statically(args)
        return
    from bert_jax.pretrained.embedding_model import embedding_kind
    from bert_jax.pretrained.load import load_encoder

    model = load_encoder(args.model)
    if args.heads:
        _embed_with_heads(args, model)
        return
    match embedding_kind(model):
        case "dense":
            _embed_densely(args, model)
        case "sparse":
            _embed_sparsely(args, model)
        case "multi_vector":
            _embed_tokens(args, model)


def _embed_densely(args: Arguments, model: "LoadedModel") -> None:
    from bert_jax.predict.embedder import Embedder

    if args.role is not None:
        raise ConfigError(
            f"{args.model} makes one dense vector for a text of any role, so it does not use "
            "--role; choose a prompt with --prompt-name"
        )
    embed = Embedder(
        model,
        pooling=args.pooling,
        layers=args.layers,
        normalize=args.normalize,
        dimensions=args.dimensions,
    )
    for text_batch in text_groups(args):
        embedded = embed.embed(text_batch, prompt_name=args.prompt_name, prompt=args.prompt)
        _print_records(text_batch, *embedded)


def _embed_sparsely(args: Arguments, model: "LoadedModel") -> None:
    """Prints the weights of tokens of the vocabulary."""
    from bert_jax.predict.sparse_embedder import SparseEmbedder

    _check_flags(args, "sparse")
    embed = SparseEmbedder(model)
    for texts in text_groups(args):
        vectors, truncated = embed.embed(texts, **_chosen(args))
        for text, weights, cut in zip(texts, embed.weights(vectors), truncated, strict=True):
            _print_record({"text": text, "truncated": cut, "embedding": weights})


def _embed_tokens(args: Arguments, model: "LoadedModel") -> None:
    """Prints a vector for each token of a text."""
    from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder

    _check_flags(args, "multi-vector")
    embed = MultiVectorEmbedder(model)
    for texts in text_groups(args):
        for text, embedded in zip(texts, embed.embed(texts, **_chosen(args)), strict=True):
            _print_record(
                {
                    "text": text,
                    "truncated": embedded.is_truncated,
                    "tokens": embed.tokens(embedded),
                    "embedding": embedded.vectors.tolist(),
                }
            )


def _embed_with_heads(args: Arguments, model: "LoadedModel") -> None:
    """Prints the embeddings of several heads, which are computed in one pass."""
    from bert_jax.predict.m3_embedder import M3Embedder

    embed = M3Embedder(model, [_HEADS[head] for head in args.heads or ()])
    for texts in text_groups(args):
        found = embed(texts, prompt_name=args.prompt_name, prompt=args.prompt)
        weights = None if found.sparse is None else embed.weights(found.sparse)
        for index, text in enumerate(texts):
            record: dict[str, Any] = {"text": text, "truncated": found.truncated[index]}
            if found.dense is not None:
                record["dense"] = found.dense[index].tolist()
            if weights is not None:
                record["sparse"] = weights[index]
            if found.multi_vector is not None:
                record["tokens"] = embed.tokens(found.multi_vector[index])
                record["multi_vector"] = found.multi_vector[index].vectors.tolist()
            _print_record(record)


def _check_flags(args: Arguments, kind: str) -> None:
    if name := first_given(args, "pooling", "layers", "normalize", "dimensions"):
        raise ConfigError(f"{args.model} is a {kind} model, which does not use {name}; remove it")


def _chosen(args: Arguments) -> dict[str, Any]:
    role: TextRole = args.role or "document"
    return {"role": role, "prompt_name": args.prompt_name, "prompt": args.prompt}


def _embed_statically(args: Arguments) -> None:
    """Prints the vectors of a static embedding model, which has no layers, pooling or prompts."""
    from bert_jax.predict.static_embedder import StaticEmbedder

    flags = ("pooling", "layers", "normalize", "dimensions", "role", "heads")
    if name := first_given(args, *flags, "prompt_name", "prompt"):
        raise ConfigError(
            f"{args.model} is a static embedding model, which does not support {name}; remove it"
        )
    embed = StaticEmbedder(args.model)
    for text_batch in text_groups(args):
        _print_records(text_batch, *embed.embed(text_batch))


def _print_records(texts: list[str], vectors: "np.ndarray", truncated: list[bool]) -> None:
    for text, vector, is_truncated in zip(texts, vectors, truncated, strict=True):
        _print_record({"text": text, "truncated": is_truncated, "embedding": vector.tolist()})


def _print_record(record: dict[str, Any]) -> None:
    print(json.dumps(record, ensure_ascii=False), flush=True)
