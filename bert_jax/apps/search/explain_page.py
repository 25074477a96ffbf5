"""Renders the explanations of scores as one HTML page that opens offline."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.report.heat_map import heat_map, shade
from bert_jax.report.html import card, details, escape, html_page, table


def explanations_page(title: str, queries: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page.

    Args:
      queries: results of `explain_late_interaction` or `explain_sparse`.
    """
    parts = [f"<h1>{escape(title)}</h1>"]
    for query in queries:
        parts.append(f"<h2>{escape(query['query'])}</h2>")
        if "terms" in query:
            parts.append(card(_terms(query["terms"]), title="Terms of the query"))
        for rank, hit in enumerate(query["hits"], start=1):
            show = _shared_terms if "terms" in query else _map
            name = f"{rank}. {hit['id']}, score {hit['score']:.4f}"
            parts.append(card(show(query, hit), title=name))
    return html_page(title, "".join(parts))


def _map(query: Mapping[str, Any], hit: Mapping[str, Any]) -> str:
    """Shows MaxSim: the matches of the query's tokens, in the text and as a table."""
    similarities, matches = np.array(hit["similarities"]), hit["matches"]
    matched_by: dict[int, list[str]] = {}
    total = np.zeros(len(hit["tokens"]))
    for row, (token, position) in enumerate(zip(query["tokens"], matches, strict=True)):
        matched_by.setdefault(position, []).append(token)
        total[position] += similarities[row, position]
    largest = float(np.abs(total).max()) or 1.0
    shown = " ".join(
        f'<span style="{shade(total[position] / largest)}; padding:1px 3px" '
        f'title="{escape(", ".join(matched_by.get(position, ["no token of the query"])))}">'
        f"{escape(token)}</span>"
        for position, token in enumerate(hit["tokens"])
    )
    rows = [
        (token, hit["tokens"][position], f"{similarities[row, position]:.4f}")
        for row, (token, position) in enumerate(zip(query["tokens"], matches, strict=True))
    ]
    matrix = heat_map(similarities, query["tokens"], hit["tokens"], corner="query \\ text")
    return (
        f"<p>{shown}</p><p class='quiet'>MaxSim {hit['max_sim']:.4f}. The darker a token of the "
        "text, the more it adds to the score; its title names the tokens of the query that it "
        "matches.</p>"
        + details("Matches", table(("token of the query", "match", "similarity"), rows))
        + details("All similarities", matrix)
    )


def _shared_terms(query: Mapping[str, Any], hit: Mapping[str, Any]) -> str:
    """Shows the terms that add to the score of a sparse model, and all terms of the text."""
    added = {term["token"] for term in hit["terms"] if term["is_added"]}
    rows = [
        (
            term["token"] + (" (added)" if term["token"] in added else ""),
            *(f"{term[name]:.4f}" for name in ("query", "document", "product")),
        )
        for term in hit["shared"]
    ]
    header = ("term", "weight in the query", "weight in the text", "product")
    return (
        f"<p>{escape(hit['text'])}</p>{table(header, rows, caption='Terms that both have')}"
        + details("All terms of the text", _terms(hit["terms"]))
    )


def _terms(terms: Sequence[Mapping[str, Any]]) -> str:
    """Shows terms shaded by weight; those that the model added are underlined."""
    largest = max((term["weight"] for term in terms), default=0.0) or 1.0
    shown = " ".join(
        f'<span style="{shade(term["weight"] / largest)}; padding:1px 3px; '
        f'text-decoration:{"underline" if term["is_added"] else "none"}">'
        f"{escape(term['token'])} {term['weight']:.2f}</span>"
        for term in terms
    )
    note = "Underlined terms are not in the text: the model added them."
    return f"<p>{shown}</p><p class='quiet'>{note}</p>"
