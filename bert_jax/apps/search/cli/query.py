"""Runs `bert-jax search query`: prints the texts of an index that fit a query best."""

import json
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bert_jax.apps.search.index import Hit
from bert_jax.cli.arguments import RerankArguments, TextArguments, text_groups
from bert_jax.config.flags import flag, positional, switch
from bert_jax.errors import ConfigError

HELP = "find the texts of an index that fit a query"

EPILOG = """examples:
  bert-jax search query index "Who repairs the nets?"
  bert-jax search query index --file questions.txt --method hybrid --json > found.jsonl
  bert-jax search query index "Who repairs the nets?" --rerank runs/cross-encoder

INDEX is a folder that `bert-jax search index` wrote. Methods:
  exact        the vectors of all texts: cosine, dot products of a sparse model, or MaxSim of a
               multi-vector model
  approximate  the same through what finds most of the best texts: a graph (search index
               --approximate), or the centroids of compressed vectors (search index --bits)
  bm25         the words that query and text share; reads no model
  hybrid       the vectors and bm25, combined by their ranks
The default is approximate for an index with compressed vectors, otherwise exact; hybrid uses it.
With --rerank, a cross-encoder orders the best --candidates texts again. With --json, each query is
one line: {"query", "hits": [{"id", "score", "text"}]}.
"""

_DEFAULT_TOP_K = 10
_TEXT_WIDTH, _MAX_TEXT_LINES = 100, 4


@dataclass(frozen=True, kw_only=True)
class Arguments(RerankArguments, TextArguments):
    """Names the index, the queries, and the way of ranking."""

    index: str = positional("INDEX", "folder of the index")
    top_k: int | None = flag(
        "K", f"texts for each query (default: {_DEFAULT_TOP_K}, or all if there are fewer)"
    )
    method: Literal["exact", "approximate", "bm25", "hybrid"] | None = flag(
        "", "way of ranking (default: the vectors of the texts)"
    )
    model: str | None = flag("MODEL", "copy of the index's model (default: its path in INDEX)")
    json: bool = switch("output as JSON lines")

    def __post_init__(self) -> None:
        RerankArguments.__post_init__(self)
        TextArguments.__post_init__(self)
        if self.method == "bm25" and self.model is not None:
            raise ConfigError("--method bm25 reads no model; remove --model")


def run(args: Arguments) -> None:
    """Prints the texts for each query, in order."""
    from bert_jax.apps.search.encoder import text_encoder_of
    from bert_jax.apps.search.index import SearchIndex, rerank_hits
    from bert_jax.apps.search.nearest import check_top_k
    from bert_jax.predict.reranker import Reranker
    from bert_jax.pretrained.load import load_encoder

    index = SearchIndex(args.index)
    top_k = min(_DEFAULT_TOP_K, len(index)) if args.top_k is None else args.top_k
    check_top_k(top_k, len(index))
    encoder = None
    if args.method != "bm25":
        model = load_encoder(args.model or index.info.model)
        encoder = text_encoder_of(model, pooling=index.info.pooling)
        index.check_encoder(encoder)
    reranker = Reranker(load_encoder(args.rerank)) if args.rerank else None
    for queries in text_groups(args):
        if reranker is None:
            found = index.search(encoder, queries, top_k, args.method)
        else:
            num_candidates = min(max(args.num_candidates, top_k), len(index))
            candidates = index.search(encoder, queries, num_candidates, args.method)
            found = rerank_hits(reranker, queries, candidates, top_k)
        for query, hits in zip(queries, found, strict=True):
            print(_to_json(query, hits) if args.json else _to_text(query, hits), flush=True)


def _to_json(query: str, hits: "list[Hit]") -> str:
    found = [{"id": hit.document.id, "score": hit.score, "text": hit.document.text} for hit in hits]
    return json.dumps({"query": query, "hits": found}, ensure_ascii=False)


def _to_text(query: str, hits: "list[Hit]") -> str:
    """Formats hits for a reader: rank, score, id, and the beginning of the text."""
    lines = [f"{query}"]
    for rank, hit in enumerate(hits, start=1):
        lines.append(f"{rank:4}. {hit.score:8.4f}  {hit.document.id}")
        lines += textwrap.wrap(
            hit.document.text,
            _TEXT_WIDTH,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
            max_lines=_MAX_TEXT_LINES,
            placeholder=" ...",
        )
    return "\n".join(lines) + "\n"
