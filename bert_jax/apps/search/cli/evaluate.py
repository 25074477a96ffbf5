"""Runs `bert-jax search evaluate`: prints how well models find the relevant texts of queries."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.cli.arguments import PoolingArguments, RerankArguments
from bert_jax.config.flags import flag, positional
from bert_jax.errors import ConfigError

HELP = "evaluate retrieval by BM25, models and a cross-encoder"

EPILOG = """examples:
  bert-jax search evaluate squad:dev-v1.1.json exported
  bert-jax search evaluate beir:scifact splade colbert --output results.json
  bert-jax search evaluate beir:scifact exported --rerank runs/cross-encoder --max-queries 300

DATA is squad:FILE, where the question is the query and its paragraph the relevant text, or
beir:FOLDER with corpus.jsonl, queries.jsonl and qrels/test.tsv. nDCG has the gain of trec_eval: the
relevance itself. MODEL is any model that `bert-jax embed` reads, dense, sparse or multi-vector, and
--rerank orders the texts that the first one finds.

The interval is a bootstrap of 95 % over the queries, and p the probability of a difference as large
by chance, of a randomization test on the queries. They do not include the variation between
training runs.
"""

_METRIC = "ndcg@10"


@dataclass(frozen=True, kw_only=True)
class Arguments(PoolingArguments, RerankArguments):
    """Names the queries and texts, and the models that rank them."""

    data: str = positional("DATA", "squad:FILE or beir:FOLDER")
    models: tuple[str, ...] = positional("MODEL", "encoder (default: BM25 alone)", ())
    max_queries: int | None = flag(
        "N", "number of queries, a random sample; all texts are searched (default: all)"
    )
    output: str | None = flag("FILE", "JSON file for the results")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling is not None and not self.models:
            raise ConfigError("--pooling is for MODEL, which is not given; remove it")


def run(args: Arguments) -> None:
    """Prints a table with one line for each way of ranking, and their differences."""
    import numpy as np

    from bert_jax.apps.search.documents import read_retrieval_set
    from bert_jax.apps.search.encoder import text_encoder_of
    from bert_jax.apps.search.evaluate import (
        DEPTH,
        compare_systems,
        evaluate_retrieval,
        sample_queries,
    )
    from bert_jax.errors import check_range
    from bert_jax.io.atomic_io import check_writable, write_json
    from bert_jax.predict.reranker import Reranker
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.tasks.metrics.bootstrap import bootstrap_interval

    check_range("--candidates", args.num_candidates, at_least=1, at_most=DEPTH)
    if args.output is not None:
        check_writable(Path(args.output))
    data = read_retrieval_set(args.data)
    if args.max_queries is not None:
        check_range("--max-queries", args.max_queries, at_least=1)
        data = sample_queries(data, args.max_queries)
    encoders = [text_encoder_of(load_encoder(each), pooling=args.pooling) for each in args.models]
    kinds = [encoder.kind for encoder in encoders]
    # Rows are called by kind, which is short, if that names each model.
    names = kinds if len(set(kinds)) == len(kinds) else args.models
    reranker = Reranker(load_encoder(args.rerank)) if args.rerank else None
    outcomes = evaluate_retrieval(
        data,
        dict(zip(names, encoders, strict=True)),
        reranker,
        num_candidates=args.num_candidates,
    )
    print(f"{data.name}: {len(data.queries):,} queries, {len(data.documents):,} texts")
    metrics = list(outcomes["bm25"])
    results = {
        name: {metric: float(values[metric].mean()) for metric in metrics}
        for name, values in outcomes.items()
    }
    intervals = {
        name: {metric: bootstrap_interval(np.mean, values[metric]) for metric in metrics}
        for name, values in outcomes.items()
    }
    width = max(10, *(len(name) + 1 for name in results))
    print(f"{'':{width}}" + "".join(f"{metric:>12}" for metric in metrics))
    for name, values in results.items():
        print(f"{name:{width}}" + "".join(f"{value:12.4f}" for value in values.values()))
    print(f"\n{_METRIC}, 95 % intervals over the queries, and differences:")
    for name in results:
        low, high = intervals[name][_METRIC]
        print(f"{name:{width}}{results[name][_METRIC]:.4f} [{low:.4f}, {high:.4f}]")
    differences = compare_systems(outcomes, _METRIC)
    for (later, earlier), difference, p_value in differences:
        print(f"{later} - {earlier}: {difference:+.4f}, p = {p_value:.4f}")
    if args.output is not None:
        content = {
            "data": data.name,
            "num_queries": len(data.queries),
            "num_documents": len(data.documents),
            "results": results,
            "intervals": intervals,
            "differences": [{"metric": _METRIC, **each._asdict()} for each in differences],
        }
        write_json(Path(args.output), content)
