"""Casts labeled examples as pairs of texts, as T5 does (Raffel et al. 2020, appendix D).

    stsb sentence1: The rhino grazed. sentence2: A rhino is grazing.   ->   3.8
    question: Who fell? context: The Roman Empire fell.                ->   The Roman Empire

The rules are those of `glue`, `stsb` and `squad` in T5's `t5/data/preprocessors.py`. Any output
that is not exactly a label counts as wrong.
"""

import math
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.data.finetuning.example import Example, QuestionExample, Task, TextExample
from bert_jax.errors import UserError

# The names of the texts of a task. T5 orders them alphabetically, so MNLI's hypothesis comes first.
_TEXT_NAMES: dict[str, tuple[str, ...]] = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "ax": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
}
_OTHER_TEXT_NAMES: tuple[str, ...] = ("sentence1", "sentence2")
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextToTextExample:
    """Holds a source text and its targets.

    `targets` are the correct outputs; training uses the first.
    """

    id: str
    source: str
    targets: tuple[str, ...]


def cast_task(task: Task, prefix: str) -> dict[str, tuple[TextToTextExample, ...]]:
    """Casts all splits of a task as pairs of texts.

    Raises:
      UserError: the task is of a kind without a form as text.
    """
    return {
        split: tuple(cast_example(example, prefix) for example in examples)
        for split, examples in task.splits.items()
    }


def cast_example(example: Example, task_name: str) -> TextToTextExample:
    """Casts one example; `task_name` is the prefix, such as "rte". Without a label: no targets.

    Raises:
      UserError: the example is of a kind without a form as text.
    """
    match example:
        case TextExample():
            label = example.label
            if isinstance(label, float | int):
                # T5 rounds only STS-B; other scores may be smaller than 0.2.
                label = score_text(label) if task_name == "stsb" else f"{label:g}"
            source = f"{task_name} {_join_texts(example, task_name)}"
            targets = () if label is None else (label,)
        case QuestionExample():
            question, context = pad_punctuation(example.question), pad_punctuation(example.context)
            source = f"question: {question} context: {context}"
            answers = [pad_punctuation(answer.text) for answer in example.answers]
            # SQuAD 2.0 has questions without an answer; T5 was trained on 1.1 only.
            targets = tuple(dict.fromkeys(answers)) or (("",) if example.is_impossible else ())
        case _:
            raise UserError(
                f"the task {task_name!r} has examples of the kind {type(example).__name__}, which "
                "cannot be cast as text; expected classification, regression or questions"
            )
    return TextToTextExample(id=example.id, source=source, targets=targets)


def _join_texts(example: TextExample, task_name: str) -> str:
    names = _TEXT_NAMES.get(task_name, _OTHER_TEXT_NAMES)
    texts = {names[0]: example.text}
    if example.text_pair is not None and len(names) == 1:
        names = _OTHER_TEXT_NAMES  # a task of the user's with a name of GLUE, such as "cola"
        texts = {names[0]: example.text, names[1]: example.text_pair}
    elif example.text_pair is not None:
        texts[names[1]] = example.text_pair
    elif names == _OTHER_TEXT_NAMES:
        texts = {"sentence": example.text}
    return " ".join(f"{name}: {texts[name]}" for name in sorted(texts))


def score_text(score: float) -> str:
    """Returns a score rounded to the nearest multiple of 0.2, as text: 2.57 becomes "2.6"."""
    return f"{round(score * 5) / 5:.1f}"


def parse_score(text: str) -> float:
    """Returns the number that an output is; -1 for an output that is no number, as in T5."""
    try:
        score = float(text)
    except ValueError:
        return -1.0
    return score if math.isfinite(score) else -1.0


def label_index(text: str, labels: Sequence[str]) -> int:
    """Returns the index of the label that an output is; -1 for any other output."""
    return labels.index(text) if text in labels else -1


def pad_punctuation(text: str) -> str:
    """Puts spaces around ASCII punctuation and single spaces between words, as T5 for SQuAD."""
    return " ".join(_PUNCTUATION.sub(r" \1 ", text).split())
