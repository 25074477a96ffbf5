"""Reads SQuAD's JSON, versions 1.1 and 2.0 (Rajpurkar et al. 2016, 2018)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bert_jax.config.labeled_data import Squad
from bert_jax.data.finetuning.example import Answer, QuestionExample, Task
from bert_jax.errors import UserError
from bert_jax.io.json_io import parse_json
from bert_jax.text.files import read_text

# How many characters before and after its offset a misplaced answer is searched.
ANSWER_SEARCH_RADIUS = 64

_REPAIRED = "answers were not at their offset; the nearest occurrence was used"
_NOT_FOUND = "answers are not in their context"
_DROPPED = "questions without a remaining answer were left out"
_DUPLICATE_ID = "questions had a duplicate id and were given a new one"
_MISSING_BUT_SCORED = "answers are not in their context; predictions are still scored against them"


def read_squad(config: Squad) -> Task:
    """Reads the task from JSON files, also .gz; the test split may have no answers.

    Raises:
      UserError: a file is not SQuAD's JSON; an id occurs twice outside of train; a question lacks a
        required answer; with `strict`, an answer is not at its offset.
    """
    splits: dict[str, tuple[QuestionExample, ...]] = {}
    notes: list[str] = []
    for split, path in (("train", config.train), ("dev", config.dev), ("test", config.test)):
        if path is not None:
            counts: Counter[str] = Counter()
            examples = (
                _example(question, path, split, config, counts) for question in _questions(path)
            )
            remaining = [example for example in examples if example is not None]
            splits[split] = _make_ids_unique(remaining, path, split, counts)
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
    """Yields the JSON of each question, with its context and location."""
    content = parse_json(read_text(path), path)
    for a, article in enumerate(_member(content, "data", list, path)):
        location = f"{path}: data[{a}]"
        for p, paragraph in enumerate(_member(article, "paragraphs", list, location)):
            paragraph_location = f"{location}.paragraphs[{p}]"
            context = _member(paragraph, "context", str, paragraph_location)
            for q, question in enumerate(_member(paragraph, "qas", list, paragraph_location)):
                question_location = f"{paragraph_location}.qas[{q}]"
                _member(question, "question", str, question_location)
                yield {**question, "context": context, "location": question_location}


def _member(value: Any, key: str, kind: type, location: str) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        name = {list: "list", str: "text"}[kind]
        raise UserError(f"{location} has no {name} {key!r}; expected SQuAD's JSON format")
    return value[key]


def _example(
    question: dict[str, Any],
    path: str,
    split: str,
    config: Squad,
    counts: Counter[str],
) -> QuestionExample | None:
    """Returns the example; None if no answer remains to train on. Counts repairs in `counts`."""
    location = question["location"]
    if not isinstance(question.get("id"), (str, int)):
        raise UserError(f"{location} has no 'id'; expected SQuAD's JSON")
    name, context = str(question["id"]), question["context"]
    if not isinstance(question.get("answers") or [], list):
        raise UserError(f"{location}: 'answers' is not a list; expected SQuAD's JSON")
    raw_answers = [_answer(answer, location) for answer in question.get("answers") or ()]
    is_impossible = bool(question.get("is_impossible", False))
    if config.version == "2.0" and split != "test" and "is_impossible" not in question:
        is_impossible = not raw_answers
    if is_impossible and config.version == "1.1":
        raise UserError(
            f"{path}: the question {name!r} is marked as impossible, as in SQuAD 2.0; "
            "use --squad-version 2.0"
        )
    if not raw_answers and not is_impossible and split != "test":
        raise UserError(f"{path}: the question {name!r} has no answers; expected at least one")
    answers = (
        []
        if is_impossible
        else [_locate_answer(a, context, config, path, name, counts) for a in raw_answers]
    )
    # Training needs the place of an answer. Evaluation compares texts, so an answer that is not in
    # the context still counts there, as in the official script.
    if split == "train":
        located = [answer for answer in answers if answer.start >= 0]
        if len(located) < len(answers):
            counts[_NOT_FOUND] += len(answers) - len(located)
            if not located:
                counts[_DROPPED] += 1
                return None
        answers = located
    elif num_missing := sum(answer.start < 0 for answer in answers):
        counts[_MISSING_BUT_SCORED] += num_missing
    return QuestionExample(
        id=name,
        question=question["question"],
        context=context,
        answers=tuple(answers),
        is_impossible=is_impossible,
    )


def _answer(answer: Any, location: str) -> Answer:
    text = _member(answer, "text", str, f"{location}.answers")
    start = answer.get("answer_start")
    if not isinstance(start, int):
        raise UserError(f"{location}.answers has no number 'answer_start'; expected SQuAD's JSON")
    return Answer(text=text, start=start)


def _locate_answer(
    answer: Answer, context: str, config: Squad, path: str, name: str, counts: Counter[str]
) -> Answer:
    """Finds an answer in the context, near its offset; start is -1 if it is not there."""
    if answer.text and answer.start >= 0 and context.startswith(answer.text, answer.start):
        return answer
    if config.strict:
        found_text = context[max(answer.start, 0) :][: len(answer.text)]
        raise UserError(
            f"{path}: the answer {answer.text!r} of the question {name!r} is not at its offset "
            f"{answer.start} in the context, where {found_text!r} stands"
        )
    start = _nearest_occurrence(answer, context)
    if start >= 0:
        counts[_REPAIRED] += 1
    return Answer(text=answer.text, start=start)


def _nearest_occurrence(answer: Answer, context: str) -> int:
    search_start = max(0, answer.start - ANSWER_SEARCH_RADIUS)
    search_end = answer.start + ANSWER_SEARCH_RADIUS + len(answer.text)
    occurrences = []
    while (
        answer.text
        and (position := context.find(answer.text, search_start, max(search_end, 0))) >= 0
    ):
        occurrences.append(position)
        search_start = position + 1
    return min(occurrences, key=lambda position: abs(position - answer.start), default=-1)


def _make_ids_unique(
    examples: list[QuestionExample], path: str, split: str, counts: Counter[str]
) -> tuple[QuestionExample, ...]:
    """Refuses duplicate ids, which predictions need to be unique; in train, renames them."""
    if not examples and counts[_DROPPED]:
        raise UserError(
            f"{path}: none of the {counts[_DROPPED]:,} questions has an answer that occurs in its "
            "context near 'answer_start'; correct the answers or their offsets"
        )
    if not examples:
        raise UserError(f"{path} has no questions; expected at least one")
    id_counts = Counter(example.id for example in examples)
    if len(id_counts) == len(examples):
        return tuple(examples)
    if split != "train":
        name, count = id_counts.most_common(1)[0]
        raise UserError(f"{path}: {count} questions have the id {name!r}; expected one")
    counts[_DUPLICATE_ID] += len(examples) - len(id_counts)
    # The ids of training examples are in no output, so new ones do no harm.
    return tuple(replace(example, id=f"{n}:{example.id}") for n, example in enumerate(examples))
