"""The examples on which a model is most wrong, with their texts, for a person to read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from bert_jax.data.labelled.example import TextExample
from bert_jax.data.labelled.task import Task
from bert_jax.evals.answer_decoding import Candidate, PredictedAnswer
from bert_jax.evals.tags import Tags, entity_spans
from bert_jax.evals.task_metrics import question_scores

WORST = 20
MOST_CHARACTERS = 400
"""Of one text that is shown."""


def worst_errors(task: Task, examples: Any, gold: Any, decided: Any) -> list[dict[str, Any]]:
    """The errors of greatest loss first, at most `WORST`, as JSON values.

    Each is {"id", "loss", "texts": {name: text}, "gold", "predicted"}, with the "probability" of
    the prediction where the head gives one. Among equals the earlier example comes first. The loss
    is

      classification, choice   the cross-entropy in nats
      regression               the distance from the label
      tagging                  the number of entities that are missing or should not be there
      questions                the part of F1 that is lost, times the probability of the answer

    Args:
      examples, decided: of one split, as for `verdicts.metrics`; gold: `verdicts.gold` of them.
    """
    losses = error_losses(task, gold, decided)
    order = np.argsort(-losses, kind="stable")[:WORST].tolist()
    shown = [place for place in order if losses[place] > 0]
    may_decline = task.kind == "question_answering" and not all(gold)
    return [
        {
            "id": examples[place].id,
            "loss": float(losses[place]),
            **_described(task, examples[place], decided[place], may_decline),
        }
        for place in shown
    ]


def error_losses(task: Task, gold: Any, decided: Any) -> np.ndarray:
    """float64 [n]: what `worst_errors` ranks by; 0 for an example that is decided rightly."""
    match task.kind:
        case "classification" | "multiple_choice":
            logits = decided.astype(np.float64)
            losses = -log_softmax(logits, axis=1)[np.arange(len(gold)), gold]
            return np.where(logits.argmax(axis=1) == gold, 0.0, losses)
        case "regression":
            return np.abs(gold.astype(np.float64) - decided)
        case "tagging":
            pairs = zip(gold, decided, strict=True)
            return np.array([len(_entities(a) ^ _entities(b)) for a, b in pairs], np.float64)
        case "question_answering":
            may_decline = not all(gold)
            sure = np.array([_given(answer, may_decline).probability for answer in decided])
            return (1 - question_scores(gold, decided).f1) * sure


def excerpt(text: str, around: int = 0, most: int = MOST_CHARACTERS) -> str:
    """At most `most` characters of `text`, with the one at `around` among them, and "…" at cuts."""
    if len(text) <= most:
        return text
    start = max(0, min(around - most // 2, len(text) - most))
    head, tail = "…" if start else "", "…" if start + most < len(text) else ""
    return f"{head}{text[start : start + most]}{tail}"


def _described(task: Task, example: Any, decided: Any, may_decline: bool) -> dict[str, Any]:
    match task.kind:
        case "classification":
            return {
                "texts": _texts(example),
                "gold": example.label,
                "predicted": task.labels[int(decided.argmax())],
                "probability": _probability(decided),
            }
        case "regression":
            return {
                "texts": _texts(example),
                "gold": f"{example.label:.4g}",
                "predicted": f"{float(decided):.4g}",
            }
        case "multiple_choice":
            return {
                "texts": {"context": excerpt(f"{example.context} {example.prompt}".strip())},
                "gold": excerpt(example.choices[example.label]),
                "predicted": excerpt(example.choices[int(decided.argmax())]),
                "probability": _probability(decided),
            }
        case "tagging":
            return {
                "texts": {"words": excerpt(" ".join(example.words))},
                "gold": _listed(example.words, example.tags),
                "predicted": _listed(example.words, decided),
            }
        case "question_answering":
            given = _given(decided, may_decline)
            starts = [answer.start for answer in example.answers]
            around = max(starts[0] if starts else given.start, 0)
            answers = dict.fromkeys(answer.text for answer in example.answers)
            return {
                "texts": {
                    "question": excerpt(example.question),
                    "context": excerpt(example.context, around),
                },
                "gold": excerpt(" / ".join(answers)) or "no answer",
                "predicted": excerpt(given.text) or "no answer",
                "probability": given.probability,
            }


def _texts(example: TextExample) -> dict[str, str]:
    texts = {"text": excerpt(example.text)}
    if example.text_pair is not None:
        texts["second text"] = excerpt(example.text_pair)
    return texts


def _given(answer: PredictedAnswer, may_decline: bool) -> Candidate:
    """What is answered; "no answer" counts only where some question of the split has none."""
    return answer.n_best[0] if may_decline else answer.best


def _entities(tags: Tags) -> set[tuple[str, int, int]]:
    return {(kind, start, end) for kind, start, end in entity_spans(tags)}


def _listed(words: Sequence[str], tags: Tags) -> str:
    """Entities for a reader: "PER Ann Lee; LOC Rome"."""
    named = [f"{kind} {' '.join(words[start:end])}" for kind, start, end in entity_spans(tags)]
    return excerpt("; ".join(named)) or "no entity"


def _probability(logits: np.ndarray) -> float:
    return float(softmax(logits.astype(np.float64)).max())
