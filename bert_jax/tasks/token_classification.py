"""Defines the kind "token_classification": an IOB2 tag for each word, as in named entities."""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax.batch import TOKEN_LABEL_FIELDS
from bert_jax.data.finetuning.example import TaggedExample, TextExample
from bert_jax.data.finetuning.features import (
    Features,
    all_labeled,
    build_inputs_with_special_tokens,
    make_label_lookup,
    max_context,
    window_starts,
)
from bert_jax.errors import UserError
from bert_jax.losses import Batch, WeightedMean, is_correct, weighted_mean
from bert_jax.models.heads.config import TaskHead, TokenClassificationHead, class_labels
from bert_jax.tasks.base import (
    UNLABELED,
    FeatureOptions,
    Json,
    KindDescription,
    ModelInput,
    Resampling,
    ScoredExamples,
    SequenceOutputs,
    TaskKind,
    as_dicts,
    excerpt,
)
from bert_jax.tasks.losses import (
    HeadOutputs,
    HeadSpec,
    Metrics,
    apply_class_weights,
    weighted_cross_entropy,
)
from bert_jax.tasks.metrics import ner_metrics
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.word_offsets import word_offsets

TagLists = list[list[str]]


def word_weights(batch: Batch) -> jax.Array:
    """Returns float32 [B, L]: 1 at the first token of each word, 0 elsewhere and in padding."""
    return batch["token_label_weights"] * batch["example_weights"][:, None]


def token_classification_loss(
    outputs: HeadOutputs, batch: Batch, class_weights: Sequence[float], label_smoothing: float
) -> tuple[WeightedMean, Metrics]:
    """Computes the cross-entropy of `token_labels` over the first token of each word.

    Words have equal weights; `accuracy` counts words.
    """
    logits_BLC, labels, weights = outputs["logits"], batch["token_labels"], word_weights(batch)
    loss = weighted_cross_entropy(logits_BLC, labels, weights, class_weights, label_smoothing)
    return loss, {"loss": loss, "accuracy": weighted_mean(is_correct(logits_BLC, labels), weights)}


class TokenClassification(TaskKind[TaggedExample, TagLists, TagLists]):
    """Predicts a tag for each word, at its first token; long sentences are read in windows."""

    name = "token_classification"
    head_type = TokenClassificationHead
    spec = HeadSpec(
        label_fields=TOKEN_LABEL_FIELDS,
        features_field="encoder_features",
        label_weights=lambda batch, class_weights: apply_class_weights(
            word_weights(batch), batch["token_labels"], class_weights
        ),
        compute_loss=token_classification_loss,
    )
    hugging_face_class = "ForTokenClassification"
    peft_task_type = "TOKEN_CLS"
    peft_saved_modules = ("classifier", "score")
    description = KindDescription(
        expected_input="one text, or its words",
        text_names=("text",),
        class_table="Entities by type",
        error_loss="wrong entities",
        pipeline_tag="token-classification",
        head_output="one label for each word, at its first token",
        result="entities with their positions",
        example_arguments='"A text."',
    )
    sequence_fields: ClassVar[Mapping[str, str]] = {
        "input_ids": "L",
        "token_type_ids": "L",
        "token_labels": "L",
        "token_label_weights": "L",
    }
    reads_windows = True
    reads_pairs = False
    table_columns: ClassVar[Mapping[str, str | None]] = {"text": "text", "id": None}
    line_format = None  # a line may hold a text, or one word and its tag
    empty_prediction: ClassVar[Mapping[str, Any]] = {"tags": [], "entities": [], "words": []}

    def make_features(
        self,
        examples: Sequence[TaggedExample],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        options: FeatureOptions,
    ) -> Features:
        """Tokenizes words; each word is predicted in the window that gives it most context."""
        max_length = options.max_length
        label_to_id = make_label_lookup(labels)
        tokens_by_word = tokenize_words(
            (word for example in examples for word in example.words), tokenizer
        )
        window_length = max_length - tokenizer.template.num_single_special_tokens
        # An overlap of a whole window would never reach the next token.
        window_overlap = min(options.window_overlap, window_length // 2)
        features, example_indices = Features(), []
        token_labels: list[np.ndarray] = []
        token_label_weights: list[np.ndarray] = []
        for example_index, example in enumerate(examples):
            words = [tokens_by_word[word] for word in example.words]
            ids = np.concatenate([*words, np.zeros(0, np.int32)])
            word_of_token = np.repeat(np.arange(len(words)), [len(word) for word in words])
            # As in BERT's experiments on CoNLL-2003 (Devlin et al. 2019, section 5.3), the first
            # token of a word predicts its tag.
            is_first_token = np.diff(word_of_token, prepend=-1) != 0
            tag_ids = [label_to_id(tag, example.id) for tag in example.tags or ()]
            starts = window_starts(len(ids), window_length, window_overlap)
            max_context_masks = max_context(len(ids), window_length, starts)
            for start, is_max_context in zip(starts, max_context_masks, strict=True):
                window = slice(start, start + window_length)
                input_ids, token_type_ids, _ = build_inputs_with_special_tokens(
                    ids[window], None, tokenizer, max_length
                )
                word_ids = np.full(len(input_ids), -1, np.int32)
                word_ids[1:-1] = np.where(
                    is_first_token[window] & is_max_context, word_of_token[window], -1
                )
                features.input_ids.append(input_ids)
                features.token_type_ids.append(token_type_ids)
                features.word_ids.append(word_ids)
                example_indices.append(example_index)
                # The word id -1 selects the 0 that is appended to the tag ids.
                label_ids = np.array([*tag_ids, 0], np.int32)[word_ids] if tag_ids else word_ids
                token_labels.append(np.where(word_ids >= 0, label_ids, 0))
                token_label_weights.append((word_ids >= 0).astype(np.float32))
        features.example_index = np.array(example_indices, np.int64)
        if all_labeled(examples):
            features.targets = {
                "token_labels": token_labels,
                "token_label_weights": token_label_weights,
            }
        return features

    def get_references(self, examples: Sequence[TaggedExample], labels: Sequence[str]) -> TagLists:
        """Returns the tags of each sentence."""
        return [list(example.tags or ()) for example in examples]

    def decode(
        self,
        examples: Sequence[TaggedExample],
        features: Features,
        outputs: SequenceOutputs,
        head: TaskHead,
        *,
        allow_no_answer: bool = False,
    ) -> TagLists:
        """Returns the tag of each word, from the sequence that predicts it."""
        labels = class_labels(head)
        logits_by_example = self.word_logits(examples, features, outputs, labels)
        return [
            ner_metrics.decode_tags(word_logits, np.arange(len(word_logits)), labels)
            for word_logits in logits_by_example
        ]

    def word_logits(
        self,
        examples: Sequence[TaggedExample],
        features: Features,
        outputs: SequenceOutputs,
        labels: Sequence[str],
    ) -> list[np.ndarray]:
        """Returns the logits of the words of each example, float32 [words, C]."""
        # Exactly one window predicts each word, so nothing is averaged.
        logits = outputs["logits"]
        logits_by_example = [
            np.zeros((len(example.words), len(labels)), np.float32) for example in examples
        ]
        for sequence_index, example_index in enumerate(features.example_index):
            word_ids = features.word_ids[sequence_index]
            positions = np.flatnonzero(word_ids >= 0)
            logits_by_example[example_index][word_ids[positions]] = logits[sequence_index][
                positions
            ]
        return logits_by_example

    def compute_metrics(
        self, references: TagLists, predictions: TagLists, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes precision, recall and F1 of entities; see `entity_metrics`."""
        # The metrics would count an unknown tag as a wrong entity, without an error.
        unknown = sorted({tag for sentence in references for tag in sentence} - set(labels))
        if unknown:
            raise UserError(
                f"the reference tags contain {', '.join(unknown)}, but the model chooses among "
                f"{', '.join(labels)}: the labels of the model and of the data differ"
            )
        return ner_metrics.entity_metrics(references, predictions)

    def resampling(self, metric: str, references: TagLists, predictions: TagLists) -> Resampling:
        """Returns how a metric is computed from counts of each sentence."""
        if metric == "token_accuracy":
            counts = ner_metrics.token_counts(references, predictions)
            return ner_metrics.token_accuracy, (counts,)
        types = ner_metrics.entity_types(references, predictions)
        counts = ner_metrics.entity_counts(references, predictions, types)
        return lambda counts: ner_metrics.entity_scores(counts)[metric], (counts,)

    def prediction_to_json(
        self, example: TaggedExample, prediction: Sequence[str], labels: Sequence[str]
    ) -> Json:
        """Returns {"tags", "entities": [{"type", "start", "end", "text"}]}, counted in words."""
        entities = [
            {
                "type": entity.type,
                "start": entity.start,
                "end": entity.end,
                "text": " ".join(example.words[entity.start : entity.end]),
            }
            for entity in ner_metrics.entity_spans(prediction)
        ]
        return {"tags": list(prediction), "entities": entities}

    def analysis_tables(self, scored: ScoredExamples) -> Json:
        """Returns scores and kinds of errors by entity type."""
        tags = scored.references, scored.predictions
        return {
            "classes": as_dicts(ner_metrics.entity_table(*tags)),
            "entity_errors": as_dicts(ner_metrics.entity_errors(*tags)),
        }

    def error_losses(self, references: TagLists, predictions: TagLists) -> np.ndarray:
        """Returns the number of entities that are missed or should not have been predicted."""
        pairs = zip(references, predictions, strict=True)
        return np.array([len(_entity_set(a) ^ _entity_set(b)) for a, b in pairs], np.float64)

    def error_to_json(self, scored: ScoredExamples, index: int) -> Json:
        """Describes a sentence by its entities and the predicted ones."""
        example = scored.examples[index]
        return {
            "texts": {"words": excerpt(" ".join(example.words))},
            "reference": _format_entities(example.words, example.tags or ()),
            "predicted": _format_entities(example.words, scored.predictions[index]),
        }

    def count_keys(self, example: TaggedExample) -> list[str]:
        """Returns the type of each entity."""
        if example.tags is None:
            return [UNLABELED]
        return [tag[2:] for tag in example.tags if tag.startswith("B-")]

    def format_label(self, example: TaggedExample) -> str:
        """Formats all tags."""
        return UNLABELED if example.tags is None else " ".join(example.tags)

    def overlap_key(self, example: TaggedExample) -> Hashable:
        """Returns the words without case."""
        return tuple(word.casefold() for word in example.words)

    def parse_input(self, model_input: ModelInput, example_id: str) -> TaggedExample | None:
        """Converts a text, a tuple of words, a `TextExample` of one text or a `TaggedExample`."""
        match model_input:
            case str():
                return TaggedExample(id=example_id, words=split_words(model_input))
            case TextExample(text_pair=None):
                return TaggedExample(id=model_input.id, words=split_words(model_input.text))
            case TaggedExample():
                return dataclasses.replace(model_input, tags=None)
            case [*words]:
                return TaggedExample(id=example_id, words=tuple(words))
            case _:
                return None

    def input_texts(self, example: TaggedExample) -> Sequence[str]:
        """Returns the words; a sentence without words counts as an empty text."""
        return example.words or [""]

    def input_to_json(self, model_input: Sequence[str]) -> Json:
        """Names the words."""
        return {"words": list(model_input)}

    def add_input(self, model_input: ModelInput, prediction: Mapping[str, Any]) -> Json:
        """Adds the input; entities of a text that was split here get its character offsets."""
        result = super().add_input(model_input, prediction)
        if isinstance(model_input, str | TextExample):
            text = model_input if isinstance(model_input, str) else model_input.text
            offsets = word_offsets([text])[0]
            result["entities"] = [
                _to_character_offsets(entity, text, offsets) for entity in prediction["entities"]
            ]
            result["words"] = [text[start:end] for start, end in offsets]
        return result


def split_words(text: str) -> tuple[str, ...]:
    """Splits a text into the words that `word_offsets` finds."""
    return tuple(text[start:end] for start, end in word_offsets([text])[0])


def _entity_set(tags: ner_metrics.Tags) -> set[tuple[str, int, int]]:
    return {(entity_type, start, end) for entity_type, start, end in ner_metrics.entity_spans(tags)}


def _format_entities(words: Sequence[str], tags: ner_metrics.Tags) -> str:
    """Formats entities as "PER Ann Lee; LOC Rome"."""
    entities = [
        f"{entity.type} {' '.join(words[entity.start : entity.end])}"
        for entity in ner_metrics.entity_spans(tags)
    ]
    return excerpt("; ".join(entities)) or "no entity"


def _to_character_offsets(
    entity: Mapping[str, Any], text: str, offsets: Sequence[tuple[int, int]]
) -> Json:
    start, end = offsets[entity["start"]][0], offsets[entity["end"] - 1][1]
    return {**entity, "start": start, "end": end, "text": text[start:end]}


def tokenize_words(words: Iterable[str], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns the token ids of each different word, at least one; special tokens are not added."""
    # Words repeat often, so each different one is tokenized once.
    words = list(dict.fromkeys(words))
    # Byte-level BPE encodes a word within a text with the space before it.
    space = " " if tokenizer.kind == "bpe" else ""
    # A word of control characters only has no token, but its tag still needs a position.
    unknown = np.array([tokenizer.unk_id], np.int32)
    encoded = tokenizer.encode_ids([space + word for word in words])
    return {w: ids if len(ids) else unknown for w, ids in zip(words, encoded, strict=True)}
