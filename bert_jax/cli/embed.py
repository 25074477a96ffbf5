"""Runs `bert-jax embed`: prints the embeddings of texts, as JSON lines."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert_jax.cli.arguments import (
    MODEL_WITHOUT_HEAD,
    ModelArguments,
    TextArguments,
    VectorArguments,
    text_groups,
)
from bert_jax.config.flags import first_given, flag
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

HELP = "compute embeddings (vectors) of texts; to search by them: `search index`"

EPILOG = f"""examples:
  bert-jax embed exported "A text." "Another text."
  bert-jax embed all-MiniLM-L6-v2 --file texts.txt > vectors.jsonl
  bert-jax embed e5-small --prompt-name query "how do bees fly"
  bert-jax embed runs/tiny --pooling cls --layers=-4,-3,-2,-1 --file texts.txt > vectors.jsonl

{MODEL_WITHOUT_HEAD}
A folder of sentence-transformers, and a run of `bert-jax embed-train`, has a pooling, dense layers,
normalization and prompts of its own, which are used unless flags choose others. A static embedding
model, as bert-jax distill-static makes, accepts none of these flags.

Each embedding is one line: {{"text": ..., "truncated": false, "embedding": [...]}}. Line N of the
output belongs to line N of a file or of standard input; the embedding of an empty line is that of
[CLS] and [SEP] alone.
"""


def _parse_layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_name is not None and self.prompt is not None:
            raise ConfigError("--prompt-name and --prompt are both given; expected one of them")


def run(args: Arguments) -> None:
    """Prints one JSON line for each text, in order."""
    from bert_jax.predict.static_embedder import is_static_folder
    from bert_jax.pretrained.folder import resolve_model_folder

    if is_static_folder(resolve_model_folder(args.model)):
        _embed_statically(args)
        return
    from bert_jax.predict.embedder import Embedder
    from bert_jax.pretrained.load import load_encoder

    embed = Embedder(
        load_encoder(args.model),
        pooling=args.pooling,
        layers=args.layers,
        normalize=args.normalize,
        dimensions=args.dimensions,
    )
    for text_batch in text_groups(args):
        embedded = embed.embed(text_batch, prompt_name=args.prompt_name, prompt=args.prompt)
        _print_records(text_batch, *embedded)


def _embed_statically(args: Arguments) -> None:
    """Prints the vectors of a static embedding model, which has no layers, pooling or prompts."""
    from bert_jax.predict.static_embedder import StaticEmbedder

    flags = ("pooling", "layers", "normalize", "dimensions", "prompt_name", "prompt")
    if name := first_given(args, *flags):
        raise ConfigError(
            f"{args.model} is a static embedding model, which does not support {name}; remove it"
        )
    embed = StaticEmbedder(args.model)
    for text_batch in text_groups(args):
        _print_records(text_batch, *embed.embed(text_batch))


def _print_records(texts: list[str], vectors: "np.ndarray", truncated: list[bool]) -> None:
    for text, vector, is_truncated in zip(texts, vectors, truncated, strict=True):
        record = {"text": text, "truncated": is_truncated, "embedding": vector.tolist()}
        print(json.dumps(record, ensure_ascii=False), flush=True)
