"""Draws demonstrations for prompts: training examples, one of each class, after the input.

The layout is as in LM-BFF (Gao et al. 2021, section 6; `src/dataset.py` of its release):

    [CLS] input with the mask [SEP] example of the first class [SEP] example of the second ... [SEP]

Each demonstration is in the template of the prompt, with a label word in place of the mask. Its
texts are limited to `max_text_tokens`, and the end of a sequence that is too long is cut. Unlike
LM-BFF, which adds token types to BERT, all demonstrations have the token type of a second text.

Demonstrations are drawn from all training examples, or from those most similar to the input. A draw
is a function of (seed, epoch, index of the sequence) in training. In prediction it depends on the
texts of the example and not on the other examples of the call.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.config.prompts import Demonstrations, Prompt, SimilarExamples, parse_template
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features
from bert_jax.data.pretraining.rng import ExampleRng, Stream, epoch_key, example_keys
from bert_jax.errors import UserError
from bert_jax.tasks.prompt_features import check_texts, encode_template, find_label_tokens
from bert_jax.tasks.text_similarity import rank_by_similarity, read_text_vectors
from bert_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class _Demonstration:
    """Holds the token ids of a demonstration, with its separators, and its texts."""

    token_ids: np.ndarray
    texts: tuple[str, str | None]


# A draw is a function of (seed, epoch, index) in training, and of the text alone in prediction.
# LM-BFF gives BERT ten token types, which would be new parameters; here all demonstrations have the
# type of a second text.
class DemonstrationPool:
    """Holds the demonstrations of each class, tokenized, and draws one of each.

    Attributes:
      longest: number of tokens of the longest draw.
      max_length: maximum number of tokens of a sequence with its demonstrations.
    """

    def __init__(
        self,
        examples: Sequence[TextExample],
        labels: tuple[str, ...],
        prompt: Prompt,
        tokenizer: Tokenizer,
        max_length: int,
    ):
        """Tokenizes labeled examples in the template of a prompt.

        Args:
          examples: the examples to draw from, usually the training split.
          labels: the class names of the task, which give the order of the demonstrations.

        Raises:
          UserError: a class has no example, or an example has not the texts of the template.
          ConfigError: the prompt has other labels.
        """
        self.max_length = max_length
        self._token_type = tokenizer.template.second_token_type
        label_tokens = find_label_tokens(prompt, labels, tokenizer).token_ids
        self._classes = [
            _encode_class(
                [example for example in examples if example.label == label],
                (label, label_tokens[class_id][0]),
                prompt,
                tokenizer,
            )
            for class_id, label in enumerate(labels)
        ]
        self._indices = [_indices_by_texts(candidates) for candidates in self._classes]
        self.longest = sum(max(len(each.token_ids) for each in c) for c in self._classes)
        assert prompt.demonstrations is not None
        self._selection = prompt.demonstrations.selection
        if isinstance(self._selection, SimilarExamples):
            self._vectors = read_text_vectors(self._selection.vectors)
            self._class_vectors = [
                np.stack([self._vectors(each) for each in examples if each.label == label])
                for label in labels
            ]

    def append(
        self,
        input_ids: np.ndarray,
        token_type_ids: np.ndarray,
        example: TextExample,
        rng: ExampleRng,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns input_ids and token_type_ids with a draw of demonstrations at their end.

        An example with the same texts as `example` is not drawn, unless its class has no other.

        Raises:
          UserError: similar demonstrations are drawn, and there is no vector of the example.
        """
        texts = example.text, example.text_pair
        sampled: list[np.ndarray] = []
        for class_id, candidates in enumerate(self._classes):
            # In training the example itself is in the pool; its demonstration would tell the label.
            equal = self._indices[class_id].get(texts, [])
            # A class with one example, or with copies of one, would have no demonstration
            # otherwise.
            if len(equal) == len(candidates):
                equal = []
            index = self._draw(example, class_id, equal, rng)
            sampled.append(candidates[index].token_ids)
        ids = np.concatenate([input_ids, *sampled])[: self.max_length]
        types = np.full(len(ids), self._token_type, np.int32)
        types[: len(token_type_ids)] = token_type_ids
        return ids, types

    def _draw(
        self, example: TextExample, class_id: int, excluded: list[int], rng: ExampleRng
    ) -> int:
        """Returns the index of a demonstration of a class, except for some in ascending order."""
        count = len(self._classes[class_id]) - len(excluded)
        if isinstance(self._selection, SimilarExamples):
            vectors = self._class_vectors[class_id]
            ranked = rank_by_similarity(self._vectors(example), vectors)
            ranked = ranked[~np.isin(ranked, excluded)]
            # LM-BFF draws from the most similar half of the examples.
            count = max(1, int(count * self._selection.fraction))
            return int(ranked[rng.randint(count, Stream.DEMONSTRATIONS, class_id)])
        # The n-th of the other candidates, without a search through all of them.
        index = rng.randint(count, Stream.DEMONSTRATIONS, class_id)
        for each in excluded:
            index += index >= each
        return index


@dataclass(frozen=True, kw_only=True)
class TrainingDemonstrations:
    """Appends demonstrations to training sequences; implements `AppendedTokens`."""

    pool: DemonstrationPool
    examples: Sequence[TextExample]

    # Batches are planned before demonstrations are drawn, so the length for bucketing is the
    # largest possible one.
    @property
    def longest(self) -> int:
        """Returns the number of tokens of the longest draw."""
        return self.pool.longest

    @property
    def max_length(self) -> int:
        """Returns the maximum number of tokens of a sequence."""
        return self.pool.max_length

    def __call__(
        self, input_ids: np.ndarray, token_type_ids: np.ndarray, index: int, seed: int, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Appends the draw for (seed, epoch, index)."""
        rng = _rng(epoch_key(seed, epoch), index)
        return self.pool.append(input_ids, token_type_ids, self.examples[index], rng)


def add_demonstrations(
    features: Features,
    examples: Sequence[TextExample],
    pool: DemonstrationPool,
    config: Demonstrations,
) -> Features:
    """Returns features with `num_samples` sequences of each example, whose logits are averaged.

    Args:
      features: one sequence for each example, without demonstrations and targets.
    """
    repeated = np.repeat(np.arange(len(examples)), config.num_samples)
    result = Features(
        example_index=repeated,
        num_truncated=features.num_truncated,
        window_pooling="mean_logits",
    )
    for index, example in enumerate(examples):
        text_key = _text_key(example)
        for sample in range(config.num_samples):
            ids, types = pool.append(
                features.input_ids[index],
                features.token_type_ids[index],
                example,
                _rng(text_key, sample),
            )
            result.input_ids.append(ids)
            result.token_type_ids.append(types)
    return result


def _encode_class(
    examples: Sequence[TextExample],
    label: tuple[str, tuple[int, ...]],
    prompt: Prompt,
    tokenizer: Tokenizer,
) -> list[_Demonstration]:
    """Tokenizes the examples of one class, given its name and the tokens of its first word."""
    name, word_ids = label
    if not examples:
        raise UserError(
            f"there is no example with the label {name!r} for the demonstrations of the prompt; "
            "expected at least one training example of each class"
        )
    assert prompt.demonstrations is not None
    limit = prompt.demonstrations.max_text_tokens
    segments = parse_template(prompt.template)
    check_texts(examples, segments, prompt.template)
    encoded = encode_template(segments, examples, tokenizer, np.array(word_ids, np.int32))
    demonstrations: list[_Demonstration] = []
    for index, example in enumerate(examples):
        rows = [
            np.concatenate(
                [
                    part.token_ids[index][:limit] if part.is_text else part.token_ids[0]
                    for part in segment
                ]
            )
            for segment in encoded
        ]
        ids = tokenizer.build_inputs_with_special_tokens(*rows)
        # Without [CLS]: the separator before it ends the input or the demonstration before.
        texts = example.text, example.text_pair
        demonstrations.append(_Demonstration(token_ids=ids[1:], texts=texts))
    return demonstrations


def _indices_by_texts(
    candidates: Sequence[_Demonstration],
) -> dict[tuple[str, str | None], list[int]]:
    """Returns the indices of the demonstrations with the same texts, in ascending order."""
    indices: dict[tuple[str, str | None], list[int]] = {}
    for index, candidate in enumerate(candidates):
        indices.setdefault(candidate.texts, []).append(index)
    return indices


def _rng(key: int, index: int) -> ExampleRng:
    return ExampleRng(int(example_keys(np.array([key], np.uint64), np.array([index]))[0]))


def _text_key(example: TextExample) -> int:
    """Returns 64 bits of a hash of the texts, the same in every process."""
    # Not `hash`, which differs from process to process.
    text = repr((example.text, example.text_pair)).encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
