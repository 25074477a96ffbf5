"""Renders attributions as one HTML page that opens offline: a text with shaded tokens."""

from collections.abc import Sequence
from typing import Any

from bert_jax.report.heat_map import shade
from bert_jax.report.html import card, details, escape, html_page, table


def attributions_page(title: str, description: str, results: Sequence[dict[str, Any]]) -> str:
    """Returns the page.

    Args:
      description: what was computed, a sentence.
      results: the results of `attributor.to_json`.
    """
    cards = "".join(_card(number, result) for number, result in enumerate(results, 1))
    return html_page(
        title,
        f"<h1>{escape(title)}</h1><p>{escape(description)} Tokens on blue raise the output, and "
        "underlined tokens on orange lower it; the darkest shade is the largest attribution of a "
        f"text.</p>{cards}",
    )


def _card(number: int, result: dict[str, Any]) -> str:
    tokens = result["tokens"]
    largest = max((abs(token["attribution"]) for token in tokens), default=0.0) or 1.0
    shown = " ".join(
        f'<span style="{shade(token["attribution"] / largest)}; padding:1px 3px; '
        f'text-decoration:{"underline" if token["attribution"] < 0 else "none"}" '
        f'title="{token["attribution"]:+.4f}">{escape(token["token"])}</span>'
        for token in tokens
    )
    values = table(
        ("token", "attribution"),
        [(token["token"], f"{token['attribution']:+.4f}") for token in tokens],
    )
    return card(
        f"<p>{shown}</p><p class='quiet'>{escape(summary(result))}</p>{details('Values', values)}",
        title=f"{number}. {prediction_text(result['prediction'])}",
    )


def prediction_text(prediction: dict[str, Any]) -> str:
    """Returns what the model predicts, such as "label positive"."""
    for name in ("label", "labels", "value", "score"):
        if name in prediction:
            value = prediction[name]
            if isinstance(value, list):
                return f"{name} {', '.join(value) or 'none'}"
            return f"{name} {f'{value:.4g}' if isinstance(value, float) else value}"
    raise AssertionError(f"a prediction with {', '.join(prediction)}")


def summary(result: dict[str, Any]) -> str:
    """Returns a line with the explained output, its baseline and the error."""
    target = "" if result["target"] is None else f" of {result['target']}"
    text = f"output{target} {result['output']:.4f}, of the baseline {result['baseline_output']:.4f}"
    if "completeness_error" in result:
        text += f", completeness error {result['completeness_error']:.1e}"
    return text
