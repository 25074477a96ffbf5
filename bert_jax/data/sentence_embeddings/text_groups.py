"""Reads groups of texts for training sentence encoders: single texts, pairs, triples."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.config.labeled_data import Glue
from bert_jax.config.sentence_embeddings import (
    ContrastivePairs,
    NliFiles,
    NliForm,
    StsBenchmark,
    TextFile,
    TextGroupsConfig,
)
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features, build_inputs_with_special_tokens
from bert_jax.data.finetuning.readers.columns import require_columns
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.finetuning.readers.tabular_files import TableRow, read_table
from bert_jax.data.sentence_embeddings.loader import joined_text, sample_pairs
from bert_jax.data.sentence_embeddings.role_tokens import RoleTokens, tokenize_for_role
from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.config import (
    EmbeddingConfig,
    MultiVectorEncoderConfig,
    SparseEncoderConfig,
    TextRole,
)
from bert_jax.text.tokenizer import Tokenizer

_HIGHEST_STS_SCORE = 5.0


@dataclass(frozen=True, kw_only=True)
class TextGroups:
    """Holds groups with the same number of texts, and their scores or labels if they have any.

    Attributes:
      name: the file or data set, for messages.
      scores: float32 [groups], from 0 to 1.
      labels: the name of a class for each group.
      teacher_scores: float32 [groups, texts - 1], a teacher's scores of the first text with each of
        the others.
    """

    name: str
    texts: list[tuple[str, ...]]
    scores: np.ndarray | None = None
    labels: list[str] | None = None
    teacher_scores: np.ndarray | None = None

    @property
    def num_texts(self) -> int:
        """Returns the number of texts in each group."""
        return len(self.texts[0])

    def fingerprint(self) -> str:
        """Hashes texts, scores and labels; returns 16 hex digits of the sha256."""
        digest = hashlib.sha256()
        for texts in self.texts:
            digest.update(repr(texts).encode("utf-8", "surrogatepass"))
        for scores in (self.scores, self.teacher_scores):
            if scores is not None:
                digest.update(scores.tobytes())
        digest.update(repr(self.labels).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]


def read_text_groups(config: TextGroupsConfig) -> TextGroups:
    """Reads the files of a config.

    Raises:
      UserError: a file or a column is missing, there is no row, a text is empty, or a score is not
        in its range; the message names file and line.
    """
    match config:
        case TextFile():
            return _read_text_file(config)
        case NliFiles():
            return _read_nli(config)
        case StsBenchmark():
            return _read_sts_benchmark(config)
        case ContrastivePairs():
            return _read_contrastive_pairs(config)


def single_texts(groups: TextGroups) -> TextGroups:
    """Returns every different text of all groups once, in the order of its first occurrence."""
    texts = dict.fromkeys(text for group in groups.texts for text in group)
    return TextGroups(name=groups.name, texts=[(text,) for text in texts])


def repeated_texts(groups: TextGroups) -> TextGroups:
    """Returns a pair of each different text with itself, for losses that differ by dropout."""
    singles = single_texts(groups)
    return dataclasses.replace(singles, texts=[(text, text) for (text,) in singles.texts])


def text_ids(groups: TextGroups) -> np.ndarray:
    """Returns a number for each text, int64 [groups, texts]; equal texts have the same number."""
    ids: dict[str, int] = {}
    rows = [[ids.setdefault(text, len(ids)) for text in group] for group in groups.texts]
    return np.array(rows, np.int64)


def max_text_lengths(features: Features) -> list[int]:
    """Returns the number of tokens of the longest first text of all groups, second text, ..."""
    lengths = [len(ids) for ids in features.input_ids]
    return [max(lengths[column :: features.num_choices]) for column in range(features.num_choices)]


def group_features(
    groups: TextGroups,
    tokenizer: Tokenizer,
    max_length: int,
    config: EmbeddingConfig | None = None,
) -> Features:
    """Tokenizes groups; a group is a sequence whose texts take the place of choices.

    Longer texts are truncated to `max_length` tokens; `num_truncated` counts groups.

    Args:
      config: of sparse and multi-vector models, which read the first text of a group as a query and
        the others as documents, with their prompts and lengths; None or of a dense model: all texts
        are alike, without a prompt.
    """
    columns = list(zip(*groups.texts, strict=True))
    roles: list[TextRole]
    if isinstance(config, SparseEncoderConfig | MultiVectorEncoderConfig):
        roles = ["query", *["document" for _ in range(groups.num_texts - 1)]]
    else:
        config = None
        roles = ["document" for _ in range(groups.num_texts)]
    built: dict[tuple[TextRole, str], RoleTokens] = {}
    for role in dict.fromkeys(roles):
        # A text may be in thousands of groups, which share its arrays.
        unique = list(
            dict.fromkeys(
                text
                for column, other in zip(columns, roles, strict=True)
                if other == role
                for text in column
            )
        )
        if config is None:
            tokens = [
                RoleTokens(*build_inputs_with_special_tokens(ids, None, tokenizer, max_length))
                for ids in tokenizer.encode_ids(unique)
            ]
        else:
            prompt = config.prompt_of_role(role)
            tokens = tokenize_for_role(unique, tokenizer, config, role, prompt, max_length)
        built |= {(role, text): each for text, each in zip(unique, tokens, strict=True)}
    features = Features(num_choices=groups.num_texts)
    features.example_index = np.arange(len(groups.texts))
    for group in groups.texts:
        any_truncated = False
        for role, text in zip(roles, group, strict=True):
            input_ids, token_type_ids, is_truncated = built[role, text]
            features.input_ids.append(input_ids)
            features.token_type_ids.append(token_type_ids)
            any_truncated |= is_truncated
        features.num_truncated += any_truncated
    return features


def _read_contrastive_pairs(config: ContrastivePairs) -> TextGroups:
    task = load_task(config.task)
    if task.kind != "classification":
        raise UserError(
            f"the kind of task of {task.name} is {task.kind}; expected a classification, whose "
            "classes decide which texts are similar"
        )
    examples = [e for e in task.splits.get("train", ()) if isinstance(e, TextExample)]
    if not examples:
        raise UserError(f"{task.name} has no train split; give a file with labeled examples for it")
    ids = {label: index for index, label in enumerate(task.labels)}
    for example in examples:
        if example.label not in ids:
            label = "no label" if example.label is None else f"the label {example.label!r}"
            raise UserError(
                f"{task.name}: training example {example.id} has {label}; expected one of "
                f"{', '.join(task.labels)}"
            )
    class_ids = np.array([ids[str(example.label)] for example in examples])
    for label, index in ids.items():
        if index not in class_ids:
            raise UserError(
                f"{task.name}: no training example has the label {label!r}, so there are no pairs "
                "for it; add examples"
            )
    indices, scores = sample_pairs(
        class_ids, config.sampling, num_iterations=config.num_iterations, seed=config.seed
    )
    texts = [joined_text(example) for example in examples]
    return TextGroups(
        name=f"pairs of {task.name}",
        texts=[(texts[first], texts[second]) for first, second in indices.tolist()],
        scores=scores,
    )


def _read_text_file(config: TextFile) -> TextGroups:
    table = read_table(config.path, config.encoding)
    columns = [*config.texts, config.score, config.label, *config.teacher_scores]
    require_columns(table, config.path, columns)
    if not table.rows:
        raise UserError(f"{config.path} has no rows; expected at least one")
    scores = labels = teacher_scores = None
    if config.score is not None:
        scores = [_score(row, config.score, config.score_range) for row in table.rows]
    if config.label is not None:
        labels = [_label(row, config.label) for row in table.rows]
    if config.teacher_scores:
        rows = [_teacher_scores(row, config) for row in table.rows]
        teacher_scores = np.array(rows, np.float32)
    return TextGroups(
        name=config.path,
        texts=[tuple(_text(row, column) for column in config.texts) for row in table.rows],
        scores=None if scores is None else np.array(scores, np.float32),
        labels=labels,
        teacher_scores=teacher_scores,
    )


def _text(row: TableRow, column: str) -> str:
    text = row.cells.get(column)
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{row.location}: the column {column!r} is {text!r}; expected a text")
    return text


def _label(row: TableRow, column: str) -> str:
    label = row.cells.get(column)
    if label is None or str(label) == "":
        raise UserError(f"{row.location}: the column {column!r} has no label; expected one")
    return str(label)


def _teacher_scores(row: TableRow, config: TextFile) -> list[float]:
    """Returns the scores of a row, one for each text after the first."""
    columns, expected = config.teacher_scores, len(config.texts) - 1
    cells: Any = [row.cells.get(column) for column in columns]
    if len(cells) == 1 and isinstance(cells[0], list):
        (cells,) = cells
    try:
        scores = [float(cell) for cell in cells]
    except (TypeError, ValueError):
        scores = [math.nan]
    if len(scores) != expected or not all(map(math.isfinite, scores)):
        raise UserError(
            f"{row.location}: the teacher's scores in {', '.join(map(repr, columns))} are "
            f"{cells!r}; expected {expected} numbers, one for each text after the first"
        )
    return scores


def _score(row: TableRow, column: str, score_range: tuple[float, float]) -> float:
    """Returns the score of a row, mapped from its range to 0 to 1."""
    cell: Any = row.cells.get(column)
    lowest, highest = score_range
    try:
        score = float(cell)
    except (TypeError, ValueError):
        score = math.nan
    # Written so that NaN, which compares as false, is refused too.
    if not lowest <= score <= highest:
        raise UserError(
            f"{row.location}: the score in the column {column!r} is {cell!r}; expected a number "
            f"from {lowest:g} to {highest:g}; set the range with --score-range LOWEST HIGHEST"
        )
    return (score - lowest) / (highest - lowest)


def _read_sts_benchmark(config: StsBenchmark) -> TextGroups:
    task = load_task(Glue(task="stsb", folder=config.folder))
    examples = task.splits.get(config.split)
    if examples is None:
        raise UserError(
            f"{config.folder}: STS-B has no split {config.split!r}; it has {', '.join(task.splits)}"
        )
    texts, scores = [], []
    for example in examples:
        assert isinstance(example, TextExample)
        if not isinstance(example.label, float):
            raise UserError(
                f"{config.folder}: the split {config.split} of STS-B has no scores; expected a "
                "split with scores, such as dev"
            )
        if not 0 <= example.label <= _HIGHEST_STS_SCORE:
            raise UserError(
                f"{config.folder}: example {example.id} of the split {config.split} of STS-B has "
                f"the score {example.label:g}; expected a number from 0 to 5"
            )
        texts.append((example.text, str(example.text_pair)))
        scores.append(example.label / _HIGHEST_STS_SCORE)
    name = f"STS-B {config.split}"
    return TextGroups(name=name, texts=texts, scores=np.array(scores, np.float32))


def _read_nli(config: NliFiles) -> TextGroups:
    examples: list[TextExample] = []
    for task_config in config.tasks:
        task = load_task(task_config)
        splits = [split for split in config.splits if split in task.splits]
        if not splits:
            raise UserError(
                f"{task_config.folder}: {task.name} has the splits {', '.join(task.splits)}; "
                f"expected one of {', '.join(config.splits)}; choose others with --splits"
            )
        for split in splits:
            # Some hypotheses of SNLI are empty or "n/a".
            examples += [e for e in task.splits[split] if _is_usable(e)]  # pyright: ignore
    name = f"{' and '.join(str(each.folder) for each in config.tasks)} ({config.form})"
    return _nli_groups(examples, config.form, name)


def _is_usable(example: Any) -> bool:
    return bool(example.label and example.text.strip() and example.text_pair.strip())


def _nli_groups(examples: Sequence[TextExample], form: NliForm, name: str) -> TextGroups:
    if form == "classes":
        return TextGroups(
            name=name,
            texts=[(e.text, str(e.text_pair)) for e in examples],
            labels=[str(e.label) for e in examples],
        )
    hypotheses: dict[str, dict[str, list[str]]] = {}
    for example in examples:
        by_label = hypotheses.setdefault(example.text, {})
        by_label.setdefault(str(example.label), []).append(str(example.text_pair))
    texts: list[tuple[str, ...]] = []
    for premise, by_label in hypotheses.items():
        contradictions = by_label.get("contradiction", [])
        for index, entailed in enumerate(by_label.get("entailment", [])):
            if form == "pairs":
                texts.append((premise, entailed))
            elif contradictions:
                # Contradictions are used in turn if a premise has fewer of them than entailed
                # hypotheses.
                texts.append((premise, entailed, contradictions[index % len(contradictions)]))
    if not texts:
        raise UserError(
            f"{name}: no premise has an entailed hypothesis"
            + (" and a contradicting one" if form == "triples" else "")
            + "; expected at least one"
        )
    return TextGroups(name=name, texts=texts)
