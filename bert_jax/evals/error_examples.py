"""The examples on which a model is most wrong, with their texts, for a person to read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.task import Task
from bert_jax.evals.ner_metrics import Tags, entity_spans
from bert_jax.evals.squad_decoding import Candidate, PredictedAnswer
from bert_jax.evals.task_metrics import question_scores

MAX_ERRORS = 20
MAX_CHARACTERS = 400
"""Of one text that is shown."""


def top_errors(
    task: Task, examples: Any, references: Any, predictions: Any
) -> list[dict[str, Any]]:
    """The errors of greatest loss first, at most `WORST`, as JSON values.

    Each is {"id", "loss", "texts": {name: text}, "reference", "predicted"}, with the "probability"
    of the prediction where the head gives one. Among equals the earlier example comes first. The
    loss is

      classification, choice   the cross-entropy in nats
      regression               the distance from the label
      tagging                  the number of entities that are missing or should not be there
      questions                the part of F1 that is lost, times the probability of the answer

    Args:
      examples, decided: of one split, as for `verdicts.metrics`; gold: `verdicts.gold` of them.
    """
    losses = error_losses(task, references, predictions)
    ranking = np.argsort(-losses, kind="stable")[:MAX_ERRORS].tolist()
    error_indices = [index for index in ranking if losses[index] > 0]
    allow_no_answer = task.kind == "question_answering" and not all(references)
    return [
        {
            "id": examples[index].id,
            "loss": float(losses[index]),
            **_error_to_json(task, examples[index], predictions[index], allow_no_answer),
        }
        for index in error_indices
    ]


def error_losses(task: Task, references: Any, predictions: Any) -> np.ndarray:
    """float64 [n]: what `worst_errors` ranks by; 0 for an example that is decided rightly."""
    match task.kind:
        case "classification" | "multiple_choice":
            logits = predictions.astype(np.float64)
            losses = -log_softmax(logits, axis=1)[np.arange(len(references)), references]
            return np.where(logits.argmax(axis=1) == references, 0.0, losses)
        case "regression":
            return np.abs(references.astype(np.float64) - predictions)
        case "token_classification":
            pairs = zip(references, predictions, strict=True)
            return np.array([len(_entity_set(a) ^ _entity_set(b)) for a, b in pairs], np.float64)
        case "question_answering":
            allow_no_answer = not all(references)
            confidence = np.array(
                [_chosen_answer(answer, allow_no_answer).probability for answer in predictions]
            )
            return (1 - question_scores(references, predictions).f1) * confidence


def excerpt(text: str, center: int = 0, max_characters: int = MAX_CHARACTERS) -> str:
    """At most `most` characters of `text`, with the one at `around` among them, and "…" at cuts."""
    if len(text) <= max_characters:
        return text
    start = max(0, min(center - max_characters // 2, len(text) - max_characters))
    prefix, suffix = "…" if start else "", "…" if start + max_characters < len(text) else ""
    return f"{prefix}{text[start : start + max_characters]}{suffix}"


def _error_to_json(
    task: Task, example: Any, prediction: Any, allow_no_answer: bool
) -> dict[str, Any]:
    match task.kind:
        case "classification":
            return {
                "texts": _texts(example),
                "reference": example.label,
                "predicted": task.labels[int(prediction.argmax())],
                "probability": _probability(prediction),
            }
        case "regression":
            return {
                "texts": _texts(example),
                "reference": f"{example.label:.4g}",
                "predicted": f"{float(prediction):.4g}",
            }
        case "multiple_choice":
            return {
                "texts": {"context": excerpt(f"{example.context} {example.prompt}".strip())},
                "reference": excerpt(example.choices[example.label]),
                "predicted": excerpt(example.choices[int(prediction.argmax())]),
                "probability": _probability(prediction),
            }
        case "token_classification":
            return {
                "texts": {"words": excerpt(" ".join(example.words))},
                "reference": _format_entities(example.words, example.tags),
                "predicted": _format_entities(example.words, prediction),
            }
        case "question_answering":
            predicted_answer = _chosen_answer(prediction, allow_no_answer)
            answer_starts = [answer.start for answer in example.answers]
            center = max(answer_starts[0] if answer_starts else predicted_answer.start, 0)
            reference_texts = dict.fromkeys(answer.text for answer in example.answers)
            return {
                "texts": {
                    "question": excerpt(example.question),
                    "context": excerpt(example.context, center),
                },
                "reference": excerpt(" / ".join(reference_texts)) or "no answer",
                "predicted": excerpt(predicted_answer.text) or "no answer",
                "probability": predicted_answer.probability,
            }


def _texts(example: TextExample) -> dict[str, str]:
    texts = {"text": excerpt(example.text)}
    if example.text_pair is not None:
        texts["second text"] = excerpt(example.text_pair)
    return texts


def _chosen_answer(answer: PredictedAnswer, allow_no_answer: bool) -> Candidate:
    """What is answered; "no answer" counts only where some question of the split has none."""
    return answer.n_best[0] if allow_no_answer else answer.best


def _entity_set(tags: Tags) -> set[tuple[str, int, int]]:
    return {(kind, start, end) for kind, start, end in entity_spans(tags)}


def _format_entities(words: Sequence[str], tags: Tags) -> str:
    """Entities for a reader: "PER Ann Lee; LOC Rome"."""
    entities = [f"{kind} {' '.join(words[start:end])}" for kind, start, end in entity_spans(tags)]
    return excerpt("; ".join(entities)) or "no entity"


def _probability(logits: np.ndarray) -> float:
    return float(softmax(logits.astype(np.float64)).max())
