"""Runs `bert-jax search index`: embeds a collection of texts and writes an index folder."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from bert_jax.cli.arguments import (
    MODEL_WITHOUT_HEAD,
    EncodingArguments,
    ModelArguments,
    PoolingArguments,
)
from bert_jax.config.flags import REQUIRED, flag, switch

HELP = "embed a collection of texts for search"

EPILOG = f"""examples:
  bert-jax search index exported --file 'books/*.txt' --output index
  bert-jax search index exported --file corpus.jsonl --output index --approximate
  bert-jax search index exported --file more.jsonl --output index --append
  bert-jax search index splade --file corpus.jsonl --output sparse-index
  bert-jax search index colbert --file corpus.jsonl --output token-index --bits 2 --pool-factor 2

{MODEL_WITHOUT_HEAD}
A sparse model (SPLADE) gets an inverted index of its tokens, a multi-vector model (ColBERT) the
vectors of all tokens. The prompts "query" and "document" (or "passage", "corpus") of a model are
used if it has them.

A .jsonl file has an object with "text" on each line, and optionally "_id" (or "id") and "title",
which is put in front of the text. Other files have a text on each line, whose id is "FILE:LINE".
Run the same command again after an interruption: it continues with the vectors that were saved.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(EncodingArguments, PoolingArguments, ModelArguments):
    """Names the model, the texts and the index."""

    file: tuple[str, ...] = flag(
        "FILE",
        ".txt or .jsonl files, plain or compressed (.gz, .bz2, .zst), or glob patterns",
        REQUIRED,
    )
    output: str = flag("INDEX", "folder of the index", REQUIRED)
    approximate: bool = switch(
        "a graph for approximate search as well, for millions of texts (needs usearch)"
    )
    bits: int | None = flag(
        "N",
        "bits for each component of a vector, 1, 2 or 4, for multi-vector models (default: not "
        "compressed)",
    )
    pool_factor: int | None = flag(
        "N",
        "tokens of a text whose vectors are pooled into one, for multi-vector models (default: 1)",
    )
    append: bool = switch("add the texts to the index; those that it has are left out")


def run(args: Arguments) -> None:
    """Writes the index and prints its size."""
    from bert_jax.apps.search.build import build_index
    from bert_jax.apps.search.documents import read_collection
    from bert_jax.apps.search.encoder import text_encoder_of
    from bert_jax.apps.search.index import INFO, SearchIndex
    from bert_jax.io.atomic_io import check_new_folder
    from bert_jax.pretrained.load import load_encoder

    output = Path(args.output)
    existed = args.append or (output / INFO).is_file()
    if existed:
        num_before = len(SearchIndex(output))  # before the model is read, which takes longer
    else:
        num_before = 0
        check_new_folder(output)
    documents = read_collection(args.file, encoding=args.encoding, errors=args.errors)
    encoder = text_encoder_of(load_encoder(args.model), pooling=args.pooling)
    index = build_index(
        output,
        documents,
        encoder,
        approximate=args.approximate,
        bits=args.bits,
        pool_factor=args.pool_factor,
        append=args.append,
    )
    state = ", complete since an earlier call" if len(index) == num_before else ""
    print(f"{output}: {len(index):,} texts, {index.describe_vectors()}{state}")
    if encoder.num_truncated:
        print(
            f"{encoder.num_truncated:,} texts were truncated to {encoder.max_length} tokens; split "
            "long texts, so that all of their words can be found"
        )
    print(f'next: bert-jax search query {shlex.quote(args.output)} "A question"')
