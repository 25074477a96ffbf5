"""Questions about a context, from SQuAD's JSON, versions 1.1 and 2.0 (Rajpurkar et al.)."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bert_jax.data.labelled.config import Squad
from bert_jax.data.labelled.example import Answer, QuestionExample
from bert_jax.data.labelled.task import Task
from bert_jax.errors import UserError
from bert_jax.text.files import read_text

# An answer that is not at its offset is looked for so many characters before and after it.
NEAR_CHARACTERS = 64

_MENDED = "answers stood elsewhere than at their offset; the nearest occurrence was taken"
_NOT_FOUND = "answers are not in their context"
_LEFT_OUT = "questions that no answer was left for were left out"
_SAME_ID = "questions had the id of one before them and were given another"
_SCORED = "answers are not in their context; predictions are still scored against them"


def read_squad(config: Squad) -> Task:
    """The task from JSON files, .gz or not; test may lack answers.

    Raises:
      UserError: not SQuAD's JSON; an id that occurs twice, other than in train; a question without
        an answer where there must be one; with `strict`, an answer that is not at its offset.
    """
    splits: dict[str, tuple[QuestionExample, ...]] = {}
    notes: list[str] = []
    for split, path in (("train", config.train), ("dev", config.dev), ("test", config.test)):
        if path is not None:
            counts: Counter[str] = Counter()
            examples = (
                _example(question, path, split, config, counts) for question in _questions(path)
            )
            kept = [example for example in examples if example is not None]
            splits[split] = _with_own_ids(kept, path, split, counts)
            notes += [f"{path}: {count:,} {what}." for what, count in counts.items()]
    return Task(
        name=f"squad_v{config.version}",
        kind="question_answering",
        labels=(),
        metrics=("f1", "exact_match"),
        splits={**splits},
        notes=tuple(notes),
    )


def _questions(path: str) -> Iterator[dict[str, Any]]:
    """Each question's JSON with its context beside it."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); "
            "the file may be cut off"
        ) from None
    for a, article in enumerate(_member(content, "data", list, path)):
        place = f"{path}: data[{a}]"
        for p, paragraph in enumerate(_member(article, "paragraphs", list, place)):
            inside = f"{place}.paragraphs[{p}]"
            context = _member(paragraph, "context", str, inside)
            for q, question in enumerate(_member(paragraph, "qas", list, inside)):
                here = f"{inside}.qas[{q}]"
                _member(question, "question", str, here)
                yield {**question, "context": context, "place": here}


def _member(value: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        name = {list: "list", str: "text"}[kind]
        raise UserError(f"{place} has no {name} {key!r}; expected SQuAD's JSON")
    return value[key]


def _example(
    question: dict[str, Any],
    path: str,
    split: str,
    config: Squad,
    counts: Counter[str],
) -> QuestionExample | None:
    """The example; None where no answer is left to train on. `counts` collects what was mended."""
    place = question["place"]
    if not isinstance(question.get("id"), (str, int)):
        raise UserError(f"{place} has no 'id'; expected SQuAD's JSON")
    name, context = str(question["id"]), question["context"]
    stated = [_answer(answer, place) for answer in question.get("answers") or ()]
    impossible = bool(question.get("is_impossible", False))
    if config.version == "2.0" and split != "test" and "is_impossible" not in question:
        impossible = not stated
    if impossible and config.version == "1.1":
        raise UserError(
            f"{path}: the question {name!r} has no answer in its context, as in SQuAD 2.0; "
            "read the file as version 2.0 (--squad-version 2.0)"
        )
    if not stated and not impossible and split != "test":
        raise UserError(f"{path}: the question {name!r} has no answers; expected at least one")
    answers = (
        [] if impossible else [_placed(a, context, config, path, name, counts) for a in stated]
    )
    if split == "train":
        found = [answer for answer in answers if answer.start >= 0]
        if len(found) < len(answers):
            counts[_NOT_FOUND] += len(answers) - len(found)
            if not found:
                counts[_LEFT_OUT] += 1
                return None
        answers = found
    elif missing := sum(answer.start < 0 for answer in answers):
        counts[_SCORED] += missing
    return QuestionExample(
        id=name,
        question=question["question"],
        context=context,
        answers=tuple(answers),
        is_impossible=impossible,
    )


def _answer(answer: Any, place: str) -> Answer:
    text = _member(answer, "text", str, f"{place}.answers")
    start = answer.get("answer_start")
    if not isinstance(start, int):
        raise UserError(f"{place}.answers has no number 'answer_start'; expected SQuAD's JSON")
    return Answer(text=text, start=start)


def _placed(
    answer: Answer, context: str, config: Squad, path: str, name: str, counts: Counter[str]
) -> Answer:
    """The answer where it stands in the context; start -1 where it does not."""
    if answer.text and answer.start >= 0 and context.startswith(answer.text, answer.start):
        return answer
    if config.strict:
        there = context[max(answer.start, 0) :][: len(answer.text)]
        raise UserError(
            f"{path}: the answer {answer.text!r} of the question {name!r} is not at its offset "
            f"{answer.start} in the context, where {there!r} stands"
        )
    start = _nearest(answer, context)
    if start >= 0:
        counts[_MENDED] += 1
    return Answer(text=answer.text, start=start)


def _nearest(answer: Answer, context: str) -> int:
    first = max(0, answer.start - NEAR_CHARACTERS)
    last = answer.start + NEAR_CHARACTERS + len(answer.text)
    places = []
    while answer.text and (at := context.find(answer.text, first, max(last, 0))) >= 0:
        places.append(at)
        first = at + 1
    return min(places, key=lambda at: abs(at - answer.start), default=-1)


def _with_own_ids(
    examples: list[QuestionExample], path: str, split: str, counts: Counter[str]
) -> tuple[QuestionExample, ...]:
    """The examples, no two with one id: predictions go by it, training does not."""
    if not examples:
        raise UserError(f"{path}: no questions; expected at least one")
    uses = Counter(example.id for example in examples)
    if len(uses) == len(examples):
        return tuple(examples)
    if split != "train":
        name, count = uses.most_common(1)[0]
        raise UserError(f"{path}: {count} questions have the id {name!r}; expected one")
    counts[_SAME_ID] += len(examples) - len(uses)
    return tuple(replace(example, id=f"{n}:{example.id}") for n, example in enumerate(examples))
