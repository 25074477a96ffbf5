"""Draws the held-out masked-LM losses of runs, with the losses of n-gram models, as an SVG file.

    python docs/held_out_curve.py BERT=runs/books --bigram 5.01 --unigram 6.46 --output curve.svg

The numbers of the n-gram models are printed by `bert-jax baselines`. docs/novels.svg shows a run
in docs/results.md, whose metrics were not kept: docs/novels_metrics.jsonl has the losses that the
labels of the first picture showed, rounded to three digits. docs/two_recipes.svg has the losses in
docs/what_it_learns.md:

    python docs/held_out_curve.py BERT=docs/novels_metrics.jsonl --bigram 5.013 --unigram 6.462 \\
        --output docs/novels.svg
    python docs/held_out_curve.py BERT=docs/bert_metrics.jsonl \\
        ModernBERT=docs/modernbert_metrics.jsonl --bigram 5.013 --unigram 6.462 \\
        --output docs/two_recipes.svg
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from bert_jax.report.curves import metric_points
from bert_jax.report.svg_charts import COLORS, HEIGHT, WIDTH, PlotArea, Points, ticks
from bert_jax.runs.metrics import EVALUATION, read_metrics

# Readable on the light and the dark background of the pages that show the picture.
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#5b6675}.grid{stroke:#e8ebef}"
    "polyline{fill:none;stroke-width:1.8}.baseline{stroke-dasharray:6 3}"
)


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the metrics and writes the SVG file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="run folder or metrics.jsonl")
    parser.add_argument("--bigram", type=float, required=True, help="loss of the bigram model")
    parser.add_argument("--unigram", type=float, required=True, help="loss of the unigram model")
    parser.add_argument("--output", type=Path, required=True, help="SVG file to write")
    args = parser.parse_args(argv)
    curves = {name: _points(Path(run)) for name, run in (each.split("=", 1) for each in args.runs)}
    args.output.write_text(draw(curves, {"unigram": args.unigram, "bigram": args.bigram}))


def _points(run: Path) -> Points:
    file = run / "metrics.jsonl" if run.is_dir() else run
    rows = [row for row in read_metrics(file) if row["split"] == EVALUATION]
    return metric_points(rows, "mlm_loss")


def draw(curves: dict[str, Points], baselines: dict[str, float]) -> str:
    """Returns an SVG document: losses by step, and a labeled line for each baseline."""
    steps, losses = zip(*itertools.chain(*curves.values()), strict=True)
    ticks_x = ticks(0, max(steps))
    ticks_y = ticks(min(*losses, *baselines.values()), max(*losses, *baselines.values()))
    area = PlotArea(low_x=0, high_x=max(steps), low_y=ticks_y[0], high_y=ticks_y[-1])
    parts = [area.axes(ticks_x, ticks_y, "update", lambda x: f"{x:,.0f}", lambda y: f"{y:g}")]
    for color, (name, points) in zip(COLORS, curves.items(), strict=False):
        parts.append(_polyline(points, area, color))
        parts += [
            f'<circle cx="{area.x(step):.1f}" cy="{area.y(loss):.1f}" r="2.5" fill="{color}">'
            f"<title>update {step:,.0f}: {loss:.3f}</title></circle>"
            for step, loss in points
        ]
        parts.append(_label(f"{name} {points[-1][1]:.2f}", points[-1][1], area, color, 15))
    for color, (name, loss) in zip(COLORS[len(curves) :], baselines.items(), strict=False):
        line = _polyline([(0, loss), (area.high_x, loss)], area, color)
        parts.append(line.replace("<polyline", '<polyline class="baseline"'))
        parts.append(_label(f"{name} {loss:.2f}", loss, area, color, -6))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 1.5:.0f}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Held-out masked-LM loss">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _polyline(points: Points, area: PlotArea, color: str) -> str:
    return f'<polyline points="{area.path(points)}" stroke="{color}"/>'


def _label(text: str, loss: float, area: PlotArea, color: str, distance: int) -> str:
    """Returns a text at the right end of a line, which falls: a curve's is better below it."""
    return (
        f'<text x="{area.x(area.high_x) - 4:.1f}" y="{area.y(loss) + distance:.1f}" '
        f'text-anchor="end" style="fill:{color}">{text}</text>'
    )


if __name__ == "__main__":
    main()
