"""Casts labeled examples as source and target texts, as T5 does, and builds batches of them.

    stsb sentence1: The rhino grazed. sentence2: A rhino is grazing.   ->   3.8
    question: Who fell ? context: The Roman Empire fell .              ->   The Roman Empire

The rules are as in `glue`, `stsb` and `squad` in T5's `t5/data/preprocessors.py`. A loader can be
resumed: the seed and the position determine the order of the examples.
"""

import functools
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.config.labeled_data import Mixing, TextColumns, TextTaskConfig
from bert_jax.data.finetuning.example import Example, QuestionExample, Task, TextExample
from bert_jax.data.finetuning.mixture import MixtureSampler
from bert_jax.data.finetuning.readers.columns import require_columns
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.finetuning.readers.tabular_files import read_table
from bert_jax.data.pretraining.denoising import SourceAndTarget, collate_sources_and_targets
from bert_jax.data.pretraining.windows import PackingPlan, pack
from bert_jax.errors import UserError
from bert_jax.text.tokenizer import Tokenizer

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


# T5's prefixes and label words, so that mixtures need no heads and no `task_ids`. T5 trains on WSC
# and DPR instead of WNLI, which the recipe refuses. Only the scores of STS-B are rounded.
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
        case TextExample(label=str() | float() | int() | None as label):
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
                f"the task {task_name!r} has examples of the kind {type(example).__name__}"
                f"{' with lists of labels' * isinstance(example, TextExample)}, which cannot be "
                "cast as text; expected classification, regression or questions"
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


# An output that is no label counts as the other class in the F1 of MRPC and QQP, as in T5.
def label_index(text: str, labels: Sequence[str]) -> int:
    """Returns the index of the label that an output is; -1 for any other output."""
    return labels.index(text) if text in labels else -1


def pad_punctuation(text: str) -> str:
    """Puts spaces around ASCII punctuation and single spaces between words, as T5 for SQuAD."""
    return " ".join(_PUNCTUATION.sub(r" \1 ", text).split())


def pack_sources_and_targets(
    examples: Sequence[SourceAndTarget], num_rows: int, capacities: tuple[int, int]
) -> PackingPlan:
    """Packs as many of the first examples as fit.

    Args:
      capacities: (L, T), the tokens of a row for sources and for targets.
    """
    return pack(np.array([[len(ids) for ids in each] for each in examples]), num_rows, capacities)


def collate_packed_rows(
    examples: Sequence[SourceAndTarget],
    packing_plan: PackingPlan,
    num_rows: int,
    capacities: tuple[int, int],
    pad_id: int,
) -> dict[str, np.ndarray]:
    """Builds the fields of `num_rows` rows (B) from examples and the plan of where each goes.

    Args:
      capacities: (L, T), the tokens of a row for sources and for targets.

    Returns:
      `input_ids`, `attention_mask`, `position_ids` (from 0 in each example) and `packing_ids`
      (1, 2, ... along a row, 0 = padding), int32 [B, L]; `decoder_target_ids`,
      `decoder_position_ids` and `decoder_packing_ids`, int32 [B, T], and `decoder_target_weights`,
      float32 [B, T]. Padding is `pad_id` in sources, and 0 with the weight 0 in targets.
    """
    tokens = [np.full((num_rows, capacities[0]), pad_id, np.int32)]
    tokens += [np.zeros((num_rows, capacities[1]), np.int32)]
    position_ids, packing_ids = ([np.zeros_like(each) for each in tokens] for _ in range(2))
    num_packed = np.zeros(num_rows, np.int32)
    for index in np.argsort(packing_plan.offsets[:, 0], kind="stable").tolist():
        row = packing_plan.rows[index]
        num_packed[row] += 1
        # Side 0 is the source, side 1 the target.
        for side, (ids, begin) in enumerate(
            zip(examples[index], packing_plan.offsets[index], strict=True)
        ):
            slot = row, slice(begin, begin + len(ids))
            tokens[side][slot] = ids
            position_ids[side][slot] = np.arange(len(ids))
            packing_ids[side][slot] = num_packed[row]
    return {
        "input_ids": tokens[0],
        "attention_mask": (packing_ids[0] > 0).astype(np.int32),
        "position_ids": position_ids[0],
        "packing_ids": packing_ids[0],
        "decoder_target_ids": tokens[1],
        "decoder_target_weights": (packing_ids[1] > 0).astype(np.float32),
        "decoder_position_ids": position_ids[1],
        "decoder_packing_ids": packing_ids[1],
    }


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """Holds the examples of a task as pairs of texts.

    Attributes:
      kind: of the labeled task that was cast ("classification" and so on); None for
        columns of texts.
      labels: the class names of the labeled task, in the order of their ids.
      metrics: names of the metrics of the labeled task.
      splits: "train", "dev", "test" and others, as far as they exist.
    """

    kind: str | None
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: dict[str, tuple[TextToTextExample, ...]]


def load_text_task(config: TextTaskConfig, name: str) -> TextTask:
    """Reads a task; `name` is the prefix of the sources, as in T5.

    Tasks of GLUE have their own name instead, and questions have no prefix.


    Raises:
      UserError: a file or column is missing, a text is empty, or an example of train or dev has no
        target.
    """
    if isinstance(config, TextColumns):
        task = TextTask(kind=None, labels=(), metrics=(), splits=_read_columns(config))
    else:
        labeled = load_task(config)
        prefix = labeled.name.removeprefix("glue/") if labeled.name.startswith("glue/") else name
        task = TextTask(
            kind=labeled.kind,
            labels=labeled.labels,
            metrics=labeled.metrics,
            splits=cast_task(labeled, prefix),
        )
    for split in ("train", "dev"):
        for example in task.splits.get(split, ()):
            if not example.targets:
                raise UserError(
                    f"task {name!r}: the example {example.id} of {split} has no target; expected "
                    "a label or an answer"
                )
    return task


def _read_columns(config: TextColumns) -> dict[str, tuple[TextToTextExample, ...]]:
    splits: dict[str, tuple[TextToTextExample, ...]] = {}
    for split, path in (("train", config.train), ("dev", config.dev), ("test", config.test)):
        if path is None:
            continue
        table = read_table(path, config.encoding)
        # A test file may lack the targets, which are then generated.
        has_target = split != "test" or config.target in table.columns
        require_columns(table, path, [config.source, config.target if has_target else None])
        examples = []
        for row, (location, cells) in enumerate(table.rows):
            source = str(cells[config.source] or "").strip()
            target = str(cells[config.target] or "").strip() if has_target else ""
            if not source or (has_target and not target):
                column = config.target if source else config.source
                raise UserError(
                    f"{location}: the column {column!r} is empty; expected a text, or remove the "
                    "row"
                )
            targets = (target,) if has_target else ()
            examples.append(TextToTextExample(id=str(row), source=source, targets=targets))
        if not examples:
            raise UserError(f"{path}: no rows; expected at least one")
        splits[split] = tuple(examples)
    return splits


def check_labels(task: TextTask, name: str, tokenizer: Tokenizer, target_length: int) -> None:
    """Checks that the decoder can write every label of a task, and no two labels in the same way.

    A label that begins another one, such as "good" and "good enough", is allowed: the end token
    distinguishes them, unless the longer one is truncated.

    Raises:
      UserError: a label has more tokens than targets may have, two labels have the same tokens, or
        the tokenizer does not return the characters of a label.
    """
    num_special = tokenizer.template.num_single_special_tokens
    label_of: dict[tuple[int, ...], str] = {}
    for label, ids in zip(task.labels, tokenizer.encode_ids(list(task.labels)), strict=True):
        if len(ids) + num_special > target_length:
            raise UserError(
                f"task {name!r}: the label {label!r} has {len(ids)} tokens and {num_special} "
                f"special tokens, but target_length is {target_length}, so it could not be "
                "distinguished from labels with the same beginning; set target_length of the phase "
                f"to at least {len(ids) + num_special}, or use shorter labels"
            )
        key = tuple(int(i) for i in ids)
        other = label_of.setdefault(key, label)
        if other != label:
            raise UserError(
                f"task {name!r}: the labels {other!r} and {label!r} have the same tokens; expected "
                "labels that the tokenizer of the model distinguishes"
            )
        # An uncased tokenizer would write "paris" for the label "Paris", and every output would
        # count as wrong without an error.
        decoded = tokenizer.decode([i for i in key if i not in tokenizer.special_ids]).strip()
        if decoded != label:
            raise UserError(
                f"task {name!r}: the tokenizer turns the label {label!r} into {decoded!r}, so "
                "every output would be wrong; expected a label whose characters, case and spaces "
                "the tokenizer of the model keeps"
            )


def encode_examples(
    examples: Sequence[TextToTextExample],
    tokenizer: Tokenizer,
    seq_length: int,
    target_length: int,
) -> tuple[list[SourceAndTarget], int]:
    """Encodes sources and first targets with their special tokens, truncated to the lengths.

    Returns:
      The encoded examples, and the number of those that were truncated.
    """
    num_special = tokenizer.template.num_single_special_tokens
    limits = seq_length - num_special, target_length - num_special
    sources = tokenizer.encode_ids([example.source for example in examples])
    targets = tokenizer.encode_ids([example.targets[0] for example in examples])
    add_special_tokens = tokenizer.build_inputs_with_special_tokens
    num_truncated = 0
    encoded: list[SourceAndTarget] = []
    for source, target in zip(sources, targets, strict=True):
        num_truncated += len(source) > limits[0] or len(target) > limits[1]
        pair = add_special_tokens(source[: limits[0]]), add_special_tokens(target[: limits[1]])
        encoded.append(SourceAndTarget(*pair))
    return encoded, num_truncated


class TextToTextLoader:
    """Iterates without end over this process's rows of batches that mix the tasks.

    Args:
      examples: task name -> its encoded training examples.
      lengths: of sources and targets, to which batches are padded.
      batch_size: number of rows over all processes.
      packing: put as many consecutive examples into a batch as fit; otherwise one for each row.
      start: the position to begin at, a number of examples over all processes.
    """

    def __init__(
        self,
        examples: Mapping[str, Sequence[SourceAndTarget]],
        mixing: Mixing,
        *,
        lengths: tuple[int, int],
        batch_size: int,
        packing: bool,
        pad_id: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
        start: int = 0,
    ) -> None:
        self._examples = [example for task in examples.values() for example in task]
        self._sampler = MixtureSampler(
            {name: len(task) for name, task in examples.items()}, mixing, seed
        )
        self._lengths, self._packing, self._pad_id = lengths, packing, pad_id
        rows = batch_size // process_count
        self._rows = process_index * rows, (process_index + 1) * rows
        self._batch_size, self._position = batch_size, start
        # Two epochs: packing looks at examples of the next one before it has used up this one.
        self._order_of = functools.lru_cache(maxsize=2)(self._sampler)

    @property
    def position(self) -> int:
        """Returns the number of examples, over all processes, in the batches returned so far."""
        return self._position

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of examples of an epoch."""
        return len(self._sampler)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        begin, end = self._rows
        if self._packing:
            examples, plan = self._plan_batch()
            self._position += len(plan.rows)
            here = np.flatnonzero((begin <= plan.rows) & (plan.rows < end))
            plan = PackingPlan(plan.rows[here] - begin, plan.offsets[here])
            examples = [examples[i] for i in here]
            return collate_packed_rows(examples, plan, end - begin, self._lengths, self._pad_id)
        rows = [self._example_at(self._position + row) for row in range(begin, end)]
        self._position += self._batch_size
        return collate_sources_and_targets(rows, *self._lengths, self._pad_id)

    def _plan_batch(self) -> tuple[list[SourceAndTarget], PackingPlan]:
        """Returns the next examples, more than fit into a batch, and where the first ones go."""
        examples: list[SourceAndTarget] = []
        num_tokens = np.zeros(2, np.int64)
        # One example more than can fit, so that packing decides by the lengths and not by where
        # this loop ends.
        while (num_tokens <= self._batch_size * np.array(self._lengths)).all():
            examples.append(self._example_at(self._position + len(examples)))
            num_tokens += [len(ids) for ids in examples[-1]]
        return examples, pack_sources_and_targets(examples, self._batch_size, self._lengths)

    def _example_at(self, position: int) -> SourceAndTarget:
        epoch, offset = divmod(position, len(self._sampler))
        return self._examples[self._order_of(epoch)[offset]]
