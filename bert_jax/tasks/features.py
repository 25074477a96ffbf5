"""Makes the features of a split: token ids of its examples in sequences, with their targets."""

import dataclasses
import functools
import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

from bert_jax.config.labeled_data import HeadTruncation, Truncation
from bert_jax.config.prompts import Prompt
from bert_jax.data.finetuning.example import Example, Task, TextExample
from bert_jax.data.finetuning.features import Features
from bert_jax.errors import ConfigError, UserError
from bert_jax.tasks.base import FeatureOptions
from bert_jax.tasks.demonstrations import DemonstrationPool, TrainingDemonstrations
from bert_jax.tasks.registry import check_truncation, kind_of
from bert_jax.text.tokenizer import Tokenizer

_MIN_LENGTH = 4  # the special tokens of a pair, and one token
_MAX_CACHED_SPLITS = 16  # at least the tasks of one multi-task run


def make_features(
    task: Task,
    split: str,
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int = 128,
    truncation: Truncation = HeadTruncation(),  # noqa: B008 (frozen)
    prompt: Prompt | None = None,
) -> Features:
    """Tokenizes a split into sequences of at most `max_length` tokens, with their targets.

    Args:
      window_overlap: number of tokens that neighboring windows of a long example share.
      truncation: which tokens of a long text are read, in classification, regression and ranking.
      prompt: the template into which texts are put, in classification. Its demonstrations are
        examples of the split "train".

    Raises:
      ConfigError: `max_length` leaves no room for text, or the kind of task has no such truncation.
      UserError: an example has a label that the task does not have.
    """
    if max_length < _MIN_LENGTH:
        raise ConfigError(
            f"sequences of {max_length} tokens leave no room for text between [CLS] and [SEP]; "
            f"expected at least {_MIN_LENGTH}"
        )
    kind = kind_of(task)
    check_truncation(kind, truncation)
    options = FeatureOptions(
        max_length=max_length,
        window_overlap=window_overlap,
        truncation=truncation,
        prompt=prompt,
        demonstrations=_demonstration_pool(task, prompt, tokenizer, max_length),
    )
    examples: Any = task.splits[split]  # of the type that the kind reads
    return kind.make_features(examples, task.labels, tokenizer, options)


def training_features(
    task: Task,
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int = 128,
    truncation: Truncation = HeadTruncation(),  # noqa: B008 (frozen)
    prompt: Prompt | None = None,
) -> Features:
    """Tokenizes the split "train", only once in a process for equal examples and settings.

    A preset counts the sequences to choose the number of steps, and the run then trains on them:
    the cache keeps a large training set from being tokenized twice.
    """
    settings = max_length, window_overlap, truncation, prompt
    digest = _digest(task.splits["train"])
    key = task.kind, task.labels, digest, tokenizer.fingerprint, *settings
    if key not in _training_features:
        if len(_training_features) == _MAX_CACHED_SPLITS:
            # A dict keeps the order of insertion, so the first key is the oldest.
            del _training_features[next(iter(_training_features))]
        _training_features[key] = _new_training_features(task, tokenizer, *settings)
    # A copy, because a run adds encoder features to its own.
    return dataclasses.replace(_training_features[key])


_training_features: dict[Hashable, Features] = {}


def _new_training_features(
    task: Task,
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int,
    truncation: Truncation,
    prompt: Prompt | None,
) -> Features:
    """Tokenizes the split "train", to which demonstrations are appended in each epoch."""
    arguments = task, "train", tokenizer, max_length, window_overlap, truncation
    if prompt is None or prompt.demonstrations is None:
        return make_features(*arguments, prompt)
    # Each epoch has other demonstrations, so they are appended when a batch is made.
    features = make_features(*arguments, dataclasses.replace(prompt, demonstrations=None))
    pool = _demonstration_pool(task, prompt, tokenizer, max_length)
    assert pool is not None
    examples = text_examples(task, "train")
    return dataclasses.replace(
        features, appended=TrainingDemonstrations(pool=pool, examples=examples)
    )


def _demonstration_pool(
    task: Task, prompt: Prompt | None, tokenizer: Tokenizer, max_length: int
) -> DemonstrationPool | None:
    if prompt is None or prompt.demonstrations is None:
        return None
    if "train" not in task.splits:
        raise UserError(
            f"{task.name} has no training examples, from which the demonstrations of the prompt "
            "are drawn; expected a split train"
        )
    examples = text_examples(task, "train")
    return _cached_pool(examples, task.labels, prompt, tokenizer, max_length)


# A predictor makes features in every call, always with the same demonstrations.
_cached_pool = functools.lru_cache(maxsize=4)(DemonstrationPool)


def text_examples(task: Task, split: str) -> tuple[TextExample, ...]:
    """Returns the texts and pairs of texts of a split."""
    return tuple(each for each in task.splits[split] if isinstance(each, TextExample))


def _digest(examples: Sequence[Example]) -> bytes:
    """Hashes the content of examples, which may have been read twice from the same files."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr(example).encode("utf-8", "backslashreplace"))
    return digest.digest()
