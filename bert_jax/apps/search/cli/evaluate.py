"""Runs `bert-jax search evaluate`: prints how well models find the relevant texts of queries."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.cli.arguments import PoolingArguments, RerankArguments
from bert_jax.config.flags import flag, positional
from bert_jax.errors import ConfigError

HELP = "evaluate retrieval by BM25, a model and a cross-encoder"

EPILOG = """examples:
  bert-jax search evaluate squad:dev-v1.1.json exported
  bert-jax search evaluate beir:scifact exported --rerank runs/cross-encoder --max-queries 300

DATA is squad:FILE, where the question is the query and its paragraph the relevant text, or
beir:FOLDER with corpus.jsonl, queries.jsonl and qrels/test.tsv. nDCG has the gain of trec_eval: the
relevance itself. MODEL is any model that `bert-jax embed` reads.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(PoolingArguments, RerankArguments):
    """Names the queries and texts, and the models that rank them."""

    data: str = positional("DATA", "squad:FILE or beir:FOLDER")
    model: str | None = positional("MODEL", "sentence encoder (default: BM25 alone)", None)
    max_queries: int | None = flag(
        "N", "number of queries, a random sample; all texts are searched (default: all)"
    )
    output: str | None = flag("FILE", "JSON file for the results")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling is not None and self.model is None:
            raise ConfigError("--pooling is for MODEL, which is not given; remove it")


def run(args: Arguments) -> None:
    """Prints a table with one line for each way of ranking."""
    from bert_jax.apps.search.documents import read_retrieval_set
    from bert_jax.apps.search.encoder import EmbedderEncoder
    from bert_jax.apps.search.evaluate import DEPTH, evaluate_retrieval, sample_queries
    from bert_jax.errors import check_range
    from bert_jax.io.atomic_io import check_writable, write_json
    from bert_jax.predict.reranker import Reranker
    from bert_jax.pretrained.load import load_encoder

    check_range("--candidates", args.num_candidates, at_least=1, at_most=DEPTH)
    if args.output is not None:
        check_writable(Path(args.output))
    data = read_retrieval_set(args.data)
    if args.max_queries is not None:
        check_range("--max-queries", args.max_queries, at_least=1)
        data = sample_queries(data, args.max_queries)
    encoder = (
        EmbedderEncoder(load_encoder(args.model), pooling=args.pooling) if args.model else None
    )
    reranker = Reranker(load_encoder(args.rerank)) if args.rerank else None
    results = evaluate_retrieval(data, encoder, reranker, num_candidates=args.num_candidates)
    print(f"{data.name}: {len(data.queries):,} queries, {len(data.documents):,} texts")
    metrics = next(iter(results.values()))
    print(f"{'':10}" + "".join(f"{name:>12}" for name in metrics))
    for name, values in results.items():
        print(f"{name:10}" + "".join(f"{value:12.4f}" for value in values.values()))
    if args.output is not None:
        sizes = {"num_queries": len(data.queries), "num_documents": len(data.documents)}
        write_json(Path(args.output), {"data": data.name, **sizes, "results": results})
