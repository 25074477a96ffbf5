"""From what a head says of rows to what is decided for examples: the last step of every task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from bert_jax.data.finetuning.rows import Features
from bert_jax.data.finetuning.task import Task
from bert_jax.evals.ner_metrics import decode_tags, entity_spans
from bert_jax.evals.squad_decoding import ContextWindow, decode_answers
from bert_jax.evals.task_metrics import task_metrics

Examples = Sequence[Any]
SequenceOutputs = Sequence[np.ndarray]


def gather_outputs(
    batches: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]], num_sequences: int
) -> dict[str, list[np.ndarray]]:
    """What the head says of each of `rows` rows, by the names of `FineTuningProgram.predict`.

    Args:
      batches: (numbers of the rows, what the head says of a batch that begins with these rows).
    """
    outputs: dict[str, list[Any]] = {}
    for sequence_indices, batch_outputs in batches:
        for name, values in batch_outputs.items():
            outputs_by_sequence = outputs.setdefault(name, [None] * num_sequences)
            for batch_index, sequence_index in enumerate(sequence_indices):
                outputs_by_sequence[sequence_index] = values[batch_index]
    return outputs


def decode(
    task: Task,
    examples: Examples,
    features: Features,
    outputs: Mapping[str, Sequence[np.ndarray]],
    *,
    allow_no_answer: bool | None = None,
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
        case "token_classification":
            return _decode_word_tags(task, examples, features, outputs["logits"])
        case "question_answering":
            windows = [
                ContextWindow(
                    example_index=int(example_index), offsets=offsets, is_max_context=is_max_context
                )
                for example_index, offsets, is_max_context in zip(
                    features.example_index, features.offsets, features.is_max_context, strict=True
                )
            ]
            return decode_answers(
                [example.context for example in examples],
                windows,
                outputs["start_logits"],
                outputs["end_logits"],
                allow_no_answer=has_unanswerable_questions(task)
                if allow_no_answer is None
                else allow_no_answer,
            )


def has_unanswerable_questions(task: Task) -> bool:
    """Whether some question of the task has no answer, as in SQuAD 2.0."""
    return any(
        getattr(example, "is_impossible", False)
        for split in task.splits.values()
        for example in split
    )


def compute_metrics(task: Task, examples: Examples, predictions: Any) -> dict[str, float]:
    """The metrics of labelled examples; see `task_metrics`."""
    return task_metrics(task.kind, task.labels, get_references(task, examples), predictions)


def get_references(task: Task, examples: Examples) -> Any:
    """The labels of examples, in the form that `task_metrics` takes."""
    match task.kind:
        case "classification":
            label2id = {label: class_id for class_id, label in enumerate(task.labels)}
            return np.array([label2id[example.label] for example in examples])
        case "regression" | "multiple_choice":
            return np.array([example.label for example in examples])
        case "token_classification":
            return [list(example.tags) for example in examples]
        case "question_answering":
            return [[answer.text for answer in example.answers] for example in examples]


def predictions_to_json(task: Task, examples: Examples, predictions: Any) -> list[dict[str, Any]]:
    """Each example's decision as JSON values, with its id."""
    records = (
        _prediction_to_json(task, example, prediction)
        for example, prediction in zip(examples, predictions, strict=True)
    )
    return [{"id": example.id, **record} for example, record in zip(examples, records, strict=True)]


def _prediction_to_json(task: Task, example: Any, prediction: Any) -> dict[str, Any]:
    match task.kind:
        case "classification":
            probabilities = softmax(prediction.astype(np.float64))
            label_probabilities = dict(zip(task.labels, probabilities.tolist(), strict=True))
            return {
                "label": task.labels[int(prediction.argmax())],
                "probabilities": label_probabilities,
            }
        case "multiple_choice":
            probabilities = softmax(prediction.astype(np.float64))
            return {"choice": int(prediction.argmax()), "probabilities": probabilities.tolist()}
        case "regression":
            return {"value": float(prediction)}
        case "token_classification":
            entities = [
                {
                    "type": entity.type,
                    "start": entity.start,
                    "end": entity.end,
                    "text": " ".join(example.words[entity.start : entity.end]),
                }
                for entity in entity_spans(prediction)
            ]
            return {"tags": list(prediction), "entities": entities}
        case "question_answering":
            best = prediction.n_best[0]  # which may be "no answer"
            return {
                "answer": best.text,
                "start": best.start,
                "end": best.end,
                "score": best.score,
                "probability": best.probability,
                "no_answer_score": prediction.no_answer_score,
            }


def _decode_word_tags(
    task: Task, examples: Examples, features: Features, logits: SequenceOutputs
) -> list[list[str]]:
    """Each word's tag, from the row that decides it."""
    num_classes = len(task.labels)
    word_logits = [np.zeros((len(example.words), num_classes), np.float32) for example in examples]
    for sequence_index, example_index in enumerate(features.example_index):
        positions = np.flatnonzero(features.word_ids[sequence_index] >= 0)
        word_logits[example_index][features.word_ids[sequence_index][positions]] = logits[
            sequence_index
        ][positions]
    return [
        decode_tags(example_logits, np.arange(len(example_logits)), task.labels)
        for example_logits in word_logits
    ]
