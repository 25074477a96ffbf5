"""Runs `bert-jax search evaluate`: prints how well models find the relevant texts of queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import PoolingArguments, RerankArguments
from bert_jax.config.flags import flag, positional
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.apps.search.contamination import FoundInCorpus
    from bert_jax.apps.search.evaluate import Outcomes

HELP = "evaluate retrieval by BM25, models and a cross-encoder"

EPILOG = """examples:
  bert-jax search evaluate squad:dev-v1.1.json exported
  bert-jax search evaluate beir:scifact splade colbert --output results.json
  bert-jax search evaluate beir:scifact exported --rerank runs/cross-encoder --max-queries 300
  bert-jax search evaluate beir:scifact exported --corpus 'books/*.txt'

DATA is squad:FILE, where the question is the query and its paragraph the relevant text, or
beir:FOLDER with corpus.jsonl, queries.jsonl and qrels/test.tsv. nDCG has the gain of trec_eval: the
relevance itself. MODEL is any model that `bert-jax embed` reads, dense, sparse or multi-vector, and
--rerank orders the texts that the first one finds.

The interval is a bootstrap of 95 % over the queries, and p the probability of a difference as large
by chance, of a randomization test on the queries. They do not include the variation between
training runs.

--corpus names what the models have read in pretraining. A query of 13 words and more is in it if at
least half of its 13-grams, common phrases left out, are in a part of a document that is twice as
long; one of 8 to 12 words if it occurs as a whole; a shorter one if it is a sentence within 50
words of a relevant text. The metrics are printed again for the queries that are not in it.
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
    corpus: tuple[str, ...] = flag(
        "GLOB",
        "text or .jsonl files that the models have read, for the metrics without the queries in "
        "them; quote glob patterns",
        (),
    )
    output: str | None = flag("FILE", "JSON file for the results")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling is not None and not self.models:
            raise ConfigError("--pooling is for MODEL, which is not given; remove it")


def run(args: Arguments) -> None:
    """Prints a table with one line for each way of ranking, and their differences."""
    from bert_jax.apps.search.contamination import find_in_corpus
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

    check_range("--candidates", args.num_candidates, at_least=1, at_most=DEPTH)
    check_writable(args.output)
    data = read_retrieval_set(args.data)
    if args.max_queries is not None:
        check_range("--max-queries", args.max_queries, at_least=1)
        data = sample_queries(data, args.max_queries)
    found = find_in_corpus(data, args.corpus) if args.corpus else None
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
    summary = _summarize(outcomes)
    _print_table(summary["results"])
    print(f"\n{_METRIC}, 95 % intervals over the queries, and differences:")
    for name, values in summary["results"].items():
        low, high = summary["intervals"][name][_METRIC]
        print(f"{name:{_width(outcomes)}}{values[_METRIC]:.4f} [{low:.4f}, {high:.4f}]")
    differences = compare_systems(outcomes, _METRIC)
    for (later, earlier), difference, p_value in differences:
        print(f"{later} - {earlier}: {difference:+.4f}, p = {p_value:.4f}")
    content = {
        "data": data.name,
        "num_queries": len(data.queries),
        "num_documents": len(data.documents),
        **summary,
        "differences": [{"metric": _METRIC, **each._asdict()} for each in differences],
    }
    if found is not None:
        content["corpus"] = _report_found(found, outcomes)
    if args.output is not None:
        write_json(Path(args.output), content)


def _summarize(outcomes: "Mapping[str, Outcomes]") -> dict[str, Any]:
    """Returns the mean of each metric and its interval, for each way of ranking."""
    import numpy as np

    from bert_jax.tasks.metrics.bootstrap import bootstrap_interval

    return {
        "results": {
            name: {metric: float(values.mean()) for metric, values in by_metric.items()}
            for name, by_metric in outcomes.items()
        },
        "intervals": {
            name: {
                metric: bootstrap_interval(np.mean, values) for metric, values in by_metric.items()
            }
            for name, by_metric in outcomes.items()
        },
    }


def _report_found(found: "FoundInCorpus", outcomes: "Mapping[str, Outcomes]") -> dict[str, Any]:
    """Prints what the corpus contains, and the metrics without these queries; returns both."""
    is_clean = ~found.has_query
    counts = {
        "num_documents": found.num_documents,
        "num_queries_found": int(found.has_query.sum()),
        "num_queries_not_searchable": int((is_clean & ~found.is_searchable).sum()),
        "num_texts_found": int(found.has_text.sum()),
    }
    print(
        f"\ncorpus of {found.num_documents:,} documents: it contains "
        f"{counts['num_queries_found']:,} queries ({found.has_query.mean():.1%}) and "
        f"{counts['num_texts_found']:,} texts ({found.has_text.mean():.1%})"
    )
    if count := counts["num_queries_not_searchable"]:
        print(f"{count:,} queries are too short or too common to be found")
    if not is_clean.any():
        return counts
    print(f"without the queries in the corpus ({is_clean.sum():,} remain):")
    summary = _summarize(
        {
            name: {metric: values[is_clean] for metric, values in by_metric.items()}
            for name, by_metric in outcomes.items()
        }
    )
    _print_table(summary["results"])
    return {**counts, **summary}


def _print_table(results: Mapping[str, Mapping[str, float]]) -> None:
    width = _width(results)
    print(f"{'':{width}}" + "".join(f"{metric:>12}" for metric in results["bm25"]))
    for name, values in results.items():
        print(f"{name:{width}}" + "".join(f"{value:12.4f}" for value in values.values()))


def _width(names: Mapping[str, Any]) -> int:
    return max(10, *(len(name) + 1 for name in names))
