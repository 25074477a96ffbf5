"""From what a head says of rows to what is decided for examples: the last step of every task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from bert_jax.data.labelled.rows import Features
from bert_jax.data.labelled.task import Task
from bert_jax.evals.answer_decoding import Window, decode_answers
from bert_jax.evals.tags import decode_tags, entity_spans
from bert_jax.evals.task_metrics import task_metrics

Examples = Sequence[Any]
Rows = Sequence[np.ndarray]


def gather(
    batches: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]], rows: int
) -> dict[str, list[np.ndarray]]:
    """What the head says of each of `rows` rows, by the names of `FineTuningProgram.predict`.

    Args:
      batches: (numbers of the rows, what the head says of a batch that begins with these rows).
    """
    outputs: dict[str, list[Any]] = {}
    for numbers, found in batches:
        for name, values in found.items():
            kept = outputs.setdefault(name, [None] * rows)
            for place, number in enumerate(numbers):
                kept[number] = values[place]
    return outputs


def decide(
    task: Task,
    examples: Examples,
    features: Features,
    outputs: Mapping[str, Sequence[np.ndarray]],
    *,
    no_answer: bool | None = None,
) -> Any:
    """The decision for each example, in the form that `task_metrics` takes as its outputs.

    Args:
      features: the rows of the examples.
      outputs: for each name of `FineTuningProgram.predict` one array for each row.
      no_answer: whether a question may be left unanswered; None: if the task has such questions.
    """
    match task.kind:
        case "classification" | "multiple_choice":
            return np.stack(outputs["logits"])
        case "regression":
            return np.stack(outputs["values"])
        case "tagging":
            return _tags(task, examples, features, outputs["logits"])
        case "question_answering":
            windows = [
                Window(example=int(example), offsets=offsets, is_max_context=central)
                for example, offsets, central in zip(
                    features.example, features.offsets, features.central, strict=True
                )
            ]
            return decode_answers(
                [example.context for example in examples],
                windows,
                outputs["start_logits"],
                outputs["end_logits"],
                may_be_unanswerable=may_be_unanswerable(task) if no_answer is None else no_answer,
            )


def may_be_unanswerable(task: Task) -> bool:
    """Whether some question of the task has no answer, as in SQuAD 2.0."""
    return any(
        getattr(example, "is_impossible", False)
        for split in task.splits.values()
        for example in split
    )


def metrics(task: Task, examples: Examples, decided: Any) -> dict[str, float]:
    """The metrics of labelled examples; see `task_metrics`."""
    return task_metrics(task.kind, task.labels, gold(task, examples), decided)


def gold(task: Task, examples: Examples) -> Any:
    """The labels of examples, in the form that `task_metrics` takes."""
    match task.kind:
        case "classification":
            number = {label: number for number, label in enumerate(task.labels)}
            return np.array([number[example.label] for example in examples])
        case "regression" | "multiple_choice":
            return np.array([example.label for example in examples])
        case "tagging":
            return [list(example.tags) for example in examples]
        case "question_answering":
            return [[answer.text for answer in example.answers] for example in examples]


def predictions(task: Task, examples: Examples, decided: Any) -> list[dict[str, Any]]:
    """Each example's decision as JSON values, with its id."""
    rows = (_described(task, example, one) for example, one in zip(examples, decided, strict=True))
    return [{"id": example.id, **row} for example, row in zip(examples, rows, strict=True)]


def _described(task: Task, example: Any, decided: Any) -> dict[str, Any]:
    match task.kind:
        case "classification":
            shares = softmax(decided.astype(np.float64))
            named = dict(zip(task.labels, shares.tolist(), strict=True))
            return {"label": task.labels[int(decided.argmax())], "probabilities": named}
        case "multiple_choice":
            shares = softmax(decided.astype(np.float64))
            return {"choice": int(decided.argmax()), "probabilities": shares.tolist()}
        case "regression":
            return {"value": float(decided)}
        case "tagging":
            entities = [
                {
                    "type": entity.type,
                    "start": entity.start,
                    "end": entity.end,
                    "text": " ".join(example.words[entity.start : entity.end]),
                }
                for entity in entity_spans(decided)
            ]
            return {"tags": list(decided), "entities": entities}
        case "question_answering":
            best = decided.n_best[0]  # which may be "no answer"
            return {
                "answer": best.text,
                "start": best.start,
                "end": best.end,
                "score": best.score,
                "probability": best.probability,
                "no_answer_score": decided.no_answer_score,
            }


def _tags(task: Task, examples: Examples, features: Features, logits: Rows) -> list[list[str]]:
    """Each word's tag, from the row that decides it."""
    classes = len(task.labels)
    words = [np.zeros((len(example.words), classes), np.float32) for example in examples]
    for row, example in enumerate(features.example):
        here = np.flatnonzero(features.words[row] >= 0)
        words[example][features.words[row][here]] = logits[row][here]
    return [decode_tags(each, np.arange(len(each)), task.labels) for each in words]
