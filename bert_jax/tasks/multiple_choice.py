"""Defines the kind "multiple_choice": which of A continuations follows a context (SWAG)."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from bert_jax.batch import CHOICE_FIELDS
from bert_jax.data.finetuning.example import ChoiceExample
from bert_jax.data.finetuning.features import (
    Features,
    all_labeled,
    build_inputs_with_special_tokens,
)
from bert_jax.errors import UserError
from bert_jax.models.heads.config import MultipleChoiceHead
from bert_jax.tasks.base import (
    UNLABELED,
    FeatureOptions,
    Json,
    KindDescription,
    ModelInput,
    ScoredExamples,
    TaskKind,
    excerpt,
)
from bert_jax.tasks.classification import LogitsKind, calibration_table, predicted_probability
from bert_jax.tasks.losses import HeadSpec, classification_loss
from bert_jax.tasks.metrics import classification
from bert_jax.text.tokenizer import Tokenizer


class MultipleChoice(LogitsKind, TaskKind[ChoiceExample, np.ndarray, np.ndarray]):
    """Predicts a choice; references are choice indices int [n], predictions logits float [n, A]."""

    name = "multiple_choice"
    head_type = MultipleChoiceHead
    spec = HeadSpec(
        input_fields=CHOICE_FIELDS,
        label_fields=("labels",),
        features_field="choice_cls_encoder_features",
        # One score for each of the B x A texts.
        make_outputs=lambda logits, batch: {
            "logits": logits.reshape(batch[CHOICE_FIELDS[0]].shape[:2])
        },
        compute_loss=classification_loss,
    )
    hugging_face_class = "ForMultipleChoice"
    description = KindDescription(
        expected_input="a context and two or more choices",
        text_names=("context", "choice"),
        error_loss="loss",
        pipeline_tag="multiple-choice",
        head_output="a score for each choice, from the pooled first token of context and choice",
        result="the likeliest choice",
        example_arguments='"A context." "A choice." "Another."',
    )
    sequence_fields: ClassVar[Mapping[str, str]] = {
        "choice_input_ids": "AL",
        "choice_token_type_ids": "AL",
        "labels": "",
    }
    reads_pairs = False
    num_texts = None
    table_columns: ClassVar[
        Mapping[str, str | None]
    ] = {}  # the choices have a column each, so tables are read as SWAG
    table_format = "swag"
    empty_prediction: ClassVar[Mapping[str, Any]] = {"choice": None, "probabilities": None}

    def head_from_hugging_face(self, data: Mapping[str, Any], source: str) -> MultipleChoiceHead:
        """Returns the head, which has no fields."""
        return MultipleChoiceHead()

    def make_features(
        self,
        examples: Sequence[ChoiceExample],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        options: FeatureOptions,
    ) -> Features:
        """Tokenizes each choice, after the prompt, as a pair with the context."""
        # The choices of an example are a dimension of the batch.
        counts = {len(example.choices) for example in examples}
        if len(counts) > 1:
            raise UserError(
                f"examples have {sorted(counts)} choices; expected the same number in each"
            )
        features = Features(
            example_index=np.arange(len(examples)), num_choices=max(counts, default=1)
        )
        contexts = tokenizer.encode_ids([example.context for example in examples])
        endings = iter(
            tokenizer.encode_ids(
                [f"{e.prompt} {choice}".strip() for e in examples for choice in e.choices]
            )
        )
        for example, context in zip(examples, contexts, strict=True):
            truncated_flags = []
            for _ in example.choices:
                input_ids, token_type_ids, is_truncated = build_inputs_with_special_tokens(
                    context, next(endings), tokenizer, options.max_length
                )
                features.input_ids.append(input_ids)
                features.token_type_ids.append(token_type_ids)
                truncated_flags.append(is_truncated)
            # Examples are counted, not texts, as for the other kinds of tasks.
            features.num_truncated += any(truncated_flags)
        if all_labeled(examples):
            features.targets["labels"] = [int(example.label or 0) for example in examples]
        return features

    def get_references(
        self, examples: Sequence[ChoiceExample], labels: Sequence[str]
    ) -> np.ndarray:
        """Returns the indices of the right choices, int [n]."""
        return np.array([example.label for example in examples])

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes accuracy and loss; see `multiple_choice_metrics`."""
        return classification.multiple_choice_metrics(references, predictions)

    def prediction_to_json(
        self, example: ChoiceExample, prediction: np.ndarray, labels: Sequence[str]
    ) -> Json:
        """Returns {"choice", "probabilities": [probability]}."""
        probabilities = softmax(prediction.astype(np.float64))
        return {"choice": int(prediction.argmax()), "probabilities": probabilities.tolist()}

    def analysis_tables(self, scored: ScoredExamples) -> Json:
        """Returns the calibration."""
        return {"calibration": calibration_table(scored.references, scored.predictions)}

    def error_to_json(self, scored: ScoredExamples, index: int) -> Json:
        """Describes a wrong choice by its text."""
        example, prediction = scored.examples[index], scored.predictions[index]
        return {
            "texts": {"context": excerpt(f"{example.context} {example.prompt}".strip())},
            "reference": excerpt(example.choices[example.label or 0]),
            "predicted": excerpt(example.choices[int(prediction.argmax())]),
            "probability": predicted_probability(prediction),
        }

    def count_keys(self, example: ChoiceExample) -> list[str]:
        """Returns the index of the right choice."""
        return [self.format_label(example)]

    def format_label(self, example: ChoiceExample) -> str:
        """Formats the index of the right choice."""
        return UNLABELED if example.label is None else str(example.label)

    def overlap_key(self, example: ChoiceExample) -> Hashable:
        """Returns context and prompt without case, and the choices."""
        return example.context.casefold(), example.prompt.casefold(), example.choices

    def parse_input(self, model_input: ModelInput, example_id: str) -> ChoiceExample | None:
        """Converts a tuple (context, choice, choice, ...) or a `ChoiceExample`."""
        match model_input:
            case ChoiceExample():
                return dataclasses.replace(model_input, label=None)
            case [str() as context, *choices] if len(choices) > 1:
                return ChoiceExample(id=example_id, context=context, choices=tuple(choices))
            case _:
                return None

    def input_texts(self, example: ChoiceExample) -> Sequence[str]:
        """Returns the context and the choices."""
        return [example.context, *example.choices]

    def input_to_json(self, model_input: Sequence[str]) -> Json:
        """Names the context and the choices."""
        return {"context": model_input[0], "choices": list(model_input[1:])}
