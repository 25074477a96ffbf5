"""Formats the results of probes: rows of tables, JSON, and an offline page with curves by layer."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.apps.probes.probe import (
    MODEL,
    RANDOM,
    VECTORS,
    LayerResults,
    ProbeResults,
    StructureResult,
    TaskResult,
)
from bert_jax.apps.probes.structural import Scores
from bert_jax.report.html import card, escape, html_page, section, table
from bert_jax.report.svg_charts import Series, line_chart
from bert_jax.report.text_table import format_table

Table = tuple[list[str], list[list[str]]]
_NONE = "–"
_MEASURES = {
    "uuas": "UUAS",
    "distance_spearman": "distance Spearman",
    "root_accuracy": "root accuracy",
    "depth_spearman": "depth Spearman",
}

NOTES = (
    "Accuracy in percent on test, as a mean over seeds ± their standard deviation. The best layer "
    "is chosen on dev, for each source.",
    "majority: always the most frequent label; random: the same network with random parameters; "
    "layer 0: the embeddings of the model.",
    "selectivity: accuracy minus the accuracy on random labels of word types (Hewitt and Liang "
    "2019), at the best layer; compression: the uniform code of the training labels divided by "
    "their online code (Voita and Titov 2020), at the best layer.",
    "expected layer and center of gravity: where mixes of layers gain, and where their weights are "
    "(Tenney et al. 2019).",
    "UUAS: edges of undirected trees that a structural probe finds, without punctuation; Spearman: "
    "of distances and depths, as a mean over lengths 5 to 50 (Hewitt and Manning 2019). Linear: "
    "every word linked to the next one.",
)


def task_table(results: ProbeResults) -> Table:
    """Returns the header and a row for each task; no rows without tasks."""
    has_vectors = any(VECTORS in task.sources for task in results.tasks)
    has_f1 = any(task.sources[MODEL].f1 for task in results.tasks)
    header = [
        "task",
        "classes",
        "majority",
        *(["vectors"] if has_vectors else []),
        "random",
        "layer 0",
        "best layer",
        "accuracy",
        *(["F1"] if has_f1 else []),
        "selectivity",
        "compression",
        "expected",
        "center",
    ]
    return header, [_task_row(task, has_vectors, has_f1) for task in results.tasks]


def _task_row(task: TaskResult, has_vectors: bool, has_f1: bool) -> list[str]:
    model = task.sources[MODEL]
    best = model.best_layer
    expected = model.expected_layer
    return [
        task.name,
        str(task.num_classes),
        _percent(task.majority),
        *([_best_accuracy(task.sources[VECTORS])] if has_vectors else []),
        _best_accuracy(task.sources[RANDOM]),
        _percent(model.accuracy[0]),
        model.layers[best],
        f"{_percent(model.accuracy[best])} ± {_percent(model.accuracy_deviation[best])}",
        *([_percent(model.f1[best])] if has_f1 else []),
        _percent(model.selectivity[best]) if model.selectivity else _NONE,
        f"{model.compression[best]:.2f}",
        _NONE if expected is None else f"{expected:.2f}",
        f"{model.center_of_gravity:.2f}",
    ]


def _best_accuracy(source: LayerResults) -> str:
    return _percent(source.accuracy[source.best_layer])


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def structure_table(structure: StructureResult) -> Table:
    """Returns the header and a row for each measure of structural probes."""
    has_vectors = VECTORS in structure.mean
    best = structure.best_layer(MODEL)
    vectors = ["vectors"] if has_vectors else []
    header = ["structure", "linear", *vectors, "random", "layer 0", "best layer", "value"]
    rows: list[list[str]] = []
    for name, title in _MEASURES.items():
        show = _percent if name in ("uuas", "root_accuracy") else "{:.2f}".format

        def at(source: str, layer: int, name: str = name) -> float:
            return getattr(structure.mean[source][layer], name)

        deviation = getattr(structure.deviation[MODEL][best], name)
        rows.append(
            [
                title,
                show(getattr(structure.linear, name)),
                *(show(at(VECTORS, 0)) for _ in vectors),
                show(at(RANDOM, structure.best_layer(RANDOM))),
                show(at(MODEL, 0)),
                structure.layers[MODEL][best],
                f"{show(at(MODEL, best))} ± {show(deviation)}",
            ]
        )
    return header, rows


def format_results(results: ProbeResults) -> str:
    """Returns both tables as text."""
    tables = [task_table(results)] if results.tasks else []
    if results.structure is not None:
        tables.append(structure_table(results.structure))
    return "\n\n".join(format_table(header, rows) for header, rows in tables)


def to_json(results: ProbeResults) -> dict[str, Any]:
    """Returns the results as JSON values, by task and source, with lists over layers."""
    structure = results.structure
    return {
        "tasks": {
            task.name: {
                **dataclasses.asdict(task),
                "sources": {
                    name: {
                        **dataclasses.asdict(source),
                        "selectivity": source.selectivity,
                        "best_layer": source.layers[source.best_layer],
                        "best_accuracy": source.accuracy[source.best_layer],
                    }
                    for name, source in task.sources.items()
                },
            }
            for task in results.tasks
        },
        "structure": None
        if structure is None
        else {
            "linear": structure.linear._asdict(),
            "sources": {
                name: {
                    "layers": structure.layers[name],
                    "best_layer": structure.layers[name][structure.best_layer(name)],
                    "best_uuas": structure.mean[name][structure.best_layer(name)].uuas,
                    **_by_measure(structure.mean[name], ""),
                    **_by_measure(structure.deviation[name], "_deviation"),
                }
                for name in structure.mean
            },
        },
        "sentences_too_long": results.num_too_long,
    }


def _by_measure(scores: Sequence[Scores], suffix: str) -> dict[str, list[float]]:
    return {f"{name}{suffix}": [getattr(each, name) for each in scores] for name in _MEASURES}


def results_page(results: ProbeResults, settings: Mapping[str, str]) -> str:
    """Returns an HTML page without scripts: the tables, and a chart by layer of each task."""
    title = f"What the layers of {settings['model']} show"
    facts = " · ".join(f"{name}: {value}" for name, value in settings.items())
    body = io.StringIO()
    body.write(f'<h1>{escape(title)}</h1><p class="quiet">{escape(facts)}</p>')
    charts = [_task_chart(task) for task in results.tasks]
    if results.tasks:
        body.write(section("Tasks", table(*task_table(results))))
    if (structure := results.structure) is not None:
        body.write(section("Trees", table(*structure_table(structure))))
        charts += [_structure_chart(structure, name) for name in _MEASURES]
    body.write(f'<h2>By layer</h2><div class="charts">{"".join(charts)}</div>')
    body.write("<h2>Notes</h2>" + "".join(f"<p>{escape(note)}</p>" for note in NOTES))
    return html_page(title, body.getvalue())


def _task_chart(task: TaskResult) -> str:
    model = task.sources[MODEL]
    curves = {name: source.accuracy for name, source in task.sources.items()}
    curves["mix of layers up to here"] = model.cumulative_accuracy
    if model.control_accuracy:
        curves["control task"] = model.control_accuracy
    curves["majority"] = (task.majority,)
    return _chart(f"{task.name}: accuracy", curves, is_fraction=True)


def _structure_chart(structure: StructureResult, name: str) -> str:
    curves = {
        source: tuple(getattr(each, name) for each in scores)
        for source, scores in structure.mean.items()
    }
    curves["linear tree"] = (getattr(structure.linear, name),)
    return _chart(_MEASURES[name], curves, is_fraction=name in ("uuas", "root_accuracy"))


def _chart(title: str, curves: Mapping[str, Sequence[float]], *, is_fraction: bool) -> str:
    """Returns a chart by layer; a single value is a line over all layers."""
    size = max(map(len, curves.values()))
    series = [
        Series(
            label=name,
            points=list(enumerate(values if len(values) > 1 else list(values) * size)),
            dots=len(values) > 1,
        )
        for name, values in curves.items()
    ]
    chart = line_chart(
        series,
        title=title,
        format_y=lambda y: f"{100 * y:.4g}%" if is_fraction else f"{y:.3g}",
        x_name="layer",
    )
    return card(chart, title=title)
