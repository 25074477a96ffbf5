"""Runs `bert-jax search explain`: which tokens make the scores of the texts that are found."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import TextArguments, text_groups
from bert_jax.config.flags import flag, positional
from bert_jax.errors import ConfigError

HELP = "explain which tokens of query and text make a score"

EPILOG = """examples:
  bert-jax search explain token-index "Who repairs the nets?"
  bert-jax search explain sparse-index "Who repairs the nets?" --top-k 5 --output explanations

INDEX is an index of a sparse (SPLADE) or multi-vector model (ColBERT). For a sparse model, the
terms are printed that query and text have weights for; a star marks terms that are not in the text,
which the model added. For a multi-vector model, each token of the query is printed with the token
of the text that it matches, and their similarity.

--output FOLDER also gets explanations.json, with all terms or similarities, and explanations.html,
a page that opens offline.
"""

_DEFAULT_TOP_K = 3


@dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
    """Names the index and the queries."""

    index: str = positional("INDEX", "folder of the index")
    top_k: int | None = flag("K", f"texts for each query (default: {_DEFAULT_TOP_K})")
    model: str | None = flag("MODEL", "copy of the index's model (default: its path in INDEX)")
    output: str | None = flag("FOLDER", "folder of the JSON file and the page")


def run(args: Arguments) -> None:
    """Prints the explanation of each text that is found for each query."""
    from bert_jax.apps.search.encoder import (
        MultiVectorTextEncoder,
        SparseTextEncoder,
        text_encoder_of,
    )
    from bert_jax.apps.search.explain import explain_late_interaction, explain_sparse
    from bert_jax.apps.search.explain_page import explanations_page
    from bert_jax.apps.search.index import SearchIndex
    from bert_jax.apps.search.nearest import check_top_k
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.pretrained.load import load_encoder, require_tokenizer
    from bert_jax.report.output_folder import write_results

    check_writable(args.output, is_folder=True)
    index = SearchIndex(args.index)
    if index.info.vectors.kind == "dense":
        raise ConfigError(
            f"{args.index} has a dense vector of each text, which has no parts for its tokens; "
            "expected an index of a sparse or multi-vector model"
        )
    top_k = min(_DEFAULT_TOP_K, len(index)) if args.top_k is None else args.top_k
    check_top_k(top_k, len(index))
    model = load_encoder(args.model or index.info.model)
    encoder = text_encoder_of(model)
    results: list[dict[str, Any]] = []
    for queries in text_groups(args):
        for query, hits in zip(queries, index.search(encoder, queries, top_k), strict=True):
            if isinstance(encoder, SparseTextEncoder):
                result = explain_sparse(encoder, require_tokenizer(model), query, hits)
            else:
                assert isinstance(encoder, MultiVectorTextEncoder)
                result = explain_late_interaction(encoder, query, hits)
            results.append(result)
            print(_to_text(result), flush=True)
    if args.output is not None:
        page = explanations_page(f"Scores of {args.index}", results)
        write_results(
            Path(args.output), "explanations", {"index": args.index, "queries": results}, page
        )


def _to_text(result: dict[str, Any]) -> str:
    lines = [result["query"]]
    for rank, hit in enumerate(result["hits"], start=1):
        lines.append(f"{rank:4}. {hit['score']:8.4f}  {hit['id']}")
        if "shared" in hit:
            added = {term["token"] for term in hit["terms"] if term["is_added"]}
            lines += [
                f"      {term['product']:8.4f}  {term['token']}{'*' * (term['token'] in added)}"
                for term in hit["shared"]
            ]
            continue
        for row, (token, position) in enumerate(zip(result["tokens"], hit["matches"], strict=True)):
            similarity = hit["similarities"][row][position]
            lines.append(f"      {similarity:8.4f}  {token} - {hit['tokens'][position]}")
    return "\n".join(lines) + "\n"
