"""Renders the statistics of attention heads, and their importance, as pages that open offline."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.apps.attention_heads.importance import HeadImportance
from bert_jax.apps.attention_heads.relations import Relation
from bert_jax.report.heat_map import heat_map
from bert_jax.report.html import card, escape, html_page, section, table
from bert_jax.report.svg_charts import PlotArea, Series, line_chart, svg

RELATION_COLUMNS = (
    "relation",
    "words",
    "best head",
    "direction",
    "accuracy",
    "offset",
    "accuracy of the offset",
)


def heads_page(
    title: str,
    description: str,
    matrices: Mapping[str, np.ndarray],
    positions: np.ndarray,
    relations: Sequence[Relation],
) -> str:
    """Returns the page of `bert-jax heads`.

    Args:
      matrices: name of a statistic -> [N, H].
      positions: the map of heads, [N x H, 2].
      relations: none without a treebank.
    """
    num_heads = next(iter(matrices.values())).shape[1]
    cards = "".join(card(head_table(values), title=name) for name, values in matrices.items())
    map_card = card(
        _map(positions, num_heads)
        + "<p class='quiet'>A number is the layer of a head; heads that are near attend alike "
        "(root of the Jensen-Shannon divergence).</p>",
        title="Map of heads",
    )
    body = f"<h1>{escape(title)}</h1><p>{escape(description)}</p>{map_card}"
    body += section("Relations", table(RELATION_COLUMNS, relation_rows(relations)))
    return html_page(title, f"{body}<h2>Attention to</h2>{cards}")


def head_table(values: np.ndarray, format_value: Any = lambda value: f"{value:.2f}") -> str:
    """Returns a heat map of a number for each head, [N, H]; layers count from 1."""
    return heat_map(
        values,
        [str(layer + 1) for layer in range(len(values))],
        [str(head) for head in range(values.shape[1])],
        corner="layer \\ head",
        format_value=format_value,
    )


def relation_rows(relations: Sequence[Relation]) -> list[list[str]]:
    """Returns the cells of `RELATION_COLUMNS`."""
    return [
        [
            relation.name,
            f"{relation.words:,}",
            f"{relation.layer}-{relation.head}",
            relation.direction,
            f"{100 * relation.accuracy:.1f}",
            f"{relation.offset:+d}",
            f"{100 * relation.offset_accuracy:.1f}",
        ]
        for relation in relations
    ]


def importance_page(title: str, description: str, found: HeadImportance) -> str:
    """Returns the page of `bert-jax head-importance`; `description` names the examples."""
    series = [
        Series(label=f"by {name}", points=curve, dots=True) for name, curve in found.curves.items()
    ]
    chart = line_chart(series, title=found.metric, x_name="removed heads")
    body = (
        f"<h1>{escape(title)}</h1><p>{escape(description)}. {escape(found.metric)} with all heads: "
        f"{found.value:.4f}.</p>"
    )
    body += card(chart, title=f"{found.metric} while heads are removed, least important first")
    gradient_note = "Mean |d loss / d mask|, divided by the norm of the layer."
    body += card(f"<p>{gradient_note}</p>{head_table(found.gradient)}", title="By gradient")
    ablation = head_table(found.ablation, lambda value: f"{value:+.4f}")
    note = f"{found.metric} with all heads minus {found.metric} without this one."
    return html_page(title, body + card(f"<p>{escape(note)}</p>{ablation}", title="By ablation"))


def strongest_heads(values: np.ndarray) -> list[str]:
    """Returns four cells: the mean over all heads, and the three heads with the largest values."""
    heads = [divmod(int(index), values.shape[1]) for index in values.ravel().argsort()[::-1][:3]]
    shown = [f"{layer + 1}-{head} ({values[layer, head]:.3f})" for layer, head in heads]
    return [f"{values.mean():.3f}", *shown, *[""] * (3 - len(shown))]


def _map(positions: np.ndarray, num_heads: int) -> str:
    unit = PlotArea(low_x=0.0, high_x=1.0, low_y=0.0, high_y=1.0)
    ratio = (unit.x(1) - unit.x(0)) / (unit.y(0) - unit.y(1))
    low, high = positions.min(0), positions.max(0)
    (center_x, center_y), (width, height) = ((low + high) / 2).tolist(), (high - low).tolist()
    # Both axes have one scale, so that distances can be compared in all directions.
    half = max(width, height * ratio, 1e-9) / 2
    area = PlotArea(
        low_x=center_x - half,
        high_x=center_x + half,
        low_y=center_y - half / ratio,
        high_y=center_y + half / ratio,
    )
    parts = []
    for index, (x, y) in enumerate(positions.tolist()):
        layer, head = divmod(index, num_heads)
        parts.append(
            f'<text x="{area.x(x):.1f}" y="{area.y(y):.1f}" text-anchor="middle" '
            f'style="fill:var(--line)" class="c{layer % 6}">{layer + 1}'
            f"<title>layer {layer + 1}, head {head}</title></text>"
        )
    return svg("Map of heads: heads that attend alike are near each other", parts)
