"""Defines the kind "classification": one of C classes for a text or a pair of texts.

`TextPairKind` is what regression and ranking share with it, `LogitsKind` what multiple choice does.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax, softmax

from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.features import Features, TargetValues, all_labeled, make_label_lookup
from bert_jax.errors import UserError
from bert_jax.models.heads.config import (
    SequenceClassificationHead,
    TaskHead,
    label_thresholds,
)
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
from bert_jax.tasks.demonstrations import add_demonstrations
from bert_jax.tasks.hugging_face import (
    CLASSIFICATION,
    MULTI_LABEL_CLASSIFICATION,
    REGRESSION,
    label_maps,
    problem_type_of,
    read_labels,
    read_thresholds,
    threshold_map,
)
from bert_jax.tasks.long_texts import text_features
from bert_jax.tasks.losses import HeadSpec, apply_class_weights, classification_loss
from bert_jax.tasks.metrics import classification
from bert_jax.tasks.metrics.classification import logits_of, predicted_classes
from bert_jax.tasks.prompt_features import make_prompt_features
from bert_jax.text.tokenizer import Tokenizer


class TextPairKind(TaskKind[TextExample, np.ndarray, np.ndarray]):
    """Implements features and inputs of kinds that read a text or a pair of texts."""

    # All kinds have both target fields, so that seqio can mix their tasks.
    sequence_fields: ClassVar[Mapping[str, str]] = {
        "input_ids": "L",
        "token_type_ids": "L",
        "labels": "",
        "label_values": "",
    }
    hugging_face_class = "ForSequenceClassification"
    peft_task_type = "SEQ_CLS"
    peft_saved_modules = ("classifier", "score")
    has_truncations = True
    table_columns: ClassVar[Mapping[str, str | None]] = {
        "text": "text",
        "text_pair": None,
        "id": None,
    }

    @abstractmethod
    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns the target field, with one value for each labeled example."""

    def make_features(
        self,
        examples: Sequence[TextExample],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        options: FeatureOptions,
    ) -> Features:
        """Tokenizes texts and pairs; every window of a long text has the target of the text."""
        max_length, prompt = options.max_length, options.prompt
        if prompt is None:
            truncation, window_overlap = options.truncation, options.window_overlap
            features = text_features(examples, tokenizer, max_length, truncation, window_overlap)
        else:
            features = make_prompt_features(examples, prompt, tokenizer, max_length)
            if prompt.demonstrations is not None and options.demonstrations is not None:
                features = add_demonstrations(
                    features, examples, options.demonstrations, prompt.demonstrations
                )
        if all_labeled(examples):
            targets = self.make_targets(examples, labels)
            features.targets = {
                # Each window is an example with the label of its text, so long texts count more.
                name: [values[index] for index in features.example_index]
                for name, values in targets.items()
            }
        return features

    def format_label(self, example: TextExample) -> str:
        """Formats the class name or the score."""
        return UNLABELED if example.label is None else str(example.label)

    def overlap_key(self, example: TextExample) -> Hashable:
        """Returns both texts without case and outer white space."""
        pair = example.text_pair
        return example.text.strip().casefold(), None if pair is None else pair.strip().casefold()

    def parse_input(self, model_input: ModelInput, example_id: str) -> TextExample | None:
        """Converts a text, a pair of texts or a `TextExample`."""
        match model_input:
            case str():
                return TextExample(id=example_id, text=model_input)
            case [str() as text, str() as pair]:
                return TextExample(id=example_id, text=text, text_pair=pair)
            # The label is removed, so that a prediction cannot depend on it.
            case TextExample():
                return dataclasses.replace(model_input, label=None)
            case _:
                return None

    def input_texts(self, example: TextExample) -> Sequence[str]:
        """Returns the text and, if there is one, the second text."""
        return [example.text] if example.text_pair is None else [example.text, example.text_pair]

    def input_to_json(self, model_input: Sequence[str]) -> Json:
        """Names both texts of a pair."""
        return {"text": model_input[0], "text_pair": model_input[1]}


def shown_texts(example: TextExample) -> dict[str, str]:
    """Returns the texts of an error example for a report."""
    texts = {"text": excerpt(example.text)}
    if example.text_pair is not None:
        texts["second text"] = excerpt(example.text_pair)
    return texts


class LogitsKind:
    """Implements a kind whose references are class ids int [n] and predictions logits [n, C]."""

    def resampling(
        self, metric: str, references: np.ndarray, predictions: np.ndarray
    ) -> Resampling:
        """Returns how a metric is computed from arrays of classes or scores."""
        arrays, score = classification.metric_for_resampling(
            metric, np.asarray(references), predictions
        )
        return score, arrays

    def error_losses(self, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Returns float64 [n]: the cross-entropy of wrong predictions, 0 for correct ones."""
        logits = logits_of(predictions)
        losses = -log_softmax(logits, axis=1)[np.arange(len(references)), references]
        # Correct predictions have a loss too, but are no errors to show.
        return np.where(predicted_classes(predictions) == references, 0.0, losses)


def never_predicted(labels: Sequence[str], is_missed: np.ndarray) -> list[str]:
    """Returns a sentence about the labels that occur and are never predicted; [] without any."""
    names = [label for label, missed in zip(labels, is_missed, strict=True) if missed]
    if not names:
        return []
    return [f"never predicted, although it occurs: {', '.join(names)}"]


def calibration_table(references: np.ndarray, predictions: np.ndarray) -> Json:
    """Returns {"error": expected calibration error, "bins": see `CalibrationBin`}."""
    bins = classification.calibration_bins(references, logits_of(predictions))
    return {"error": classification.calibration_error(bins), "bins": as_dicts(bins)}


def predicted_probability(prediction: np.ndarray) -> float:
    """Returns the probability of the predicted class, from the prediction for one example, [C]."""
    return float(softmax(logits_of(prediction))[predicted_classes(prediction)])


class SequenceClassification(LogitsKind, TextPairKind):
    """Predicts a class; references are class ids int [n], predictions logits float [n, C]."""

    name = "classification"
    head_type = SequenceClassificationHead
    spec = HeadSpec(
        label_fields=("labels",),
        label_weights=lambda batch, class_weights: apply_class_weights(
            batch["example_weights"], batch["labels"], class_weights
        ),
        compute_loss=classification_loss,
    )
    reads_prompts = True
    description = KindDescription(
        expected_input="a text or a pair of texts",
        text_names=("first text", "second text"),
        error_loss="loss",
        pipeline_tag="text-classification",
        head_output="one label for a text or a pair of texts, from the pooled first token",
        result="labels with probabilities",
        example_arguments='"A text."',
    )
    empty_prediction: ClassVar[Mapping[str, Any]] = {"label": None, "probabilities": None}

    def head_from_hugging_face(
        self, data: Mapping[str, Any], source: str
    ) -> SequenceClassificationHead | None:
        """Reads the labels of a head with several outputs, the usual problem of its class."""
        labels = read_labels(data, source)
        problem_type = problem_type_of(data, labels)
        if problem_type != CLASSIFICATION:
            raise UserError(
                f"{source}: problem_type is {problem_type!r}; supported are {CLASSIFICATION!r}, "
                f"{MULTI_LABEL_CLASSIFICATION!r} and {REGRESSION!r}"
            )
        thresholds = read_thresholds(data, labels, source)
        return SequenceClassificationHead(labels=labels, thresholds=thresholds)

    def head_to_hugging_face(self, head: SequenceClassificationHead) -> Json:
        """Returns the labels, the problem type, and thresholds if some were chosen."""
        fields = {**label_maps(head.labels), "problem_type": CLASSIFICATION}
        return fields | threshold_map(head.labels, head.thresholds)

    def make_targets(
        self, examples: Sequence[TextExample], labels: Sequence[str]
    ) -> dict[str, TargetValues]:
        """Returns the class id of each example and, if all have them, their soft labels."""
        label_to_id = make_label_lookup(labels)
        targets: dict[str, TargetValues] = {
            "labels": [label_to_id(str(e.label), e.id) for e in examples]
        }
        logits = [np.array(e.label_logits) for e in examples if e.label_logits is not None]
        if len(logits) == len(examples):  # otherwise the labels are learned
            targets["label_logits"] = logits
        return targets

    def get_references(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        """Returns class ids, int [n]."""
        label2id = {label: class_id for class_id, label in enumerate(labels)}
        return np.array([label2id[str(example.label)] for example in examples])

    def decode(
        self,
        examples: Sequence[TextExample],
        features: Features,
        outputs: SequenceOutputs,
        head: TaskHead,
        *,
        allow_no_answer: bool = False,
    ) -> np.ndarray:
        """Returns logits float [n, C]; `PREDICTION` [n, 2] if the head has thresholds."""
        logits, thresholds = self.pool_outputs(features, outputs), label_thresholds(head)
        return classification.with_thresholds(logits, thresholds) if thresholds else logits

    def mean_loss(self, references: np.ndarray, predictions: np.ndarray) -> float:
        """Returns the mean cross-entropy in nats."""
        return classification.mean_loss(references, logits_of(predictions))

    def fit_head(
        self,
        head: SequenceClassificationHead,
        references: np.ndarray,
        predictions: np.ndarray,
        metric: str | None = None,
    ) -> SequenceClassificationHead:
        """Chooses the thresholds of two classes that give the highest value of `metric`."""
        can_choose = len(head.labels) == 2 and np.count_nonzero(np.bincount(references)) == 2
        if metric not in classification.THRESHOLD_METRICS or not can_choose:
            return head
        logits = logits_of(predictions)
        thresholds = classification.best_thresholds_of_two(metric, references, logits)
        return dataclasses.replace(head, thresholds=thresholds)

    def compute_metrics(
        self, references: np.ndarray, predictions: np.ndarray, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes accuracy, F1 and others; see `classification_metrics`."""
        return classification.classification_metrics(references, predictions, labels)

    def metrics_note(self, labels: Sequence[str]) -> str | None:
        """Returns the class whose F1 is "f1", for two classes."""
        return f"f1 is the F1 of the class {labels[1]!r}" if len(labels) == 2 else None

    def weaknesses(self, scored: ScoredExamples) -> list[str]:
        """Returns classes that are never predicted, and whether the most frequent is as good."""
        counts = np.bincount(scored.references, minlength=len(scored.labels))
        predicted = predicted_classes(scored.predictions)
        predictions = np.bincount(predicted, minlength=len(scored.labels))
        found = never_predicted(scored.labels, (counts > 0) & (predictions == 0))
        num_right, max_count = int((predicted == scored.references).sum()), int(counts.max())
        if num_right <= max_count and np.count_nonzero(counts) > 1:
            found.append(
                f"accuracy {num_right / len(predicted):.4f} is no better than always predicting "
                f"{scored.labels[int(counts.argmax())]!r}, {max_count / len(predicted):.4f}"
            )
        return found

    def prediction_to_json(
        self, example: TextExample, prediction: np.ndarray, labels: Sequence[str]
    ) -> Json:
        """Returns {"label", "probabilities": {label: probability}}."""
        probabilities = softmax(logits_of(prediction))
        return {
            "label": labels[int(predicted_classes(prediction))],
            "probabilities": dict(zip(labels, probabilities.tolist(), strict=True)),
        }

    def analysis_tables(self, scored: ScoredExamples) -> Json:
        """Returns scores by class, the confusion matrix as a list of cells, and calibration."""
        references, predictions, labels = scored.references, scored.predictions, scored.labels
        matrix = classification.confusion_matrix(references, predictions, labels)
        nonzero_cells = np.argwhere(matrix).tolist()
        return {
            "classes": as_dicts(classification.per_class_table(references, predictions, labels)),
            "confusion_matrix": [[*cell, int(matrix[tuple(cell)])] for cell in nonzero_cells],
            "calibration": calibration_table(references, predictions),
        }

    def error_to_json(self, scored: ScoredExamples, index: int) -> Json:
        """Describes a wrong class with its probability."""
        example, prediction = scored.examples[index], scored.predictions[index]
        return {
            "texts": shown_texts(example),
            "reference": example.label,
            "predicted": scored.labels[int(predicted_classes(prediction))],
            "probability": predicted_probability(prediction),
        }

    def count_keys(self, example: TextExample) -> list[str]:
        """Returns the class name."""
        return [UNLABELED if example.label is None else str(example.label)]
