"""Runs `bert-jax search mine`: writes triples of pairs and their hard negatives."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from bert_jax.cli.arguments import ModelArguments, PoolingArguments
from bert_jax.config.flags import REQUIRED, flag, positional
from bert_jax.errors import ConfigError

HELP = "find hard negatives for pairs of a query and a relevant text"

EPILOG = """examples:
  bert-jax search mine exported pairs.jsonl --output triples.jsonl
  bert-jax search mine exported pairs.csv --query question --positive answer \\
      --corpus passages.txt --relative-margin 0.05 --output triples.jsonl

PAIRS is a .csv, .tsv, .jsonl or .parquet file with the columns "anchor" and "positive". Each line
of the output is {"anchor", "positive", "negative"}, for training sentence encoders. The rules are
those of mine_hard_negatives in sentence-transformers.
"""


_choice = partial(flag, group="choice of negatives")


@dataclass(frozen=True, kw_only=True)
class Arguments(PoolingArguments, ModelArguments):
    """Names the model and the pairs, and says which texts are negatives."""

    pairs: str = positional("PAIRS", "file with queries and relevant texts")
    output: str = flag("FILE", "JSONL file of the triples", REQUIRED)
    query: str = flag("COLUMN", "column of queries", "anchor")
    positive: str = flag("COLUMN", "column of relevant texts", "positive")
    corpus: tuple[str, ...] = flag(
        "FILE", "files of texts that may be negatives, besides the positives of other queries", ()
    )
    num_negatives: int = _choice("N", "negatives for each pair", 3)
    range_min: int = _choice("N", "nearest texts that are left out", 0)
    range_max: int | None = _choice(
        "N", "nearest texts that are considered (default: enough of them)"
    )
    absolute_margin: float | None = _choice(
        "X", "smallest difference of the scores of positive and negative"
    )
    relative_margin: float | None = _choice("X", "the same as a fraction of the positive's score")
    max_score: float | None = _choice("X", "largest score of a negative")
    min_score: float | None = _choice("X", "smallest score of a negative")
    sampling: Literal["top", "random"] = _choice(
        "", "the nearest of the remaining texts, or a random sample", "top"
    )
    seed: int | None = _choice("N", "seed of the sample (default: 0)")

    def __post_init__(self) -> None:
        if self.seed is not None and self.sampling != "random":
            raise ConfigError("--seed is for --sampling random; add it, or remove --seed")


def run(args: Arguments) -> None:
    """Writes the triples and prints their number."""
    from bert_jax.apps.search.documents import read_collection
    from bert_jax.apps.search.encoder import EmbedderEncoder
    from bert_jax.apps.search.mining import HardNegatives, find_hard_negatives
    from bert_jax.data.finetuning.readers.columns import cell_text, require_columns
    from bert_jax.data.finetuning.readers.tabular_files import read_table
    from bert_jax.io.atomic_io import atomic_write, check_writable
    from bert_jax.pretrained.load import load_encoder

    check_writable(args.output)
    config = HardNegatives(
        num_negatives=args.num_negatives,
        range_min=args.range_min,
        range_max=args.range_max,
        absolute_margin=args.absolute_margin,
        relative_margin=args.relative_margin,
        max_score=args.max_score,
        min_score=args.min_score,
        sampling=args.sampling,
        seed=args.seed or 0,
    )
    table = read_table(args.pairs)
    require_columns(table, args.pairs, [args.query, args.positive])
    pairs = [
        (cell_text(row, args.query, "query"), cell_text(row, args.positive, "relevant text"))
        for row in table.rows
    ]
    corpus = [document.text for document in read_collection(args.corpus)] if args.corpus else []
    encoder = EmbedderEncoder(load_encoder(args.model), pooling=args.pooling)
    triples = find_hard_negatives(pairs, encoder, config, corpus)
    lines = [json.dumps(triple._asdict(), ensure_ascii=False) + "\n" for triple in triples]
    atomic_write(Path(args.output), "".join(lines))
    print(f"{args.output}: {len(triples):,} triples of {len(pairs):,} pairs")
